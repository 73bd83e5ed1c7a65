"""Annotation of replies with notes and quotations, written with the whole episode in view.

A recorded solution has the actions but does not know which facts later steps need. The annotation
does, and adds lines before the action:

    read Bribury: Founded | 1241        a note: a line of this page that a later step needs
    for Bribury, Mirdalmere | , Elford  the goal: the last item, the current one | the next words
    at Search the wiki                  the element
    ```type [2] [Mirdalmere] [1]```

A step that types or answers noted facts quotes the notes in order, with the words of the goal
between their subjects:

    from Bribury: Founded | 1241; Bribury, Mirdalmere: Founded | 1302

Text that comes from the goal is quoted as it is. The model thus finds the next item by continuing
the goal and a fact by continuing a note. Both are copying, which a small model does well.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from agentkv.dialog.quotes import ITEM_WORDS, MAX_NOTES, WORDS_AHEAD
from agentkv.dialog.reply import label, write_reply
from agentkv_env.actions import Action, extract, parse
from agentkv_env.page import Node, Page
from agentkv_env.serialize import neutralize
from train_nano.episode import RecordedEpisode
from train_nano.passages import Passage, find_passages

_WORDS_BEFORE = 3
"""Number of words quoted before an item of the goal that is not close to the last item."""
_CLOSE = 100
"""Maximum characters from the start of the last item to the end of the next for quoting both."""
_LONG = 60
"""Length in characters above which only the first words of an item are quoted."""
_LEAVING_ACTIONS = ("go_back", "tab_focus")
_PUNCTUATION = ":,.;!? "

Span = tuple[int, int]
"""Start and end of an item in the goal, in characters."""


def annotate(episode: RecordedEpisode) -> RecordedEpisode:
    """Rewrite the lines before the action in every reply; the actions stay the same."""
    goal = neutralize(episode.goal)
    actions = [parse(extract(turn.reply)) for turn in episode.turns]
    pages = [turn.page for turn in episode.turns]
    counts = [turn.counts for turn in episode.turns]
    spans = _find_goal_spans(goal, actions, pages, counts)
    subjects = [_find_note_subject(goal, span) for span in (None, *spans[:-1])]
    needed = find_passages(goal, actions, pages, _rate_pages(actions, pages, counts, spans))
    notes: dict[int, dict[str, None]] = {}
    for index, passages in enumerate(needed):
        for passage in passages:
            if passage.turn is not None and passage.turn < index:
                subject = goal[slice(*subjects[passage.turn])]
                notes.setdefault(passage.turn, {})[f"{subject}: {passage.line}"] = None
    turns, last = [], None
    for index, turn in enumerate(episode.turns):
        lines = [f"read {note}" for note in list(notes.get(index, ()))[:MAX_NOTES]]
        span = spans[index]
        if turn.counts and span is not None and span != last:
            lines.append(f"for {_quote_goal(goal, last, span)}")
            last = span
        is_option = _is_option(actions[index], turn.page)
        quotes = [] if is_option else _quote_passages(goal, index, needed[index], subjects)
        lines.append(write_reply(actions[index], turn.page, quote="; ".join(quotes)))
        turns.append(replace(turn, reply="\n".join(lines)))
    return replace(episode, turns=tuple(turns))


def _is_option(action: Action, page: Page) -> bool:
    """Return whether the typed text is an option of the element, which needs no quotation."""
    node = None if action.element_id is None else page.element(action.element_id)
    return node is not None and bool(node.options)


# ---- the part of the goal that a step works on ------------------------------------------------


def _find_goal_spans(
    goal: str, actions: Sequence[Action], pages: Sequence[Page], counts: Sequence[bool]
) -> list[Span | None]:
    """Find the item of the goal that each step works on.

    A step that only leads elsewhere belongs to the item that the following steps name.
    """
    targets: list[Span | None] = []
    after = 0
    for action, page in zip(actions, pages, strict=True):
        targets.append(_find_target(goal, action, page, after))
        after = (targets[-1] or (after, 0))[0]
    spans: list[Span | None] = []
    for index, span in enumerate(targets):
        if span is None:
            span = spans[-1] if spans else None
            was_mistake = index and not counts[index - 1]
            if counts[index] and not was_mistake and _leaves(index, actions, pages):
                ahead = _targets_until_arrival(index, actions, pages, targets)
                span = next((target for target in ahead if target), span)
        spans.append(span if counts[index] else (spans[-1] if spans else None))
    return spans


def _targets_until_arrival(
    index: int,
    actions: Sequence[Action],
    pages: Sequence[Page],
    targets: Sequence[Span | None],
) -> list[Span | None]:
    """Return the targets after step `index`, up to the first step that does not only leave."""
    ahead = index + 1
    while ahead < len(actions) - 1 and targets[ahead] is None and _leaves(ahead, actions, pages):
        ahead += 1
    return list(targets[index + 1 : ahead + 1])


def _leaves(index: int, actions: Sequence[Action], pages: Sequence[Page]) -> bool:
    """Return whether step `index` only leads to another page, tab or site."""
    if actions[index].kind in _LEAVING_ACTIONS:
        return True
    following = pages[index + 1].url if index + 1 < len(pages) else pages[index].url
    return actions[index].kind == "click" and _host(following) != _host(pages[index].url)


def _host(url: str) -> str:
    return "/".join(url.split("/")[:3])


def _find_target(goal: str, action: Action, page: Page, after: int) -> Span | None:
    """Find the typed text or the element of `action` in the goal, preferably from `after` on."""
    if action.kind == "type" and (
        span := _find(goal, neutralize(action.text), after, anywhere=True)
    ):
        return span
    node = None if action.element_id is None else page.element(action.element_id)
    if node is None:
        return None
    for part, anywhere in _label_parts(node, page):
        if len(part) >= 4 and part != "Search":
            span = _find(goal, part, after, anywhere=anywhere)
            if span is not None:
                return span
    return None


def _label_parts(node: Node, page: Page) -> Iterator[tuple[str, bool]]:
    """Yield parts of the label of `node`, the best first, and whether each may be anywhere.

    `Edit Red Kayak` and `Order 3315` stand for a kayak and a number more than for their first word,
    which goals often replace by another.
    """
    words = label(node).split()
    yield " ".join(words).strip(_PUNCTUATION), len(words) > 1
    others = {label(other) for other in page.nodes if other.id is not None}
    for rest in (" ".join(words[count:]) for count in range(1, len(words))):
        if rest in others or rest.isdecimal():
            yield rest, True
    for count in range(len(words) - 1, 0, -1):
        yield " ".join(words[:count]).strip(_PUNCTUATION), False


def _find(goal: str, text: str, after: int, *, anywhere: bool) -> Span | None:
    if not text:
        return None
    spans = [
        match.span()
        for match in re.finditer(rf"(?<!\w){re.escape(text)}(?!\w)", goal, re.IGNORECASE)
    ]
    ahead = [span for span in spans if span[0] >= after]
    return (ahead or (spans if anywhere else []) or [None])[0]


def _quote_goal(goal: str, last: Span | None, span: Span) -> str:
    """Quote the goal up to the end of `span`, then ` | ` and the next words.

    The quotation starts at `last` if `last` is close, else a few words before `span`.
    """
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
    """Return whether a quotation that ends with `span` starts at `last`."""
    return last[0] < span[0] and span[1] - last[0] <= _CLOSE


def _find_note_subject(goal: str, span: Span | None) -> Span:
    """Return the span of a note's subject: the start of the item, or of the goal without one."""
    start, end = span or (0, len(goal))
    subject = " ".join(goal[start:end].split()[:ITEM_WORDS]).rstrip(",.;:")
    return start, start + len(subject)


def _quote_passages(
    goal: str, index: int, passages: Sequence[Passage], subjects: Sequence[Span]
) -> list[str]:
    """Quote the `passages` of step `index`.

    A noted passage starts with the goal from the subject of the previous note, if that is close.
    """
    quotes: list[str] = []
    last: Span | None = None
    for passage in passages:
        if passage.turn is None or passage.turn == index:
            quotes.append(passage.line)
        else:
            subject = subjects[passage.turn]
            begin = last[0] if last is not None and _is_close(last, subject) else subject[0]
            quotes.append(f"{goal[begin : subject[1]]}: {passage.line}")
            last = subject
    return quotes


# ---- the purpose of a page ----------------------------------------------------------------------


def _rate_pages(
    actions: Sequence[Action],
    pages: Sequence[Page],
    counts: Sequence[bool],
    spans: Sequence[Span | None],
) -> list[int]:
    """Rate how likely each page was opened to be read.

    The rating is 2 if the step on the page moves on to something else, 1 if it acts on the page and
    0 if its reply is not trained on.
    """
    return [
        counts[index]
        * (
            2
            if index + 1 == len(pages)
            or spans[index] != (spans[index - 1] if index else None)
            or _leaves(index, actions, pages)
            else 1
        )
        for index in range(len(pages))
    ]
