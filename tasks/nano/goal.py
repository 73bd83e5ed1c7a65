"""Which part of the goal each step of an episode works on."""

import re
from collections.abc import Sequence

from agentkv.models.scripted import label
from agentkv_env.actions import Action
from agentkv_env.page import Page
from agentkv_env.serialize import neutral

_ELSEWHERE = ("go_back", "tab_focus")

Span = tuple[int, int]
"""Where something stands in the goal."""


def begun_at(
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
            if counts[index] and not strayed and leaves(index, actions, pages):
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
    while ahead < len(actions) - 1 and named[ahead] is None and leaves(ahead, actions, pages):
        ahead += 1
    return list(named[index + 1 : ahead + 1])


def leaves(index: int, actions: Sequence[Action], pages: Sequence[Page]) -> bool:
    """Whether step `index` is only a way to somewhere else."""
    if actions[index].kind in _ELSEWHERE:
        return True
    following = pages[index + 1].url if index + 1 < len(pages) else pages[index].url
    return actions[index].kind == "click" and _host(following) != _host(pages[index].url)


def _host(url: str) -> str:
    return "/".join(url.split("/")[:3])


def _named(goal: str, action: Action, page: Page, after: int) -> Span | None:
    """Where the goal speaks of what `action` types or acts on, from `after` on if it does."""
    if action.kind == "type" and (span := _find(goal, neutral(action.text), after, anywhere=True)):
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
