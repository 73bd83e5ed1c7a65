"""Answers of the cookie banner, and reports of listings."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentkv_env.sites.classifieds import store
from agentkv_env.sites.site import database, form, missing, see_other

REASONS = ("Wrong category", "Wrong price", "Rude words", "Not for sale")
"""Reasons for a report."""


async def cookies(request: Request) -> Response:
    """Store the choice and return to the page with the banner."""
    fields = await form(request)
    choice = "all" if fields.get("choice") == "all" else "needed"
    database(request).execute("INSERT INTO classifieds_consent VALUES (?)", (choice,))
    back = fields.get("back", "/")
    return see_other(back if back.startswith("/") and not back.startswith("//") else "/")


async def report(request: Request) -> Response:
    """Report a listing; its page shows the report from then on."""
    fields, id = await form(request), request.path_params["id"]
    connection = database(request)
    if store.listing(connection, id) is None:
        raise missing()
    if fields.get("reason") not in REASONS:
        return see_other(f"/listing/{id}?error=Choose+a+reason+first")
    connection.execute(
        "INSERT OR REPLACE INTO classifieds_report VALUES (?, ?)", (id, fields["reason"])
    )
    return see_other(f"/listing/{id}")


ROUTES = (
    Route("/cookies", cookies, methods=["POST"]),
    Route("/listing/{id:int}/report", report, methods=["POST"]),
)
