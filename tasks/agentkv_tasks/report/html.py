"""Static, self-contained HTML pages: the templates, and what all of them use.

The pages load nothing. All text from web pages, models and files is escaped, and each page has a
Content-Security-Policy that lets no script run but the one that filters the tasks of a report.
Every page is complete without it.
"""

import base64
import hashlib
from pathlib import Path

import jinja2
from markupsafe import Markup

_TEMPLATES = Path(__file__).parent / "templates"


def template_environment() -> jinja2.Environment:
    """Return an environment with the templates, the style sheet and the script."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = (_TEMPLATES / "style.css").read_text(encoding="utf-8")
    script = (_TEMPLATES / "filter.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment.globals.update(
        style=Markup(style), script=Markup(script), script_digest=f"sha256-{digest}"
    )
    return environment


def kib(count: float | None) -> str:
    """Format bytes as KiB, the unit of an episode's cache; a dash stands for None."""
    return "–" if count is None else f"{count / 1024:,.0f} KiB"
