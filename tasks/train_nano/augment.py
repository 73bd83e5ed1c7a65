"""One recorded episode into many: other names, other numbers in brackets, fewer elements.

Everything is changed alike in goal, pages and replies, so that a reply stays right for its page.
"""

import random
import re
from dataclasses import replace

from agentkv_env.sites import names
from train_nano.episode import Episode, Turn, mapped, texts
from train_nano.reword import reword

_SYLLABLE = "|".join(names._SYLLABLES)
_ENDING = "|".join(
    sorted(
        {*names._FIRST_ENDINGS, *names._LAST_ENDINGS, *names._PLACE_ENDINGS, *names._BRAND_ENDINGS},
        key=len,
        reverse=True,
    )
)
_FIRST = rf"(?:{_SYLLABLE})(?:{'|'.join(names._FIRST_ENDINGS)})"
_LAST = rf"(?:{_SYLLABLE}){{2}}(?:{'|'.join(names._LAST_ENDINGS)})"
_HANDLE = re.compile(rf"({_FIRST})({_LAST})")
# The shape of every invented word; a few English words have it too, and may as well be renamed.
_INVENTED = re.compile(rf"(?P<stem>(?:{_SYLLABLE}){{1,2}})(?P<ending>{_ENDING})")
_WORD = re.compile(r"[A-Za-z]+")
_RUN = re.compile(r"[A-Z][a-z]+(?: [A-Z][a-z]+)*")
_ID = re.compile(r"```(?P<verb>click|type|hover|clear) \[(?P<id>\d+)\]")
_SAID = re.compile(r"```(?:type \[\d+\]|stop) \[(.*?)\](?: \[[01]\])?```")
_NUMBER = re.compile(r"(?<![\d,.])\d(?:[\d,.]*\d){1,}(?!\d)")
"""Two digits and more, with what separates them; single ones are too often counts."""
_ACTED = re.compile(rf"{_ID.pattern}|{_NUMBER.pattern}")
"""Numbers again, but the ids of elements acted on first, so that they can be told apart."""
_CODE = re.compile(r"\b[A-Z]{1,3}-\d{2,6}\b|\b[A-Z]{4,8}\d{2}\b")
"""A model or serial number, or a coupon."""
_LETTERS = "ABCDEFGHKLMNPRSTUVWXYZ"
_TRIES = 400


def vary(episode: Episode, rng: random.Random, *, thinned: float = 0.3) -> Episode:
    """A variant of `episode`: mostly renamed and in other words, at times renumbered.

    Args:
        thinned: how often its pages lose elements. Short pages teach what to do sooner, so training
            begins with many of them.
    """
    if rng.random() < 0.7:
        episode = reword(episode, rng)
    if rng.random() < 0.8:
        episode = rename(episode, rng)
    if rng.random() < 0.8:
        episode = revalue(recode(episode, rng), rng)
    if rng.random() < thinned:
        episode = thin(episode, rng, share=rng.uniform(0.5, 1.0))
    if rng.random() < 0.2:
        episode = renumber(episode, rng)
    return episode


# ---- names ----------------------------------------------------------------------------------


def rename(episode: Episode, rng: random.Random) -> Episode:
    """`episode` with its invented words replaced by others of the same shape, consistently.

    A full name that was of the training side stays on it: what no training world may say, a variant
    does not say either.
    """
    text = "\n".join(texts(episode))
    said = _WORD.findall(text)
    # Who is shown by user name alone has a full name too.
    people = [match for word in dict.fromkeys(said) if (match := _HANDLE.fullmatch(word))]
    full = [" ".join(map(str.capitalize, match.groups())) for match in people]
    runs = {run for run in [*_RUN.findall(text), *full] if names.side_of_name(run) == 1}
    words = dict.fromkeys(word for word in [*said, *" ".join(full).split()] if word.istitle())
    table: dict[str, str] = {}
    for word in words:
        match = _INVENTED.fullmatch(word.lower())
        if match is not None:
            mine = [run for run in runs if word in run.split()]
            new = _other(match, mine, table, rng)
            if new is not None:
                table[word.lower()] = new
    for run in [*_RUN.findall(text), *full]:  # handles: both names of a person, run together
        parts = run.lower().split()
        if len(parts) == 2 and all(part in table for part in parts):
            table["".join(parts)] = "".join(table[part] for part in parts)

    def swap(match: re.Match[str]) -> str:
        word = match[0]
        new = table.get(word.lower())
        if new is None:
            return word
        return new.capitalize() if word[0].isupper() else new

    return mapped(episode, lambda text: _WORD.sub(swap, text))


def _other(
    match: re.Match[str], runs: list[str], table: dict[str, str], rng: random.Random
) -> str | None:
    """A new word for the one matched, such that its `runs` stay on the training side; or None."""
    old = match[0]
    count = len(re.findall(_SYLLABLE, match["stem"]))
    for _ in range(_TRIES):
        new = "".join(rng.choice(names._SYLLABLES) for _ in range(count)) + match["ending"]
        known = {**table, old: new}
        changed = (
            " ".join(known.get(word.lower(), word.lower()).capitalize() for word in run.split())
            for run in runs
        )
        nouns = (new.capitalize(), *changed)
        if new not in table.values() and all(names.side_of_name(noun) == 1 for noun in nouns):
            return new
    return None


# ---- numbers --------------------------------------------------------------------------------


def revalue(episode: Episode, rng: random.Random) -> Episode:
    """`episode` with other digits in its goal and in what is typed and answered, wherever else
    they stand.

    What a page says has to be read from it; the values of a few dozen worlds could be learnt.
    """
    said = " ".join(found[1] for turn in episode.turns for found in _SAID.finditer(turn.reply))
    table: dict[str, str] = {}
    for number in dict.fromkeys(_NUMBER.findall(f"{episode.goal} {said}")):
        new = "".join(
            rng.choice("123456789" if index == 0 else "0123456789") if digit.isdigit() else digit
            for index, digit in enumerate(number)
        )
        if new not in table.values():
            table[number] = new
    if not table:
        return episode
    return mapped(episode, lambda text: _ACTED.sub(lambda m: table.get(m[0], m[0]), text))


def recode(episode: Episode, rng: random.Random) -> Episode:
    """`episode` with other letters and digits in every code of its goal and pages."""
    table: dict[str, str] = {}
    for code in sorted({code for text in texts(episode) for code in _CODE.findall(text)}):
        new = ""
        while not new or new in table.values():
            new = "".join(
                rng.choice(_LETTERS) if sign.isalpha()
                else rng.choice("23456789") if sign.isdigit()
                else sign
                for sign in code
            )  # fmt: skip
        table[code] = new
    return mapped(episode, lambda text: _CODE.sub(lambda match: table[match[0]], text))


def renumber(episode: Episode, rng: random.Random) -> Episode:
    """`episode` with other numbers on the elements of each page, still rising in reading order."""

    def turn(old: Turn) -> Turn:
        numbers = sorted({node.id for node in old.page.nodes if node.id is not None})
        room = max(200, len(numbers) + 1)
        new = dict(zip(numbers, sorted(rng.sample(range(1, room), len(numbers))), strict=True))
        nodes = tuple(
            node if node.id is None else replace(node, id=new[node.id]) for node in old.page.nodes
        )

        def number(match: re.Match[str]) -> str:
            return f"```{match['verb']} [{new[int(match['id'])]}]"

        return replace(old, page=replace(old.page, nodes=nodes), reply=_ID.sub(number, old.reply))

    return replace(episode, turns=tuple(map(turn, episode.turns)))


# ---- elements -------------------------------------------------------------------------------


def thin(episode: Episode, rng: random.Random, *, share: float) -> Episode:
    """`episode` with about `share` of those nodes gone that neither goal nor replies speak of.

    Neighbours of what is spoken of stay: they may say what it is.
    """
    spoken = "\n".join([episode.goal, *(turn.reply for turn in episode.turns)])
    words = {word for word in re.findall(r"\w{3,}|\d+", spoken.lower())} - _COMMON

    def turn(old: Turn) -> Turn:
        nodes = old.page.nodes
        acted = _ID.search(old.reply)
        named = [
            index
            for index, node in enumerate(nodes)
            if (acted and node.id == int(acted["id"]))
            or words & set(re.findall(r"\w{3,}|\d+", f"{node.name} {node.value}".lower()))
        ]
        safe = {near for index in named for near in range(index - 2, index + 4)}
        kept = tuple(
            node for index, node in enumerate(nodes) if index in safe or rng.random() >= share
        )
        return replace(old, page=replace(old.page, nodes=kept))

    return replace(episode, turns=tuple(map(turn, episode.turns)))


_COMMON = set(
    "link button textbox combobox checkbox click type stop done from the and its for with that "
    "this are".split()
)
