"""Variants of recordings: the same episode with other texts, so that a model learns to copy them.

A few episodes are soon learned by heart. What a model should learn is where the texts of a reply
stand: in the goal, or on a page. A variant puts other texts there and into the reply.
"""

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agentkv.dialog.reply import label, rewritten
from agentkv.recordings import RecordedStep, Recording
from agentkv_env.actions import Action, ActionError, extract, parse, render
from agentkv_env.named_secrets import names_in
from agentkv_env.page import Node, Page

_PART = re.compile(r"[^\W\d_]{3,}|\d{2,}")
"""The words and numbers of a text that others replace if the text has no neighbor on its page.
Single digits are mostly counts."""
_DATE = re.compile(r"\d[-/:]\d")
"""A date or a time: other digits might make none."""
_VERDICTS = frozenset({"yes", "no", "none", "true", "false"})
_LEAST_DIGITS = 3
"""Digits of an answer that is surely read from a page; shorter numbers are often counted."""
_SENTENCE = re.compile(r"(?:^|[.!?:]\s+)$")
_DIGITS = "0123456789"


def variants(recording: Recording, count: int, *, seed: int) -> Iterator[Recording]:
    """Yield variants of a recording, all of them different from it and from each other.

    A variant has other texts where a reply takes one from the goal or a page:

    * An option that the goal has changes places with another option of its list.
    * The name of an element that the goal has changes places with the name of another element of
      its role on its page, and so do the two elements. Names at the beginning of a sentence say
      what to do, and stay.
    * Any other text that is typed and that the goal or a page has, and an answer that a page has,
      gets other words of the pages and other digits. Dates stay.

    The change holds throughout the goal, the pages, the notes and the replies. A goal that wants a
    value to be compared or counted, such as "the cheapest", may be wrong afterwards (our choice;
    nano was trained on variants of this kind).

    Args:
        count: how many there are at most. A recording has none if its replies take nothing, if its
            goal holds an address, or if a reply that counts is not as agentkv itself writes it.
    """
    if "://" in recording.goal or not _is_ours(recording):
        return
    known = {recording}
    for number in range(count):
        rng = random.Random(f"{seed}/{recording.key}/{number}")
        made = _changed(_moved(recording, rng), rng)
        if made not in known and _fits(made, recording):
            known.add(made)
            yield replace(made, key=f"{recording.key} variant {number}")


def _is_ours(recording: Recording) -> bool:
    """Return whether every reply that counts is what `rewritten` makes of its action."""
    return all(
        step.reply == _written(recording, number, _action(step))
        for number, step in enumerate(recording.steps)
        if step.counts
    )


def _action(step: RecordedStep) -> Action:
    return parse(extract(step.reply, strict=False), strict=False)


def _written(recording: Recording, number: int, action: Action) -> str:
    """Return the reply to a step of a recording that carries out an action."""
    pages = [step.page for step in recording.steps[: number + 1]]
    reply = f"```{render(action)}```"
    return rewritten(reply, recording.thoughts, goal=recording.goal, pages=pages)


# ---- places ----------------------------------------------------------------------------------


def _moved(recording: Recording, rng: random.Random) -> Recording:
    """Return a recording in which elements that the goal names stand elsewhere.

    Two elements change places on all pages of an address, so that a page that is read again is the
    same. Cells of rows stay, because what stands beside them belongs to them.
    """
    pairs: dict[str, tuple[Node, Node]] = {}
    for step in recording.steps:
        node = _acted_on(step)
        if node is None or step.page.url in pairs or not _is_named(node, recording.goal):
            continue
        names = [each.name for each in step.page.nodes if _is_like(each, node)]
        alike = [
            each
            for each in step.page.nodes
            if _is_like(each, node) and each.cell is None and names.count(each.name) == 1
        ]
        if node in alike:
            pairs[step.page.url] = node, rng.choice(alike)
    steps = tuple(
        _exchanged(step, *pairs[step.page.url]) if step.page.url in pairs else step
        for step in recording.steps
    )
    return replace(recording, steps=steps)


def _exchanged(step: RecordedStep, one: Node, other: Node) -> RecordedStep:
    """Return a step whose page has two elements in each other's places, if it has both."""
    found = [
        [node for node in step.page.nodes if (node.role, node.name) == (each.role, each.name)]
        for each in (one, other)
    ]
    if one == other or [len(nodes) for nodes in found] != [1, 1]:
        return step
    [[first], [second]] = found
    at = {first.id: second, second.id: first}
    ids = {None: None, first.id: second.id, second.id: first.id}
    nodes = tuple(
        replace(at[each.id], id=each.id, box=each.box) if each.id in at else each
        for each in step.page.nodes
    )
    changed = replace(step, page=replace(step.page, nodes=nodes))
    lines, fence, _ = step.reply.partition("```")
    try:
        action = _action(step)
    except ActionError:  # a reply that failed
        return changed
    moved = replace(
        action,
        element_id=ids.get(action.element_id, action.element_id),
        target_id=ids.get(action.target_id, action.target_id),
    )
    if not fence or moved == action:
        return changed
    return replace(changed, reply=f"{lines}```{render(moved)}```")


# ---- texts -----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Table:
    """Other texts by the texts whose places they take."""

    others: dict[str, str] = field(default_factory=dict)

    def has_part_of(self, text: str) -> bool:
        """Return whether a text has one of the table, or is a part of one."""
        return any(_has(each, text) or _has(text, each) for each in self.others)

    def swap(self, text: str, neighbors: Iterable[str], rng: random.Random) -> None:
        """Let a text change places with a neighbor, or stay."""
        other = rng.choice([text, *dict.fromkeys(neighbors)])
        self.others |= {text: other, other: text}

    def changer(self) -> Callable[[str], str]:
        """Return the function that replaces the texts of the table, as whole words."""
        if not self.others:
            return str
        pattern = re.compile(_whole(self.others))
        return lambda text: pattern.sub(lambda match: self.others[match[0]], text)


def _changed(recording: Recording, rng: random.Random) -> Recording:
    """Return a recording with other texts."""
    goal, table = recording.goal, _Table()
    written = [goal, *(step.reply for step in recording.steps)]
    words = _words(recording.steps, written)
    rng.shuffle(words)
    for step in recording.steps:
        node = _acted_on(step)
        if node is not None and _is_named(node, goal) and not table.has_part_of(node.name):
            names = [each.name for each in step.page.nodes if _is_like(each, node)]
            table.swap(node.name, _free(names, written, table), rng)
    for number, step in enumerate(recording.steps):
        node = _acted_on(step)
        pages = [each.page for each in recording.steps[: number + 1]]
        for text in _texts_of(step):
            if table.has_part_of(text) or names_in(text):
                continue
            if node is not None and node.options:
                if text in node.options and _has(goal, text):
                    table.swap(text, _free(node.options, written, table), rng)
            elif _is_read(text, step, goal, pages):
                table.others[text] = _rewritten(text, words, rng)
    change = table.changer()
    made = replace(
        recording,
        goal=change(goal),
        steps=tuple(
            replace(step, page=step.page.with_texts(change), note=change(step.note))
            for step in recording.steps
        ),
    )
    steps = tuple(
        replace(step, reply=_written(made, number, _mapped_action(_action(step), change)))
        if step.counts
        else step
        for number, step in enumerate(made.steps)
    )
    return replace(made, steps=steps)


def _acted_on(step: RecordedStep) -> Node | None:
    """Return the element that a reply acts on; None if there is none, or the reply does not
    count."""
    return step.page.element(_action(step).element_id or 0) if step.counts else None


def _texts_of(step: RecordedStep) -> list[str]:
    """Return the texts that a reply which counts types, chooses or answers."""
    if not step.counts:
        return []
    action = _action(step)
    if action.kind == "stop":
        return [action.answer, *(action.answer.split(", ") if ", " in action.answer else ())]
    return [*action.items] if action.kind == "choose" else [action.text]


def _is_read(text: str, step: RecordedStep, goal: str, pages: Sequence[Page]) -> bool:
    """Return whether a typed text that stands in the goal or on a page, or an answer that stands on
    a page alone, may be another one."""
    if not _PART.search(text) or _DATE.search(text):
        return False
    if _action(step).kind != "stop":
        return any(_has(each, text) for each in (goal, *_texts(pages)))
    if text.lower() in _VERDICTS or (text.isdigit() and len(text) < _LEAST_DIGITS):
        return False
    return not _has(goal, text) and any(_has(each, text) for each in _texts(pages))


def _is_named(node: Node, goal: str) -> bool:
    """Return whether a goal has the name of an element, as pages show it, and not as the first
    words of a sentence."""
    found = re.finditer(_whole([node.name]), goal) if label(node) == node.name else ()
    return any(_SENTENCE.search(goal[: match.start()]) is None for match in found)


def _is_like(node: Node, other: Node) -> bool:
    return node.id is not None and node.role == other.role and label(node) == node.name


def _free(texts: Iterable[str], written: Sequence[str], table: _Table) -> list[str]:
    """Return the texts with words that neither the goal nor a reply has, nor the table yet."""
    return [
        text
        for text in texts
        if _PART.search(text)
        and not any(_has(each, text) or _has(text, each) for each in table.others)
        and not any(_has(each, text) for each in written)
    ]


def _words(steps: Sequence[RecordedStep], written: Sequence[str]) -> list[str]:
    """Return the words of the pages that neither the goal nor a reply has, nor a name is."""
    texts = list(_texts([step.page for step in steps]))
    used = {*_PART.findall(" ".join(written)), *texts}
    found = {word for text in texts for word in _PART.findall(text) if word.isalpha()}
    return sorted(found - used)


def _rewritten(text: str, words: list[str], rng: random.Random) -> str:
    """Return a text with other digits, and other words, each of which begins in the same case and
    is taken from `words`."""

    def other(match: re.Match[str]) -> str:
        part = match[0]
        if part.isdigit():
            return rng.choice(_DIGITS[1:]) + "".join(rng.choices(_DIGITS, k=len(part) - 1))
        alike = [word for word in words if word[0].isupper() == part[0].isupper()]
        if not alike:
            return part
        words.remove(alike[0])
        return alike[0]

    return _PART.sub(other, text)


def _mapped_action(action: Action, change: Callable[[str], str]) -> Action:
    """Return an action with other texts, and with the same verb and elements."""
    if action.kind == "upload":
        return action
    return replace(
        action,
        text=change(action.text),
        answer=change(action.answer),
        before=change(action.before),
        last=change(action.last),
        items=tuple(map(change, action.items)),
    )


# ---- what a variant must keep ----------------------------------------------------------------


def _fits(made: Recording, original: Recording) -> bool:
    """Return whether every text of a reply stands where the original's does, at least, and every
    element is as easily told from others."""
    return all(
        now >= before
        for number, step in enumerate(made.steps)
        if step.counts
        for now, before in zip(_places(made, number), _places(original, number), strict=True)
    )


def _places(recording: Recording, number: int) -> Iterator[int]:
    """Yield how well a model can find the texts and the element of a reply, whatever they are:
    whether a text is in the goal, on a page and among the options, and how few elements have the
    same name."""
    step, goal = recording.steps[number], recording.goal.casefold()
    shown = [
        text.casefold() for text in _texts(each.page for each in recording.steps[: number + 1])
    ]
    node = _acted_on(step)
    for text in _texts_of(step):
        yield text.casefold() in goal
        yield any(text.casefold() in each for each in shown)
        yield node is not None and text in node.options
    if node is not None:
        yield node.name.casefold() in goal
        yield -sum(_is_like(each, node) and each.name == node.name for each in step.page.nodes)


def _has(text: str, part: str) -> bool:
    """Return whether a text has a part as whole words."""
    return bool(part) and re.search(_whole([part]), text) is not None


def _whole(parts: Iterable[str] | Mapping[str, str]) -> str:
    """Return the pattern of whole words that are one of some texts, the longest that fits."""
    longest_first = sorted(parts, key=len, reverse=True)
    return rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)"


def _texts(pages: Iterable[Page]) -> Iterator[str]:
    """Yield the texts of pages."""
    for page in pages:
        for node in page.nodes:
            yield from (node.name, node.value, *node.options)
