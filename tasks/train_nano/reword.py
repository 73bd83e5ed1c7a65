"""Common words exchanged for others of their kind: other products, colours, boards and mottos.

Two dozen worlds have few names for things: what they sell, and in which order it stands, can be
learnt by heart, and was. Before this, 56 of 75 tasks were solved in a world that was trained on,
43 in one that was not.
"""

import random
import re
from collections.abc import Iterator

from agentkv_env.sites.classifieds import content as classifieds
from agentkv_env.sites.forum import content as forum
from agentkv_env.sites.forum.boards import BOARDS
from agentkv_env.sites.home import content as home
from agentkv_env.sites.shop import stock
from agentkv_env.sites.wiki import content as wiki
from train_nano.episode import Episode, mapped

_KINDS = (
    [kind.name for kinds in stock.CATEGORIES.values() for kind in kinds]
    + [thing for things in classifieds._THINGS.values() for thing in things],
    [*stock.CATEGORIES, *(category.name for category in classifieds._CATEGORIES)],
    stock.COLOURS,
    stock.LINES,
    "big cheap famous plain quiet round strange wet".split(),
    [board.name for board in BOARDS],
    forum._EVENTS,
    [*forum._HALLS, *home._HALLS, *wiki._VENUES],
    forum._HOBBIES,
    wiki._HOBBIES,
    wiki._THEMES,
    wiki._GATHERINGS[:3],
    wiki._BUILDINGS,
    wiki._MAINS,
    wiki._FORMS,
    wiki._FISH,
    wiki._INGREDIENTS,
    wiki._SERVED,
    wiki._FIRSTS,
    wiki._PRAISE,
)
"""Words that may stand for each other. Left out are those that the sites' forms and buttons say."""
_SHOUTED = wiki._VIRTUES
"""The same, of words that are others' in small letters: mottos are made of them."""


def reword(episode: Episode, rng: random.Random) -> Episode:
    """`episode` with common words of most kinds exchanged, alike in goal, pages and replies."""
    table: dict[str, str] = {}
    for old, new in _exchanged(rng):
        for form in (str, str.lower, str.upper, str.title, str.capitalize):
            table.setdefault(form(old), form(new))
    table.update(zip(_SHOUTED, rng.sample(_SHOUTED, len(_SHOUTED)), strict=True))
    longest = sorted(table, key=len, reverse=True)
    words = re.compile(rf"\b(?:{'|'.join(map(re.escape, longest))})\b")
    return mapped(episode, lambda text: words.sub(lambda match: table[match[0]], text))


def _exchanged(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Words, and what stands for them; every word once, whatever its case."""
    seen: set[str] = set()
    for kind in _KINDS:
        words = [word for word in kind if word.lower() not in seen]
        seen.update(word.lower() for word in words)
        if rng.random() < 0.8:
            yield from zip(words, rng.sample(words, len(words)), strict=True)
