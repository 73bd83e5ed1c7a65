"""Write the text of a reply: the element it acts on, the source of its text, and the action.

The first line repeats the element's name as the page shows it. If the reply types or answers text
from a page, the second line quotes that page up to and including the text. Every part of a reply
can thus be copied from what the model has read.

    at Coupon code
    from MODEL RN-563
    ```type [12] [RN-563] [0]```
"""

import re
from collections.abc import Sequence
from itertools import takewhile

from agentkv.dialog.prompt import Thoughts
from agentkv.dialog.quotes import quote_up_to
from agentkv_env.actions import Action, extract, parse, render
from agentkv_env.page import Node, Page
from agentkv_env.serialize import MAX_NAME, neutralize

MAX_THOUGHT = 400
"""Maximum number of characters in a free line of thought."""


def write_reply(action: Action, page: Page, *, quote: str = "") -> str:
    """Return the whole reply for `action` on `page`: thoughts, then the action in a fence.

    With neither an element nor a quotation, the first line is the verb, or `done` before a stop.

    Args:
        quote: the quotation of the `from` line (`find_quotation`); empty for no such line.
    """
    node = None if action.element_id is None else page.element(action.element_id)
    lines = [] if node is None else [f"at {label(node)}"]
    if quote:
        lines.append(f"from {quote}")
    if not lines:
        lines.append("done" if action.kind == "stop" else action.kind)
    return "\n".join([*lines, f"```{render(action)}```"])


def write_free_reply(action: Action, page: Page, *, quote: str = "") -> str:
    """Return a whole reply for `action` as chat models are told to write it (`dialog.chat`): a line
    that says what it acts on, then the action in a fence.

    The line has the element's name in quotation marks, as pages show it, then its role. Without an
    element it is the quotation, unless that begins with a quotation mark, or else the verb, or
    `done` before a stop.

    Args:
        quote: as in `write_reply`.
    """
    node = None if action.element_id is None else page.element(action.element_id)
    if node is not None:
        line = described(node)
    elif quote and not quote.startswith("'"):
        line = quote
    else:
        line = "done" if action.kind == "stop" else action.kind
    return f"{line[:MAX_THOUGHT]}\n```{render(action)}```"


def rewritten(reply: str, thoughts: Thoughts, *, goal: str, pages: Sequence[Page]) -> str:
    """Return a reply with the lines before its action that a model with `thoughts` writes.

    Args:
        reply: a readable reply of a model with other thoughts.
        pages: the pages of the episode up to the one that is answered.

    Raises:
        ActionError: the reply holds no readable action.
    """
    action = parse(extract(reply, strict=False), strict=False)
    quote = (
        ""
        if action.element_id is not None and thoughts == "free"
        else (find_quotation(action, goal, pages))
    )
    write = write_free_reply if thoughts == "free" else write_reply
    return write(action, pages[-1], quote=quote)


def names_element(reply: str, page: Page) -> bool:
    """Return whether the line before the action of a free reply is one that `write_free_reply` may
    write: before a stop, any that does not begin as if it named an element, with a quotation mark.

    Raises:
        ActionError: the reply holds no readable action.
    """
    action = parse(extract(reply, strict=False), strict=False)
    line = reply.partition("```")[0]
    if action.kind == "stop":
        return not line.startswith("'")
    return line == write_free_reply(action, page).partition("```")[0]


def notes_in(reply: str, thoughts: Thoughts) -> str:
    """Return the notes that a reply begins with: its `read` lines, or whatever precedes the action
    of a reply with free thoughts."""
    if thoughts == "free":
        return reply.partition("```")[0]
    lines = reply.splitlines(keepends=True)
    return "".join(takewhile(lambda line: line.startswith("read "), lines))


def described(node: Node) -> str:
    """Return the name and the role of `node`, as free replies name it: `'Opening hours' link`.

    The name stands as on pages, between the same marks, so that its first token can be copied. It
    comes first because it decides what is acted on; the role follows from it on most pages, and a
    grammar that admits only what is there adds it (our choice).
    """
    return f"'{shown_name(node.name)}' {node.role}"


def label(node: Node) -> str:
    """Return the name of `node` in replies: its name as the page shows it, or else its role."""
    return shown_name(node.name) or node.role


def find_quotation(action: Action, goal: str, pages: Sequence[Page]) -> str:
    """Return the quotation of `pages` that precedes the text of `action`, or an empty string.

    It is taken from the latest page where other words of a line precede the text. If the text lists
    several items, separated by commas, each is quoted on its own, and items that the goal contains
    stand as they are. The quotation is empty if the goal contains the text or no page does.
    """
    text = neutralize(action.answer if action.kind == "stop" else action.text)
    if not text or text.lower() in goal.lower():
        return ""
    if found := _find_passage(text, pages):
        return found
    parts = [part if part in goal else _find_passage(part, pages) for part in text.split(", ")]
    return "; ".join(parts) if len(parts) > 1 and all(parts) else ""


def _find_passage(text: str, pages: Sequence[Page]) -> str:
    whole_words = re.compile(rf"(?<!\w){re.escape(text)}(?!\w)")
    for page in reversed(pages):
        for node in page.nodes:
            line = neutralize(node.name)
            found = whole_words.search(line) if node.id is None else None
            if found is not None and found.start() and found.end() <= MAX_NAME:
                return quote_up_to(line, *found.span())
    return ""


def find_sources(reply: str, goal: str, pages: Sequence[Page]) -> tuple[int, ...]:
    """Return the numbers of the earlier pages that a reply takes its text from, in order.

    They are the latest pages that hold what it types or answers, or each item of a list separated
    by commas, where neither the goal nor the page that is answered does.

    Args:
        reply: a readable reply.
        pages: the pages of the episode up to the one that is answered.

    Raises:
        ActionError: the reply holds no readable action.
    """
    action = parse(extract(reply, strict=False), strict=False)
    text = neutralize(action.answer if action.kind == "stop" else action.text)
    found = _latest(text, goal, pages)
    if found is None and ", " in text:
        parts = {_latest(part, goal, pages) for part in text.split(", ")}
        return tuple(sorted(part for part in parts if part is not None and part + 1 < len(pages)))
    return () if found is None or found + 1 >= len(pages) else (found,)


def _latest(text: str, goal: str, pages: Sequence[Page]) -> int | None:
    """Return the number of the latest page that holds a text; that after the last page if the goal
    does, and None if nothing does."""
    if not text or text.lower() in goal.lower():
        return len(pages)
    words = re.compile(rf"(?<!\w){re.escape(text)}(?!\w)", re.IGNORECASE)
    for number in range(len(pages) - 1, -1, -1):
        for node in pages[number].nodes:
            if any(
                words.search(neutralize(each)) for each in (node.name, node.value, *node.options)
            ):
                return number
    return None


def shown_name(name: str) -> str:
    """Return an element's `name` as pages show it: neutralized, cut to `MAX_NAME` characters."""
    name = neutralize(name)
    return name if len(name) <= MAX_NAME else name[: MAX_NAME - 3] + "..."
