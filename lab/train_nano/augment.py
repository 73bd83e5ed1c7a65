"""Augmentation of recorded episodes: other names, values, codes and element ids, fewer elements.

Every change applies consistently to goals, pages and replies, so each reply still fits its page.
"""

import random
import re
from dataclasses import replace

from agentkv_env.sites import names
from train_nano.episode import RecordedEpisode, RecordedTurn, all_texts, map_texts
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
# Every invented word has this form, and so do a few English words.
_ENGLISH = frozenset("lane line linen pine sale".split())
_INVENTED = re.compile(rf"(?P<stem>(?:{_SYLLABLE}){{1,2}})(?P<ending>{_ENDING})")
_WORD = re.compile(r"[A-Za-z]+")
_CAPITALIZED = re.compile(r"[A-Z][a-z]+(?: [A-Z][a-z]+)*")
_ID = re.compile(r"```(?P<verb>click|type|hover|clear) \[(?P<id>\d+)\]")
_TEXT = re.compile(r"```(?:type \[\d+\]|stop) \[(.*?)\](?: \[[01]\])?```")
_NUMBER = re.compile(r"(?<![\d,.])\d(?:[\d,.]*\d){1,}(?!\d)")
"""Numbers of two or more digits with their separators. Single digits are too often counts."""
_ID_OR_NUMBER = re.compile(rf"{_ID.pattern}|{_NUMBER.pattern}")
"""Numbers and ids of elements in actions. The ids match first, so they are not replaced."""
_CODE = re.compile(r"\b[A-Z]{1,3}-\d{2,6}\b|\b[A-Z]{4,8}\d{2}\b")
"""Model numbers, serial numbers and coupon codes."""
_SEED = re.compile(r"\bseed=\d+-\d+")
_LETTERS = "ABCDEFGHKLMNPRSTUVWXYZ"
_TRIES = 400


def vary(episode: RecordedEpisode, rng: random.Random, *, thinned: float = 0.3) -> RecordedEpisode:
    """Return a random variant of `episode`.

    Args:
        thinned: probability that the pages lose elements. Short pages teach the actions sooner, so
            training begins with many of them.
    """
    # On MiniWoB++ pages an agent counts elements and reckons with numbers, so both stay.
    is_miniwob = episode.name.split("/")[1:2] == ["miniwob"]
    if rng.random() < 0.7:
        episode = reword(episode, rng)
    if rng.random() < 0.8:
        episode = replace_names(episode, rng)
    if is_miniwob:
        episode = replace_seed(episode, rng)
    elif rng.random() < 0.8:
        episode = replace_numbers(replace_codes(episode, rng), rng)
    if rng.random() < thinned and not is_miniwob:
        episode = drop_elements(episode, rng, share=rng.uniform(0.5, 1.0))
    if rng.random() < 0.2:
        episode = renumber_elements(episode, rng)
    return episode


# ---- names ----------------------------------------------------------------------------------


def replace_names(episode: RecordedEpisode, rng: random.Random) -> RecordedEpisode:
    """Replace invented words consistently by others of the same form.

    Full names of the training side stay on it, so no variant contains a name that only evaluation
    worlds may use.
    """
    text = "\n".join(all_texts(episode))
    all_words = _WORD.findall(text)
    # A person who appears only by handle has a full name as well.
    people = [match for word in dict.fromkeys(all_words) if (match := _HANDLE.fullmatch(word))]
    full = [" ".join(map(str.capitalize, match.groups())) for match in people]
    phrases = [*_CAPITALIZED.findall(text), *full]
    protected = {phrase for phrase in phrases if names.side_of_name(phrase) == 1}
    words = dict.fromkeys(word for word in [*all_words, *" ".join(full).split()] if word.istitle())
    table: dict[str, str] = {}
    for word in words:
        match = _INVENTED.fullmatch(word.lower())
        if match is not None and match[0] not in _ENGLISH:
            containing = [phrase for phrase in protected if word in phrase.split()]
            new = _new_word(match, containing, table, rng)
            if new is not None:
                table[word.lower()] = new
    for phrase in phrases:  # a handle is the first and last name without a space
        parts = phrase.lower().split()
        if len(parts) == 2 and all(part in table for part in parts):
            table["".join(parts)] = "".join(table[part] for part in parts)

    def swap(match: re.Match[str]) -> str:
        word = match[0]
        new = table.get(word.lower())
        if new is None:
            return word
        return new.capitalize() if word[0].isupper() else new

    return map_texts(episode, lambda text: _WORD.sub(swap, text))


def _new_word(
    match: re.Match[str], phrases: list[str], table: dict[str, str], rng: random.Random
) -> str | None:
    """Draw a word that keeps its `phrases` on the training side, or None after `_TRIES` draws."""
    old = match[0]
    count = len(re.findall(_SYLLABLE, match["stem"]))
    for _ in range(_TRIES):
        new = "".join(rng.choice(names._SYLLABLES) for _ in range(count)) + match["ending"]
        known = {**table, old: new}
        changed = (
            " ".join(known.get(word.lower(), word.lower()).capitalize() for word in phrase.split())
            for phrase in phrases
        )
        nouns = (new.capitalize(), *changed)
        if new not in table.values() and all(names.side_of_name(noun) == 1 for noun in nouns):
            return new
    return None


# ---- numbers --------------------------------------------------------------------------------


def replace_numbers(episode: RecordedEpisode, rng: random.Random) -> RecordedEpisode:
    """Replace the digits of all numbers that the goal, a typed text or the answer contains.

    The values of a few dozen worlds could be memorized; replaced values must be read from the page.
    """
    typed = " ".join(found[1] for turn in episode.turns for found in _TEXT.finditer(turn.reply))
    table: dict[str, str] = {}
    for number in dict.fromkeys(_NUMBER.findall(" ".join((*episode.goals, typed)))):
        new = "".join(
            rng.choice("123456789" if index == 0 else "0123456789") if digit.isdigit() else digit
            for index, digit in enumerate(number)
        )
        if new not in table.values():
            table[number] = new
    if not table:
        return episode
    return map_texts(episode, lambda text: _ID_OR_NUMBER.sub(lambda m: table.get(m[0], m[0]), text))


def replace_codes(episode: RecordedEpisode, rng: random.Random) -> RecordedEpisode:
    """Replace the letters and digits of every code."""
    table: dict[str, str] = {}
    for code in sorted({code for text in all_texts(episode) for code in _CODE.findall(text)}):
        new = ""
        while not new or new in table.values():
            new = "".join(
                rng.choice(_LETTERS) if character.isalpha()
                else rng.choice("23456789") if character.isdigit()
                else character
                for character in code
            )  # fmt: skip
        table[code] = new
    return map_texts(episode, lambda text: _CODE.sub(lambda match: table[match[0]], text))


def replace_seed(episode: RecordedEpisode, rng: random.Random) -> RecordedEpisode:
    """Replace the seed in the addresses of MiniWoB++ pages, by which an episode could be told."""
    seed = f"seed={rng.randrange(10 ** rng.randint(1, 7))}-{rng.randrange(2)}"
    return map_texts(episode, lambda text: _SEED.sub(seed, text))


def renumber_elements(episode: RecordedEpisode, rng: random.Random) -> RecordedEpisode:
    """Draw new ids for the elements of each page, still increasing in reading order."""

    def turn(old: RecordedTurn) -> RecordedTurn:
        ids = sorted({node.id for node in old.page.nodes if node.id is not None})
        end = max(200, len(ids) + 1)
        new = dict(zip(ids, sorted(rng.sample(range(1, end), len(ids))), strict=True))
        nodes = tuple(
            node if node.id is None else replace(node, id=new[node.id]) for node in old.page.nodes
        )

        def number(match: re.Match[str]) -> str:
            return f"```{match['verb']} [{new[int(match['id'])]}]"

        return replace(old, page=replace(old.page, nodes=nodes), reply=_ID.sub(number, old.reply))

    return replace(episode, turns=tuple(map(turn, episode.turns)))


# ---- elements -------------------------------------------------------------------------------


def drop_elements(episode: RecordedEpisode, rng: random.Random, *, share: float) -> RecordedEpisode:
    """Drop about `share` of the nodes that share no word with goals and replies.

    The neighbors of the other nodes stay, because they may hold a label or a value.
    """
    text = "\n".join([*episode.goals, *(turn.reply for turn in episode.turns)])
    return _without(episode, rng, text, share=share, before=2, after=3)


def keep_needed(episode: RecordedEpisode, rng: random.Random, *, share: float) -> RecordedEpisode:
    """Drop about `share` of the nodes that no reply needs: more than `drop_elements` does.

    What is acted on stays, what shares a word with the goal or with a text that is typed or
    answered, and the node before and after each of these.
    """
    written = (_TEXT.search(turn.reply) for turn in episode.turns)
    text = "\n".join([episode.goal, *(found[1] or "" for found in written if found)])
    return _without(episode, rng, text, share=share, before=1, after=1)


def _without(
    episode: RecordedEpisode,
    rng: random.Random,
    text: str,
    *,
    share: float,
    before: int,
    after: int,
) -> RecordedEpisode:
    """Drop about `share` of the nodes that share no word with `text` and are not near one that
    does or is acted on."""
    words = {word for word in re.findall(r"\w{3,}|\d+", text.lower())} - _COMMON

    def turn(old: RecordedTurn) -> RecordedTurn:
        nodes = old.page.nodes
        acted = _ID.search(old.reply)
        relevant = [
            index
            for index, node in enumerate(nodes)
            if (acted and node.id == int(acted["id"]))
            or words & set(re.findall(r"\w{3,}|\d+", f"{node.name} {node.value}".lower()))
        ]
        safe = {near for index in relevant for near in range(index - before, index + after + 1)}
        kept = tuple(
            node for index, node in enumerate(nodes) if index in safe or rng.random() >= share
        )
        return replace(old, page=replace(old.page, nodes=kept))

    return replace(episode, turns=tuple(map(turn, episode.turns)))


_COMMON = set(
    "link button textbox combobox checkbox click type stop done from the and its for with that "
    "this are".split()
)
