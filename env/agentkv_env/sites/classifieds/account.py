"""The signed-in user's own listings, saved listings and messages."""

import sqlite3

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentkv_env.sites.classifieds import store
from agentkv_env.sites.classifieds.content import CONDITIONS, ClassifiedsContent
from agentkv_env.sites.classifieds.page import page
from agentkv_env.sites.site import (
    database,
    form,
    missing,
    region,
    see_other,
    site_content,
    whole_number,
)

MOST_DOLLARS = 99_999


async def own_listings(request: Request) -> Response:
    found = store.find(database(request), seller=region(request).me.handle)
    return page(request, "mine.html", listings=found)


async def saved(request: Request) -> Response:
    found = database(request).execute(
        "SELECT l.* FROM classifieds_listing l JOIN classifieds_saved s ON s.listing = l.id"
        " ORDER BY l.id"
    )
    return page(request, "saved.html", listings=found.fetchall())


async def messages(request: Request) -> Response:
    found = database(request).execute(
        "SELECT m.*, l.title FROM classifieds_message m"
        " LEFT JOIN classifieds_listing l ON l.id = m.listing ORDER BY m.id DESC"
    )
    return page(request, "messages.html", messages=found.fetchall())


async def post(request: Request) -> Response:
    """Show the form for a new listing, or continue with a complete one."""
    if request.method == "GET":
        return form_page(request, None, {}, [])
    fields = await form(request)
    wrong = what_is_wrong(request, fields)
    if wrong or "back" in fields:
        return form_page(request, None, fields, [] if "back" in fields else wrong)
    return see_other(f"/listing/{publish(request, fields)}")


def publish(request: Request, fields: dict[str, str]) -> int:
    """Store a complete listing of the user and return its id."""
    shown = region(request)
    cursor = database(request).execute(
        "INSERT INTO classifieds_listing (title, category, price, condition, town, seller,"
        " description, delivery, posted_at, has_photo) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0)",
        (*_values(fields, shown.me.handle), shown.now.isoformat()),
    )
    assert cursor.lastrowid is not None, "an INSERT gives a row id"
    return cursor.lastrowid


async def edit(request: Request) -> Response:
    """Show the form for an existing listing of the user, or store its changes."""
    fields = await form(request) if request.method == "POST" else {}
    row = own(request)
    if request.method == "GET":
        present = {key: str(row[key]) for key in row.keys()}
        present["delivery"] = "yes" if row["delivery"] else ""
        return form_page(request, row["id"], present, [])
    wrong = what_is_wrong(request, fields)
    if wrong:
        return form_page(request, row["id"], fields, wrong)
    database(request).execute(
        "UPDATE classifieds_listing SET title = ?, category = ?, price = ?, condition = ?,"
        " town = ?, seller = ?, description = ?, delivery = ? WHERE id = ?",
        (*_values(fields, row["seller"]), row["id"]),
    )
    if fields["category"] != row["category"]:  # categories have different facts
        store.set_facts(database(request), row["id"], {})
    return see_other(f"/listing/{row['id']}")


async def delete(request: Request) -> Response:
    """Ask for confirmation, then delete a listing of the user and all data about it."""
    await form(request)
    row = own(request)
    if request.method == "GET":
        return page(request, "delete.html", listing=row)
    connection = database(request)
    connection.execute("DELETE FROM classifieds_listing WHERE id = ?", (row["id"],))
    for table in ("remark", "fact", "offer"):
        connection.execute(f"DELETE FROM classifieds_{table} WHERE listing = ?", (row["id"],))
    return see_other("/mine")


def own(request: Request) -> sqlite3.Row:
    """Return the listing in the address, which must belong to the user."""
    row = store.listing(database(request), request.path_params["id"])
    if row is None:
        raise missing()
    if row["seller"] != region(request).me.handle:
        raise HTTPException(403)
    return row


def what_is_wrong(request: Request, fields: dict[str, str]) -> list[str]:
    """Return messages about missing and invalid fields of a listing form."""
    slugs = {category.slug for category in site_content(request, ClassifiedsContent).categories}
    price = whole_number(fields.get("price"), -1)
    checks = (
        (bool(fields.get("title")), "Give the listing a title"),
        (fields.get("category") in slugs, "Choose a category"),
        (0 <= price <= MOST_DOLLARS, f"Give the price in whole dollars, up to {MOST_DOLLARS}"),
        (fields.get("condition") in CONDITIONS, "Choose a condition"),
        (fields.get("town") in region(request).places, "Choose a town"),
    )
    return [message for good, message in checks if not good]


def _values(fields: dict[str, str], seller: str) -> tuple[object, ...]:
    return (
        fields["title"],
        fields["category"],
        whole_number(fields["price"], 0),
        fields["condition"],
        fields["town"],
        seller,
        fields.get("description", ""),
        int(fields.get("delivery") == "yes"),
    )


def form_page(
    request: Request, id: int | None, fields: dict[str, str], wrong: list[str]
) -> Response:
    """Render the form for a listing with its fields and messages about them."""
    return page(
        request,
        "edit.html",
        id=id,
        fields=fields,
        wrong=wrong,
        categories=site_content(request, ClassifiedsContent).categories,
        conditions=CONDITIONS,
        status=422 if wrong else 200,
    )


ROUTES = (
    Route("/mine", own_listings),
    Route("/saved", saved),
    Route("/messages", messages),
    Route("/post", post, methods=["GET", "POST"]),
    Route("/listing/{id:int}/edit", edit, methods=["GET", "POST"]),
    Route("/listing/{id:int}/delete", delete, methods=["GET", "POST"]),
)
