"""Pages that nobody wrote for this project, made by packages that are installed anyway.

Every page has a name and its HTML. The packages generate it, so nothing is copied: the standard
library's documentation, calendars and comparisons, Pygments' code, Markdown through markdown-it,
tables of pandas, a terminal of rich, and the error page of Starlette.
"""

import calendar
import difflib
import inspect
import io
import pydoc
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pandas
from markdown_it import MarkdownIt
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer
from rich.console import Console
from rich.table import Table
from starlette.middleware.errors import ServerErrorMiddleware

ROOT = Path(__file__).parents[2]


def pages() -> dict[str, str]:
    """Return the HTML of each page by its name."""
    found = dict(_all_pages())
    assert len(found) == len(set(found.values()))
    return found


def _all_pages() -> Iterator[tuple[str, str]]:
    for module in (textwrap, calendar, difflib):
        yield f"pydoc {module.__name__}", pydoc.HTMLDoc().page(module.__name__, _documented(module))
        yield f"pygments {module.__name__}", _code(module, numbered=False)
    yield "pygments numbered", _code(textwrap, numbered=True)
    yield "calendar of a year", calendar.HTMLCalendar().formatyear(2026, width=4)
    yield "calendar of a month", calendar.HTMLCalendar(firstweekday=6).formatmonth(2026, 2)
    yield "difflib, two columns", _difference(context=False)
    yield "difflib, in context", _difference(context=True)
    for name, table in _tables().items():
        yield f"pandas {name}", table
    yield "rich terminal", _terminal()
    yield "starlette error", _error_page()
    markdown = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    for path in sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md"]):
        parts = path.read_text(encoding="utf-8").split("\n## ")
        for number, part in enumerate(parts[:2]):
            html = markdown.render(part if not number else f"## {part}")
            yield f"markdown {path.stem} {number}", f"<title>{path.stem}</title>{html}"


def _documented(module: ModuleType) -> str:
    return pydoc.HTMLDoc().docmodule(module)


def _code(module: ModuleType, *, numbered: bool) -> str:
    source = "\n".join(inspect.getsource(module).splitlines()[:120])
    formatter = HtmlFormatter(full=True, linenos="table" if numbered else False)
    return highlight(source, PythonLexer(), formatter)


def _difference(*, context: bool) -> str:
    before = inspect.getsource(textwrap).splitlines()[:60]
    after = [line.replace("width", "length") for line in before if "tab" not in line]
    return difflib.HtmlDiff(wrapcolumn=60).make_file(before, after, context=context)


def _tables() -> dict[str, str]:
    frame = pandas.DataFrame(
        {"item": ["kayak", "canoe", "paddle"], "price": [24.36, 0, 24.36], "sold": [0, 0, 0]}
    )
    grouped = frame.assign(kind=["boat", "boat", "tool"]).set_index(["kind", "item"])
    return {
        "frame": frame.to_html(),
        "without index": frame.to_html(index=False, na_rep=""),
        "with gaps": frame.where(frame != 0).to_html(na_rep=""),
        "grouped": grouped.to_html(),
        "transposed": grouped.T.to_html(),
        "description": frame.describe().to_html(),
    }


def _terminal() -> str:
    console = Console(record=True, width=80, file=io.StringIO())
    table = Table("word", "count", title="Words")
    for number, word in enumerate(("kayak", "canoe", "paddle")):
        table.add_row(word, str(number))
    console.print(table)
    console.print("  indented\n\nafter a blank line [bold]bold[/bold]")
    return console.export_html()


def _error_page() -> str:
    async def nothing(*_: object) -> None: ...

    try:
        raise LookupError("no kayak <here>")
    except LookupError as error:
        return ServerErrorMiddleware(nothing, debug=True).generate_html(error, limit=3)
