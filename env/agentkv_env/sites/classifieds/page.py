"""Render the templates of the classifieds, with the cookie banner until it is answered."""

from starlette.requests import Request
from starlette.responses import HTMLResponse

from agentkv_env.sites.site import database, render


def page(request: Request, template: str, *, status: int = 200, **values: object) -> HTMLResponse:
    """Render `template`, with the cookie banner if the user has not answered it."""
    answered = database(request).execute("SELECT 1 FROM classifieds_consent").fetchone()
    return render(request, template, status=status, asks_consent=answered is None, **values)
