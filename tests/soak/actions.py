"""1,200 texts that a model may write as an action: each is parsed or refused with ActionError.

Every text that the grammar of a page admits is an action on that page.
"""

import random
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path

from tokenizers import Tokenizer

from agentkv.dialog.grammar import Grammar
from agentkv_env.actions import KINDS, Action, ActionError, extract, parse, render
from agentkv_env.page import Box, Node, Page
from tests.soak.part import Part, Verdict
from tests.soak.time_limit import time_limit

TOTAL = 1200
LONG = 200_000
"""Characters; a parser with quadratic time would need minutes for such a text."""
LIMIT_S = 20.0
"""Limit of processor time per text, in seconds; a long text takes about 0.05."""

_PIECES = [
    *(*KINDS, "Click", "TYPE", "fill", "go back", "answer", "finish", "scroll down", "action:"),
    *"[[]](){}<> \n\r\t\x00\x1c\u2028\u200b\ud800\U0001f6f6`\"',;:=#|\\/$^*+?",
    *("] [", "[1]", "[0]", "[12]", "[type]", "()", "  ", "```", "``"),
    *("1", "0", "12", "999", "-1", "1.5", "1e5", "²", "١٢", "Ⅷ", "up", "down", "Enter", "Control+"),
    *("http://shop.localhost/", "javascript:alert(1)", "blue kayak", "id=", "enter=0", "python\n"),
]
_HEADS = ["", "click", "type [5] [a", "type [5] [a]", "press", "goto [", "stop [", "tab_focus ["]
_REPEATED = [
    *" []1a\n`_,\u00a0",
    *("type [1] [", "stop [", "] [1", " [", " ,", "\t\n"),
    *("click [", "scroll ", "[ ", "press [a", "```", "go "),
]
_TAILS = ["", "x", "]", "] [1]", "[1"]


def cases() -> Iterator[tuple[str, str]]:
    """Yield the name and text of every case, the same at each call."""
    long = [
        (f"long-{head}-{unit!r}-{tail}", head + unit * (LONG // len(unit)) + tail)
        for head, unit, tail in product(_HEADS, _REPEATED, _TAILS)
    ]
    chosen = random.Random(1)
    yield from chosen.sample(long, 200)
    for number in range(TOTAL - 200):
        some = chosen.choices(_PIECES, k=chosen.randrange(12))
        head = chosen.choice([*KINDS, "", "```" + chosen.choice(KINDS)])
        yield f"random-{number}", head + chosen.choice(["", " "]) + "".join(some)


def check(name: str, text: str) -> Verdict:
    """Parse `text` strictly and leniently, whole and extracted, and check the grammar."""
    try:
        with time_limit(LIMIT_S, processor_time=True):
            for strict in (True, False):
                for read in (text, _extracted(text, strict)):
                    _is_read(read, strict)
            if len(text) <= 1000:
                _is_on_the_page(f"done\n```{text}```")
                _is_on_the_page(text)
    except Exception as error:  # any error is the verdict of this case
        return Verdict(name, "broken", f"{type(error).__name__}: {str(error)[:200]}")
    return Verdict(name, "held")


def run() -> Iterator[Verdict]:
    for name, text in cases():
        yield check(name, text)


def _extracted(text: str, strict: bool) -> str:
    try:
        return extract(text, strict=strict)
    except ActionError:
        return ""


def _is_read(text: str, strict: bool) -> None:
    try:
        action = parse(text, strict=strict)
    except ActionError as error:
        assert len(str(error)) < 1000, f"an error of {len(str(error))} characters"
        return
    assert isinstance(action, Action) and action.kind in KINDS
    assert isinstance(render(action), str)


def _is_on_the_page(reply: str) -> None:
    """Check that an admitted reply parses strictly and acts only on elements of the page."""
    grammar, tokenizer, page = _grammar()
    matcher = grammar.start(page, "Find the blue kayak")
    for id in tokenizer.encode(reply.encode(errors="replace").decode()).ids:
        if not matcher.allowed()[id]:
            return
        matcher.consume([id])
    if matcher.is_complete:
        action = parse(extract(reply))
        assert action.element_id is None or page.element(action.element_id) is not None


@cache
def _grammar() -> tuple[Grammar, Tokenizer, Page]:
    folder = Path(__file__).parents[2] / "agentkv" / "models" / "nano"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    box = Box(0, 0, 1, 1)
    nodes = (
        Node("element", "textbox", "Search", box, id=5),
        Node("element", "link", "Blue Kayak", box, id=12),
    )
    page = Page("http://shop.localhost/", "Shop", nodes, pixels_below=100)
    return Grammar(tokenizer, end_id=tokenizer.token_to_id("<|end|>")), tokenizer, page


PART = Part("actions", "Action texts are parsed or refused with ActionError, in linear time.", run)
