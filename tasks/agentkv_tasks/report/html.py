"""Static, self-contained HTML pages: the templates, and what all of them use.

The pages hold no scripts and load nothing. All text from web pages, models and files is escaped.
"""

from pathlib import Path

import jinja2
from markupsafe import Markup

_TEMPLATES = Path(__file__).parent / "templates"


def template_environment() -> jinja2.Environment:
    """Return an environment with the templates and the style sheet."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = (_TEMPLATES / "style.css").read_text(encoding="utf-8")
    environment.globals.update(style=Markup(style))
    return environment


def kib(count: float | None) -> str:
    """Format bytes as KiB, the report's unit for caches; a dash stands for None."""
    return "–" if count is None else f"{count / 1024:,.0f} KiB"
