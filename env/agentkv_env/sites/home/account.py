"""The user's data on the home site: settings, planned events and the library card."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentkv_env.sites.home.content import HomeContent
from agentkv_env.sites.site import database, form, missing, region, render, see_other, site_content

SCHEMA = """
CREATE TABLE home_setting (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE home_going (event INTEGER PRIMARY KEY);
CREATE TABLE home_card (branch TEXT NOT NULL);
"""
SUMMARIES = ("Never", "Daily", "Weekly")


def setting(request: Request, key: str) -> str:
    """Return the user's setting, or its default."""
    found = database(request).execute("SELECT value FROM home_setting WHERE key = ?", (key,))
    row = found.fetchone()
    if row is not None:
        return str(row["value"])
    return {"town": region(request).me.place, "greeting": "", "summary": "Never"}[key]


def is_going(request: Request, event: int) -> bool:
    """Return whether the user has signed up for the event."""
    found = database(request).execute("SELECT 1 FROM home_going WHERE event = ?", (event,))
    return found.fetchone() is not None


async def settings(request: Request) -> Response:
    """Show the settings, after saving the posted settings that are valid."""
    saved = request.method == "POST"
    if saved:
        fields = await form(request)
        allowed = {"town": region(request).places, "summary": SUMMARIES}
        chosen = {key: fields[key] for key in allowed if fields.get(key) in allowed[key]}
        if "greeting" in fields:
            chosen["greeting"] = fields["greeting"][:60]
        database(request).executemany(
            "INSERT OR REPLACE INTO home_setting VALUES (?, ?)", sorted(chosen.items())
        )
    values = {key: setting(request, key) for key in ("town", "greeting", "summary")}
    return render(request, "settings.html", values=values, summaries=SUMMARIES, saved=saved)


async def go(request: Request) -> Response:
    """Sign up for a future event, or cancel the sign-up."""
    number, events = request.path_params["id"], site_content(request, HomeContent).events
    if not 1 <= number <= len(events):
        raise missing()
    if events[number - 1].day >= region(request).now.date():
        statement = (
            "DELETE FROM home_going WHERE event = ?"
            if is_going(request, number)
            else "INSERT INTO home_going VALUES (?)"
        )
        database(request).execute(statement, (number,))
    return see_other(f"/event/{number}")


async def going(request: Request) -> Response:
    rows = database(request).execute("SELECT event FROM home_going ORDER BY event")
    events = site_content(request, HomeContent).events
    return render(request, "going.html", events=[events[row["event"] - 1] for row in rows])


async def card(request: Request) -> Response:
    """Show the library card; its number appears once the user has accepted the rules."""
    error = ""
    if request.method == "POST":
        fields = await form(request)
        if fields.get("rules") == "yes" and fields.get("branch") in region(request).places:
            database(request).execute("DELETE FROM home_card")
            database(request).execute("INSERT INTO home_card VALUES (?)", (fields["branch"],))
            return see_other("/card")
        error = "Accept the rules first."
    row = database(request).execute("SELECT branch FROM home_card").fetchone()
    return render(
        request, "card.html", status=422 if error else 200, error=error,
        branch=row["branch"] if row else "", number=site_content(request, HomeContent).card_number,
    )  # fmt: skip


ROUTES = (
    Route("/settings", settings, methods=["GET", "POST"]),
    Route("/event/{id:int}/go", go, methods=["POST"]),
    Route("/going", going),
    Route("/card", card, methods=["GET", "POST"]),
)
