"""The text of a reply: a line that names the element, a line that quotes a source, the action.

The first line repeats the element's name as the page shows it. Where the reply types or answers
something that a page said, the second line quotes that page up to the text. A reader of the page
finds every part of a reply there, word for word.

    at Coupon code
    from MODEL RN-563
    ```type [12] [RN-563] [0]```
"""

import re
from collections.abc import Sequence

from agentkv.dialog.quotes import quoted_to
from agentkv_env.actions import Action, render
from agentkv_env.page import Node, Page
from agentkv_env.serialize import MAX_NAME, neutralize


def write_reply(action: Action, page: Page, *, quote: str = "") -> str:
    """The whole reply for `action`: where it acts, what of a page it quotes, and the fence.

    Without an element and a quote the first line is the verb, or `done` before a stop.
    """
    node = None if action.element_id is None else page.element(action.element_id)
    lines = [] if node is None else [f"at {label(node)}"]
    if quote:
        lines.append(f"from {quote}")
    if not lines:
        lines.append("done" if action.kind == "stop" else action.kind)
    return "\n".join([*lines, f"```{render(action)}```"])


def label(node: Node) -> str:
    """What a reply calls `node`: its name as it reads in a page, or its role if it has none."""
    return shown_name(node.name) or node.role


def find_quotation(action: Action, goal: str, pages: Sequence[Page]) -> str:
    """What a reply quotes of `pages` before it types or answers: the words up to the text's end.

    Of the latest page that says it behind some other words; nothing for what the goal says, or what
    stands nowhere so. Several things in one text, joined by commas, are quoted one by one, the
    goal's as they are.
    """
    text = neutralize(action.answer if action.kind == "stop" else action.text)
    if not text or text.lower() in goal.lower():
        return ""
    if found := _passage(text, pages):
        return found
    parts = [part if part in goal else _passage(part, pages) for part in text.split(", ")]
    return "; ".join(parts) if len(parts) > 1 and all(parts) else ""


def _passage(text: str, pages: Sequence[Page]) -> str:
    whole = re.compile(rf"(?<!\w){re.escape(text)}(?!\w)")
    for page in reversed(pages):
        for node in page.nodes:
            line = neutralize(node.name)
            found = whole.search(line) if node.id is None else None
            if found is not None and found.start() and found.end() <= MAX_NAME:
                return quoted_to(line, *found.span())
    return ""


def shown_name(name: str) -> str:
    name = neutralize(name)
    return name if len(name) <= MAX_NAME else name[: MAX_NAME - 3] + "..."
