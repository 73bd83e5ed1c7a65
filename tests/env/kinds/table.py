"""The table of all kinds of fields and pages, as Markdown.

Every other module of this folder has a tuple `KINDS`, and a docstring that heads its part.
"""

import html
import importlib
from pathlib import Path
from types import ModuleType

from tests.env.kinds.kind import Done, Kind, Refused

_OTHERS = {"kind", "table", "__main__"}
_HEAD = """| kind | as in | reads | action | outcome |
|---|---|---|---|---|
"""


def parts() -> list[ModuleType]:
    """Return the modules with kinds, in the order of their names."""
    names = sorted({path.stem for path in Path(__file__).parent.glob("*.py")} - _OTHERS)
    return [importlib.import_module(f"tests.env.kinds.{name}") for name in names]


def kinds() -> list[Kind]:
    """Return all kinds."""
    return [kind for part in parts() for kind in part.KINDS]


def table() -> str:
    """Return one table for each module, under a heading."""
    return "\n".join(
        f"## {(part.__doc__ or '').splitlines()[0].rstrip('.')}\n\n{_HEAD}"
        + "".join(map(_row, part.KINDS))
        for part in parts()
    )


def _row(kind: Kind) -> str:
    name = f"{kind.name} ({kind.note})" if kind.note else kind.name
    action = _code(kind.action.format(id="n")) if kind.action else "none"
    cells = (name, kind.toolkit, _lines(kind.reads), action, _outcome(kind))
    return f"| {' | '.join(cells)} |\n"


def _outcome(kind: Kind) -> str:
    match kind.outcome:
        case Done(expected=expected):
            said = [f"done: {_code(str(expected))}"]
        case Refused(words=words):
            said = [f"fails: {_code(words)}"]
        case None:
            said = []
    if kind.read_after:
        said.append(f"then reads: {_lines(kind.read_after)}")
    return "<br>".join(said)


def _lines(lines: tuple[str, ...]) -> str:
    return "<br>".join(map(_code, lines))


def _code(text: str) -> str:
    """Return `text` as code in a cell, which no bar divides in any dialect of Markdown."""
    text = text.replace("\n", "\\n")
    if "|" not in text:
        return f"`{text}`"
    return f"<code>{html.escape(text, quote=False).replace('|', '&#124;')}</code>"
