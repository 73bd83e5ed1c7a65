"""What a reply says before it acts, written with the whole episode in view.

A solution knows what to do, not what will matter later; here both ends are at hand. A reply may say

    about when these towns were founded: Bribury, Mirdalmere, Elford    what was asked of this page
    read Founded | 1241 = Bribury: 1241      what a later step needs, and what it is remembered by
    for Bribury, Mirdalmere | , Elford       the goal: done last, begun, what is next
    at Search the wiki
    ```type [2] [Mirdalmere] [1]```

and `from Bribury: 1241; ...` where what was noted is typed or answered. So finding the next thing
to do is going on with the goal, and finding a fact is going on with a note: copying, which is what
a small model does well, best where one token stands between what is looked for and what follows.

`see` says what tells one of several from the others, `after` which of them was opened last.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from agentkv.models.scripted import spoken
from agentkv.quotes import ITEM_WORDS, MAX_NOTES, WORDS_AHEAD
from agentkv_env.actions import Action, extract, parse
from agentkv_env.page import Page
from agentkv_env.serialize import neutral
from nano.candidates import compared
from nano.episode import Episode
from nano.goal import Span, begun_at, leaves
from nano.passages import Passage, key_of, needed, said_above

_WORDS_BEFORE = 3
"""Of the goal, quoted before something that does not follow closely on what was done last."""
_CLOSE = 100
"""Characters from the last thing's beginning to the next one's end that are quoted whole."""
_LONG = 60
"""Characters of a thing in the goal, beyond which only its first words are quoted."""
_ABOUT = 120
"""Characters from a sentence's beginning to a thing, and from there to its end, beyond which only
some words are quoted to say what is asked about it."""
_AT_LEAST = 30
"""Characters after a thing that are quoted with it then, before the next pause."""
_SENTENCE = re.compile(r"[.?!] ")
_PAUSE = re.compile(r"[.,;:?!](?= |$)")
_QUESTION = 320
"""Characters of the goal's end that are quoted before an answer."""


def annotated(episode: Episode) -> Episode:
    """`episode` with the same actions and every reply's first lines written anew."""
    goal = neutral(episode.goal)
    actions = [parse(extract(turn.reply)) for turn in episode.turns]
    pages = [turn.page for turn in episode.turns]
    counts = [turn.counts for turn in episode.turns]
    begun = begun_at(goal, actions, pages, counts)
    at_hand = [None, *begun[:-1]]
    passages = needed(goal, actions, pages, _reads(actions, pages, counts, begun))
    notes = _notes(goal, at_hand, passages)
    noted: dict[int, list[str]] = {}
    for passage, note in notes.items():
        noted.setdefault(passage.turn, []).append(f"read {passage.quote} = {note}")
    seen, after = compared(goal, actions, pages, counts, free=set(noted))
    turns, last = [], None
    for index, turn in enumerate(episode.turns):
        action, span = actions[index], begun[index]
        lines = noted.get(index, [])[:MAX_NOTES]
        if not lines and (sight := seen.get(index) or _sight(goal, action, turn.page)):
            lines = [f"see {sight}"]
        is_begun = turn.counts and span is not None and span != last
        quotes = () if _is_chosen(action, turn.page) else passages[index]
        said = [notes[passage] if passage.turn < index else passage.quote for passage in quotes]
        if lines or (said and not is_begun):
            is_answer = action.kind == "stop" and not lines
            asked = _question(goal) if is_answer else _about(goal, at_hand[index])
            lines.insert(0, f"about {asked}")
        if is_begun and span is not None:
            lines.append(f"for {_quote(goal, last, span)}")
            last = span
        if index in after:
            lines.append(f"after {after[index]}")
        lines.append(spoken(action, turn.page, quote="; ".join(dict.fromkeys(said))))
        turns.append(replace(turn, reply="\n".join(lines)))
    return replace(episode, turns=tuple(turns))


def _sight(goal: str, action: Action, page: Page) -> str:
    """What says what a link leads to that the goal does not name: `Twin town`, above the town."""
    for at, node in enumerate(page.nodes):
        if node.id is not None and node.id == action.element_id:
            named = neutral(node.name).lower() in goal.lower()
            is_link = action.kind == "click" and node.role == "link"
            return said_above(page, at, goal) if is_link and not named else ""
    return ""


def _is_chosen(action: Action, page: Page) -> bool:
    """Whether what is typed is one of the element's options, which needs no quotation."""
    node = None if action.element_id is None else page.element(action.element_id)
    return node is not None and bool(node.options)


def _reads(
    actions: Sequence[Action],
    pages: Sequence[Page],
    counts: Sequence[bool],
    begun: Sequence[Span | None],
) -> list[int]:
    """How much each page was there to be read: 2 where the step on it moves on, 1 where it does
    something there, 0 where it is not learnt."""
    return [
        counts[index]
        * (
            2
            if index + 1 == len(pages)
            or begun[index] != (begun[index - 1] if index else None)
            or leaves(index, actions, pages)
            else 1
        )
        for index in range(len(pages))
    ]


def _notes(
    goal: str, at_hand: Sequence[Span | None], passages: Sequence[Sequence[Passage]]
) -> dict[Passage, str]:
    """What each passage that a later step needs is remembered as, in the order of need.

    By the name of what it is of, or how the goal begins; where several would have one name, by the
    key on its line, if the goal has it.
    """
    later = [
        passage for index, found in enumerate(passages) for passage in found if passage.turn < index
    ]
    items = {passage: _item(goal, at_hand[passage.turn]) for passage in later}
    notes = {}
    for passage, item in items.items():
        facts = {other.text for other, name in items.items() if name == item}
        key = _words_in(goal, key_of(passage), item) if len(facts) > 1 else ""
        notes[passage] = f"{key or item}: {passage.text}"
    return notes


# ---- quoting the goal -------------------------------------------------------------------------


def _quote(goal: str, last: Span | None, span: Span) -> str:
    """The goal up to where `span` ends, from `last` on if that is close before it; what follows."""
    start, end = span
    rest = " ".join(goal[end:].split()[:WORDS_AHEAD])
    if end - start > _LONG:
        end = goal.find(" ", start + _LONG // 2, end)
        end = span[1] if end < 0 else end
    if last is not None and last[0] < start and end - last[0] <= _CLOSE:
        begin = last[0]
    else:
        before = " ".join(goal[:start].split()[-_WORDS_BEFORE:])
        begin = goal.rindex(before, 0, start)
    return f"{goal[begin:end]} | {rest}".rstrip()


def _about(goal: str, span: Span | None) -> str:
    """What the goal says around `span`, from where its sentence begins."""
    start, end = span or (0, 0)
    begin = max((match.end() for match in _SENTENCE.finditer(goal, 0, start)), default=0)
    if start - begin > _ABOUT:
        begin = goal.rindex(" ".join(goal[:start].split()[-_WORDS_BEFORE:]), 0, start)
    stop = _SENTENCE.search(goal, end, end + _ABOUT) or _PAUSE.search(goal, end + _AT_LEAST)
    return goal[begin : stop.start() if stop else len(goal)].rstrip()


def _question(goal: str) -> str:
    """The last sentences of the goal."""
    most = len(goal) - _QUESTION
    if most <= 0:
        return goal
    first = _SENTENCE.search(goal, most)
    return goal[first.end() if first else goal.find(" ", most) + 1 :]


def _item(goal: str, span: Span | None) -> str:
    """The name of what `span` is about, or how the goal begins."""
    about = goal if span is None else goal[slice(*span)]
    return " ".join(about.split()[:ITEM_WORDS]).rstrip(",.;:")


def _words_in(goal: str, key: str, but: str) -> str:
    """The most words in a row of `key`, none of `but`, that the goal has too, as it writes them."""
    words = [word for word in key.split() if word not in but]
    for count in range(min(len(words), ITEM_WORDS), 0, -1):
        for start in range(len(words) - count, -1, -1):
            phrase = " ".join(words[start : start + count])
            found = re.search(rf"(?<!\w){re.escape(phrase)}(?!\w)", goal, re.IGNORECASE)
            if found and len(phrase) > 3:
                return found[0]
    return ""
