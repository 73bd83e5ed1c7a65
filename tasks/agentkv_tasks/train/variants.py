"""Variants of recordings: the same episode with other texts, so that a model learns to copy them.

A few episodes are soon learned by heart. What a model should learn is where the texts of a reply
stand: in the goal, or on a page. A variant puts other texts there and into the reply.
"""

import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from agentkv.dialog.reply import label
from agentkv.recordings import RecordedStep, Recording
from agentkv_env.actions import Action, ActionError, extract, parse, render
from agentkv_env.named_secrets import names_in
from agentkv_env.page import Node, Page

_PART = re.compile(r"[^\W\d_]{3,}|\d{2,}")
"""What is replaced in a text that nothing on its page can take the place of: words, and numbers.
Single digits are mostly counts."""
_DIGITS = "0123456789"


def variants(recording: Recording, count: int, *, seed: int) -> Iterator[Recording]:
    """Yield variants of a recording, all of them different from it and from each other.

    In each of them, every text that a reply takes from elsewhere has another one in its place,
    throughout the goal, the pages and the replies: the name of an element that the goal has, and a
    typed or answered text that the goal or a page has. It changes places with another option of its
    list, or with the name of another element of its role on its page. A text without such a
    neighbor gets other words, which stand on the pages, and other digits. An element that the goal
    names also changes places on its page with another one of its role. A goal that compares values,
    such as "the cheapest", may be wrong afterwards (our choice; nano was trained on variants of
    this kind).

    Args:
        count: how many there are at most; a recording whose replies take nothing has none.
    """
    known = {recording}
    for number in range(count):
        rng = random.Random(f"{seed}/{recording.key}/{number}")
        steps = tuple(_moved(step, recording.goal, rng) for step in recording.steps)
        made = _changed(replace(recording, steps=steps), rng)
        if made not in known:
            known.add(made)
            yield replace(made, key=f"{recording.key} variant {number}")


@dataclass(frozen=True, slots=True)
class _Taken:
    """A text that a reply takes from elsewhere, and what may change places with it."""

    text: str
    neighbors: tuple[str, ...]


def _moved(step: RecordedStep, goal: str, rng: random.Random) -> RecordedStep:
    """Return a step whose element, if the goal names it, has changed places with another one of its
    role."""
    action, node = _acted_on(step)
    if action is None or node is None or not _is_named(node, goal):
        return step
    other = rng.choice([each for each in step.page.nodes if _is_like(each, node)])
    at = {node.id: other, other.id: node}
    nodes = tuple(
        replace(at[each.id], id=each.id, box=each.box, cell=each.cell) if each.id in at else each
        for each in step.page.nodes
    )
    lines = step.reply.partition("```")[0]
    reply = f"{lines}```{render(replace(action, element_id=other.id))}```"
    return replace(step, page=replace(step.page, nodes=nodes), reply=reply)


def _acted_on(step: RecordedStep) -> tuple[Action | None, Node | None]:
    """Return the action of a step that counts and the element that it acts on, or None."""
    if not step.counts:
        return None, None
    action = parse(extract(step.reply, strict=False), strict=False)
    node = None if action.element_id is None else step.page.element(action.element_id)
    return action, node


def _is_named(node: Node, goal: str) -> bool:
    """Return whether a goal has the name of an element, as pages show it, after its first words:
    these say what to do, such as "Close"."""
    return label(node) == node.name and _has(goal[1:], node.name)


def _changed(recording: Recording, rng: random.Random) -> Recording:
    """Return a recording with other texts."""
    written = [recording.goal, *(step.reply for step in recording.steps)]
    table: dict[str, str] = {}
    taken = sorted(_taken(recording), key=lambda each: -len(each.text))
    words = _words(recording.steps, written)
    for each in taken:
        if any(_has(text, each.text) or _has(each.text, text) for text in table):
            continue  # a part of another text, or the same
        others = [
            other
            for other in dict.fromkeys(each.neighbors)
            if other.strip()
            and not any(_has(text, other) for text in [*written, *table])
            and not _has(other, each.text)
        ]
        if others:
            other = rng.choice([each.text, *others])
            table |= {each.text: other, other: each.text}
        else:
            table[each.text] = _rewritten(each.text, words, rng)
    change = _changer(table)
    steps = tuple(_step(step, change) for step in recording.steps)
    return replace(recording, goal=change(recording.goal), steps=steps)


def _taken(recording: Recording) -> Iterator[_Taken]:
    """Yield the texts that counted replies take from the goal or a page."""
    goal, pages = recording.goal, list[Page]()
    for step in recording.steps:
        pages.append(step.page)
        action, node = _acted_on(step)
        if action is None:
            continue
        if node is not None and _is_named(node, goal):
            alike = (each.name for each in step.page.nodes if _is_like(each, node))
            yield _Taken(node.name, tuple(alike))
        for text in (action.text, action.answer, *action.items):
            # a secret is never shown, and its name says which one it is
            is_open = text.strip() and not names_in(text)
            if is_open and any(_has(each, text) for each in (goal, *_texts(pages))):
                yield _Taken(text, () if node is None else node.options)


def _is_like(node: Node, other: Node) -> bool:
    return node.id is not None and node.role == other.role and label(node) == node.name


def _has(text: str, part: str) -> bool:
    """Return whether a text has a part as whole words."""
    return re.search(_whole([part]), text) is not None


def _whole(parts: Iterable[str]) -> str:
    """Return the pattern of whole words that are one of some texts, the longest that fits."""
    longest_first = sorted(parts, key=len, reverse=True)
    return rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)"


def _words(steps: Sequence[RecordedStep], written: Sequence[str]) -> list[str]:
    """Return the words of the pages that neither the goal nor a reply has."""
    found = (_PART.findall(text) for text in _texts([step.page for step in steps]))
    used = set(_PART.findall(" ".join(written)))
    return sorted({word for words in found for word in words if word.isalpha()} - used)


def _rewritten(text: str, words: Sequence[str], rng: random.Random) -> str:
    """Return a text with other digits, and other words that begin in the same case."""

    def other(match: re.Match[str]) -> str:
        part = match[0]
        if part.isdigit():
            return rng.choice(_DIGITS[1:]) + "".join(rng.choices(_DIGITS, k=len(part) - 1))
        alike = [word for word in words if word[0].isupper() == part[0].isupper()]
        return rng.choice(alike) if alike else part

    return _PART.sub(other, text)


def _changer(table: dict[str, str]) -> Callable[[str], str]:
    """Return the function that replaces texts as a table says."""
    if not table:
        return str
    pattern = re.compile(_whole(table))
    return lambda text: pattern.sub(lambda match: table[match[0]], text)


def _step(step: RecordedStep, change: Callable[[str], str]) -> RecordedStep:
    return replace(
        step,
        page=_mapped(step.page, change),
        reply=_reply(step.reply, change),
        note=change(step.note),
    )


def _reply(reply: str, change: Callable[[str], str]) -> str:
    """Return a reply with other texts, and with the same verb and element."""
    lines = change(reply.partition("```")[0])
    try:
        action = parse(extract(reply, strict=False), strict=False)
    except ActionError:  # one that failed, and that no model learns
        return reply
    changed = replace(
        action,
        text=change(action.text),
        answer=change(action.answer),
        before=change(action.before),
        last=change(action.last),
        items=tuple(map(change, action.items)),
    )
    return f"{lines}```{render(changed)}```"


def _mapped(page: Page, change: Callable[[str], str]) -> Page:
    """Return a page with other texts at the same address."""
    nodes = tuple(
        replace(
            node,
            name=change(node.name),
            value=change(node.value),
            options=tuple(map(change, node.options)),
            reveals=tuple(map(change, node.reveals)),
            cells=tuple(map(change, node.cells)),
        )
        for node in page.nodes
    )
    return replace(
        page,
        title=change(page.title),
        nodes=nodes,
        tabs=tuple(map(change, page.tabs)),
        notices=tuple(map(change, page.notices)),
    )


def _texts(pages: Iterable[Page]) -> Iterator[str]:
    """Yield the texts of pages."""
    for page in pages:
        for node in page.nodes:
            yield from (node.name, node.value, *node.options)
