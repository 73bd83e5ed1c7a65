"""What a reply says before it acts, written with the whole episode in view.

A solution knows what to do, not what will matter later; here both ends are at hand. A reply may say

    read Bribury: Founded | 1241        what of this page a later step needs, with what it is of
    for Bribury, Mirdalmere | , Elford  the goal: what was done last, what is begun, what is next
    at Search the wiki
    ```type [2] [Mirdalmere] [1]```

and where what was noted is typed or answered, one after the other with the goal between them

    from Bribury: Founded | 1241; Bribury, Mirdalmere: Founded | 1302

and what the goal says of such a text as it is there. So finding the next thing to do is going on
with the goal, and finding a fact is going on with a note: copying, which is what a small model does
well.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from agentkv.dialog.quotes import ITEM_WORDS, MAX_NOTES, WORDS_AHEAD
from agentkv.dialog.reply import label, write_reply
from agentkv_env.actions import Action, extract, parse
from agentkv_env.page import Page
from agentkv_env.serialize import neutralize
from train_nano.episode import Episode
from train_nano.passages import Passage, needed_by

_WORDS_BEFORE = 3
"""Of the goal, quoted before something that does not follow closely on what was done last."""
_CLOSE = 100
"""Characters from the last thing's beginning to the next one's end that are quoted whole."""
_LONG = 60
"""Characters of a thing in the goal, beyond which only its first words are quoted."""
_ELSEWHERE = ("go_back", "tab_focus")

Span = tuple[int, int]
"""Where something stands in the goal."""


def annotated(episode: Episode) -> Episode:
    """`episode` with the same actions and every reply's first lines written anew."""
    goal = neutralize(episode.goal)
    actions = [parse(extract(turn.reply)) for turn in episode.turns]
    pages = [turn.page for turn in episode.turns]
    counts = [turn.counts for turn in episode.turns]
    begun = _begun(goal, actions, pages, counts)
    at_hand = [_item(goal, span) for span in (None, *begun[:-1])]
    needed = needed_by(goal, actions, pages, _reads(actions, pages, counts, begun))
    notes: dict[int, dict[str, None]] = {}
    for index, passages in enumerate(needed):
        for passage in passages:
            if passage.turn is not None and passage.turn < index:
                item = goal[slice(*at_hand[passage.turn])]
                notes.setdefault(passage.turn, {})[f"{item}: {passage.line}"] = None
    turns, last = [], None
    for index, turn in enumerate(episode.turns):
        lines = [f"read {note}" for note in list(notes.get(index, ()))[:MAX_NOTES]]
        span = begun[index]
        if turn.counts and span is not None and span != last:
            lines.append(f"for {_quote(goal, last, span)}")
            last = span
        is_chosen = _is_chosen(actions[index], turn.page)
        quotes = [] if is_chosen else _quotes(goal, index, needed[index], at_hand)
        lines.append(write_reply(actions[index], turn.page, quote="; ".join(quotes)))
        turns.append(replace(turn, reply="\n".join(lines)))
    return replace(episode, turns=tuple(turns))


def _is_chosen(action: Action, page: Page) -> bool:
    """Whether what is typed is one of the element's options, which needs no quotation."""
    node = None if action.element_id is None else page.element(action.element_id)
    return node is not None and bool(node.options)


# ---- what of the goal a step is about ---------------------------------------------------------


def _begun(
    goal: str, actions: Sequence[Action], pages: Sequence[Page], counts: Sequence[bool]
) -> list[Span | None]:
    """For each step, where what it works on stands in the goal."""
    named: list[Span | None] = []
    after = 0
    for action, page in zip(actions, pages, strict=True):
        named.append(_named(goal, action, page, after))
        after = (named[-1] or (after, 0))[0]
    spans: list[Span | None] = []
    for index, span in enumerate(named):
        if span is None:
            span = spans[-1] if spans else None
            strayed = index and not counts[index - 1]
            if counts[index] and not strayed and _leaves(index, actions, pages):
                span = next((s for s in _until_arrived(index, actions, pages, named) if s), span)
        spans.append(span if counts[index] else (spans[-1] if spans else None))
    return spans


def _until_arrived(
    index: int,
    actions: Sequence[Action],
    pages: Sequence[Page],
    named: Sequence[Span | None],
) -> list[Span | None]:
    """What the steps after `index` name, up to the first that is more than a way elsewhere."""
    ahead = index + 1
    while ahead < len(actions) - 1 and named[ahead] is None and _leaves(ahead, actions, pages):
        ahead += 1
    return list(named[index + 1 : ahead + 1])


def _leaves(index: int, actions: Sequence[Action], pages: Sequence[Page]) -> bool:
    """Whether step `index` is only a way to somewhere else."""
    if actions[index].kind in _ELSEWHERE:
        return True
    following = pages[index + 1].url if index + 1 < len(pages) else pages[index].url
    return actions[index].kind == "click" and _host(following) != _host(pages[index].url)


def _host(url: str) -> str:
    return "/".join(url.split("/")[:3])


def _named(goal: str, action: Action, page: Page, after: int) -> Span | None:
    """Where the goal speaks of what `action` types or acts on, from `after` on if it does."""
    if action.kind == "type" and (
        span := _find(goal, neutralize(action.text), after, anywhere=True)
    ):
        return span
    node = None if action.element_id is None else page.element(action.element_id)
    if node is None:
        return None
    words = label(node).split()
    for count in range(len(words), 0, -1):
        phrase = " ".join(words[:count]).strip(":,.;!? ")
        whole = count == len(words) and count > 1
        if len(phrase) >= 4 and phrase != "Search":
            span = _find(goal, phrase, after, anywhere=whole)
            if span is not None:
                return span
    return None


def _find(goal: str, text: str, after: int, *, anywhere: bool) -> Span | None:
    if not text:
        return None
    spans = [
        match.span()
        for match in re.finditer(rf"(?<!\w){re.escape(text)}(?!\w)", goal, re.IGNORECASE)
    ]
    ahead = [span for span in spans if span[0] >= after]
    return (ahead or (spans if anywhere else []) or [None])[0]


def _quote(goal: str, last: Span | None, span: Span) -> str:
    """The goal up to where `span` ends, from `last` on if that is close before it; what follows."""
    start, end = span
    rest = " ".join(goal[end:].split()[:WORDS_AHEAD])
    if end - start > _LONG:
        end = goal.find(" ", start + _LONG // 2, end)
        end = span[1] if end < 0 else end
    if last is not None and _is_close(last, (start, end)):
        begin = last[0]
    else:
        before = " ".join(goal[:start].split()[-_WORDS_BEFORE:])
        begin = goal.rindex(before, 0, start)
    return f"{goal[begin:end]} | {rest}".rstrip()


def _is_close(last: Span, span: Span) -> bool:
    """Whether the goal is quoted from `last` on where it is quoted up to the end of `span`."""
    return last[0] < span[0] and span[1] - last[0] <= _CLOSE


def _item(goal: str, span: Span | None) -> Span:
    """What a note begins with: the name of what it is of, or how the goal begins."""
    start, end = span or (0, len(goal))
    about = " ".join(goal[start:end].split()[:ITEM_WORDS]).rstrip(",.;:")
    return start, start + len(about)


def _quotes(
    goal: str, index: int, passages: Sequence[Passage], at_hand: Sequence[Span]
) -> list[str]:
    """What step `index` says of its `passages`: what was noted goes on in the goal from what was
    noted and said before it."""
    quotes: list[str] = []
    last: Span | None = None
    for passage in passages:
        if passage.turn is None or passage.turn == index:
            quotes.append(passage.line)
        else:
            item = at_hand[passage.turn]
            begin = last[0] if last is not None and _is_close(last, item) else item[0]
            quotes.append(f"{goal[begin : item[1]]}: {passage.line}")
            last = item
    return quotes


# ---- what a page was there for ----------------------------------------------------------------


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
            or _leaves(index, actions, pages)
            else 1
        )
        for index in range(len(pages))
    ]
