"""Saved searches, with the number of listings that they match now."""

from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentkv_env.sites.classifieds import store
from agentkv_env.sites.classifieds.content import CONDITIONS, ClassifiedsContent
from agentkv_env.sites.classifieds.page import page
from agentkv_env.sites.site import database, form, region, see_other, site_content, whole_number

_MOST_TEXT = 60


async def alerts(request: Request) -> Response:
    """List the user's alerts; a posted search becomes an alert unless it matches everything."""
    fields = await form(request) if request.method == "POST" else {}
    connection, content = database(request), site_content(request, ClassifiedsContent)
    named = {category.slug: category.name for category in content.categories}
    if request.method == "POST":
        text = " ".join(fields.get("q", "").split())[:_MOST_TEXT]
        most = whole_number(fields.get("most"), -1)
        values = (
            text,
            fields["category"] if fields.get("category") in named else "",
            fields["town"] if fields.get("town") in region(request).places else "",
            fields["condition"] if fields.get("condition") in CONDITIONS else "",
            None if most < 0 else most,
        )
        if values == ("", "", "", "", None):
            return see_other("/alerts?error=Choose+a+filter+first")
        connection.execute(
            "INSERT INTO classifieds_alert (text, category, town, condition, most)"
            " VALUES (?, ?, ?, ?, ?)",
            values,
        )
        return see_other("/alerts")
    shown = []
    for row in connection.execute("SELECT * FROM classifieds_alert ORDER BY id"):
        filters = {key: row[key] for key in ("text", "category", "town", "condition", "most")}
        words = [row["text"], named.get(row["category"]), row["town"], row["condition"]]
        if row["most"] is not None:
            words.append(f"up to ${row['most']}")
        query = {"q" if key == "text" else key: value for key, value in filters.items() if value}
        shown.append(
            {
                "id": row["id"],
                "name": ", ".join(word for word in words if word),
                "address": "/search?" + urlencode(query),
                "count": len(store.find(connection, **filters)),
            }
        )
    error = request.query_params.get("error", "")
    return page(request, "alerts.html", alerts=shown, error=error)


async def delete(request: Request) -> Response:
    await form(request)
    database(request).execute(
        "DELETE FROM classifieds_alert WHERE id = ?", (request.path_params["id"],)
    )
    return see_other("/alerts")


ROUTES = (
    Route("/alerts", alerts, methods=["GET", "POST"]),
    Route("/alerts/{id:int}/delete", delete, methods=["POST"]),
)
