"""One after the other is opened until one fits: what was compared, and which was looked at last."""

import re
from collections.abc import Container, Sequence

from agentkv.models.scripted import MOST_WORDS_BEFORE, label
from agentkv_env.actions import Action
from agentkv_env.page import Page
from agentkv_env.serialize import MAX_NAME, neutral

_STRIP = ".,:;!?\"'()"


def compared(
    goal: str,
    actions: Sequence[Action],
    pages: Sequence[Page],
    counts: Sequence[bool],
    *,
    free: Container[int],
) -> tuple[dict[int, str], dict[int, str]]:
    """By step: what of a candidate's page says whether it is the one; what was opened before it.

    A candidate is opened from a list that a `go_back` returns to. What the one that is kept says
    and the goal wants is looked up on the others behind the same words.

    Args:
        free: steps whose pages were read for something else.
    """
    seen: dict[int, str] = {}
    after: dict[int, str] = {}
    index = 1
    while index + 1 < len(actions):
        group = [index]
        while _returns(group[-1], actions, pages, counts):
            group.append(group[-1] + 2)
        for back in group[:-1]:
            opened, following = (_clicked(at, actions, pages) for at in (back - 1, back + 1))
            if opened != following and "..." not in opened:
                after[back + 1] = opened
        if len(group) > 1 and group[-1] < len(pages) and not any(at in free for at in group):
            seen |= _looked_up(goal, {at: pages[at] for at in group})
        index = group[-1] + 1
    return seen, after


def _returns(
    index: int, actions: Sequence[Action], pages: Sequence[Page], counts: Sequence[bool]
) -> bool:
    """Whether step `index` goes back to the list it was opened from, to open another."""
    return (
        0 < index < len(actions) - 1
        and actions[index].kind == "go_back"
        and actions[index - 1].kind == actions[index + 1].kind == "click"
        and pages[index - 1].url == pages[index + 1].url
        and all(counts[index - 1 : index + 2])
    )


def _clicked(index: int, actions: Sequence[Action], pages: Sequence[Page]) -> str:
    id = actions[index].element_id
    node = None if id is None else pages[index].element(id)
    return "" if node is None else label(node)


def _looked_up(goal: str, candidates: dict[int, Page]) -> dict[int, str]:
    """On each page, the words the last one's match stands behind, and what stands there."""
    lines = {at: [neutral(node.name) for node in page.nodes] for at, page in candidates.items()}
    *others, kept = lines
    wanted = {word.strip(_STRIP) for word in goal.split()}
    elsewhere = " ".join(name for at in others for name in lines[at])
    for above, name in zip(["", *lines[kept]], lines[kept], strict=False):
        words = name.split()
        for count, word in enumerate(words):
            one = word.strip(_STRIP)
            if len(one) < 4 or one not in wanted or one in elsewhere or len(name) > MAX_NAME:
                continue
            key = words[max(0, count - MOST_WORDS_BEFORE) : count]
            pattern = re.compile(
                rf"(?<!\S){re.escape(' '.join(key))} (\S+)" if key else r"^(\S+)(?:$| )"
            )
            found = {at: _behind(pattern, "" if key else above, lines[at]) for at in lines}
            return {at: line for at, line in found.items() if line}
    return {}


def _behind(pattern: re.Pattern[str], above: str, lines: Sequence[str]) -> str:
    """The first of `lines` that has the pattern, and stands below `above` if that is given."""
    for previous, line in zip(["", *lines], lines, strict=False):
        match = pattern.search(line)
        if match is not None and (not above or previous == above):
            return f"{above}; {match[0].strip()}" if above else match[0].strip()
    return ""
