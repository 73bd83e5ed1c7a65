"""Tokens of the pages with rows, with a line for each node and with a line for each row.

The arguments are files of tokenizers, as of the package `tokenizers`:

    python -m tests.env.row_tokens TOKENIZER.json ...
"""

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer

from agentkv_env.browser import Browser
from agentkv_env.page import Page
from agentkv_env.serialize import body_lines, head_lines, serialize, tail_lines
from agentkv_env.session import Session
from tests.env.row_pages import PAGES, RowPage


def line_per_node(page: Page, *, boxes: bool) -> str:
    """Return the text of a page with a line for each node, and its box or none."""
    lines = head_lines(page)
    for node in page.nodes:
        alone = replace(page, nodes=(replace(node, cell=None, cells=()),))
        for line in body_lines(alone, "before"):
            text = re.sub(r" @-?\d+,-?\d+,\d+,\d+$", "", line.text)
            box = node.box
            lines.append(text + f" @{box.x},{box.y},{box.width},{box.height}" * boxes)
    return "\n".join(lines + tail_lines(page))


def line_per_row(page: Page) -> str:
    """Return the text of a page as a chat model reads it."""
    return serialize(page, layout="before").text


def show(session: Session, row_page: RowPage) -> Page:
    """Show a page in a document of its own, and observe it."""
    session.page.goto("about:blank")
    session.page.set_content(row_page.html)
    return session.observe()


def counter(file: str | Path) -> Callable[[str], int]:
    """Return what counts the tokens of a text with the tokenizer in a file."""
    tokenizer = Tokenizer.from_file(str(file))
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False))


def main(files: list[str]) -> None:
    """Print a Markdown table of the tokens of all pages."""
    names = [Path(file).stem for file in files]
    print("| page | rows |" + "".join(f" {name}: nodes | rows | fewer |" for name in names))
    print("|---|---|" + "---|---|---|" * len(files))
    counters = [counter(file) for file in files]
    with Browser.launch() as browser, browser.session(hosts=["rows.localhost"]) as session:
        pages = [show(session, row_page) for row_page in PAGES]
    for row_page, page in zip(PAGES, pages, strict=True):
        print(_row(row_page.name, str(len(row_page.rows)), [page], counters, boxes=True))
    print(_row("all", "", pages, counters, boxes=True))
    print(_row("all, with a line for each node and no boxes", "", pages, counters, boxes=False))


def _row(
    name: str,
    num_rows: str,
    pages: list[Page],
    counters: list[Callable[[str], int]],
    *,
    boxes: bool,
) -> str:
    cells = [name, num_rows]
    for count in counters:
        before = sum(count(line_per_node(page, boxes=boxes)) for page in pages)
        after = sum(count(line_per_row(page)) for page in pages)
        cells += [f"{before:,}", f"{after:,}", f"{1 - after / before:.0%}"]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main(sys.argv[1:])
