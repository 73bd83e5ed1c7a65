"""Pages to browse, search and open listings, find their place, and write to sellers."""

import sqlite3
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentkv_env.sites.classifieds import (
    account,
    alerts,
    details,
    notices,
    offers,
    people,
    photos,
    store,
)
from agentkv_env.sites.classifieds.content import CONDITIONS, ClassifiedsContent, Listing, generate
from agentkv_env.sites.classifieds.page import page
from agentkv_env.sites.site import (
    Site,
    database,
    form,
    missing,
    paging,
    region,
    see_other,
    site_content,
    whole_number,
)

LISTINGS_ON_A_PAGE = 8


async def home(request: Request) -> Response:
    found = store.find(database(request))
    categories = site_content(request, ClassifiedsContent).categories
    return page(request, "home.html", categories=categories, listings=found[:6])


async def search(request: Request) -> Response:
    """List the listings that pass the query's filters, in the requested order."""
    query, content = request.query_params, site_content(request, ClassifiedsContent)
    slug = query.get("category", "")
    named = {category.slug: category.name for category in content.categories}
    found = store.find(
        database(request),
        text=query.get("q", ""),
        category=slug,
        town=query.get("town", ""),
        condition=query.get("condition", ""),
        most=whole_number(query["most"], 10**9) if query.get("most") else None,
        order=query.get("sort", ""),
    )
    shown = paging(len(found), page=query.get("page"), size=LISTINGS_ON_A_PAGE)
    text = " ".join(query.get("q", "").split())
    return page(
        request,
        "search.html",
        title=f"Search results for {text}" if text else named.get(slug, "All listings"),
        listings=found[shown.start : shown.start + shown.size],
        count=len(found),
        paging=shown,
        categories=content.categories,
        conditions=CONDITIONS,
        orders=store.ORDERS,
    )


async def listing(request: Request) -> Response:
    id = request.path_params["id"]
    connection = database(request)
    row = store.listing(connection, id)
    if row is None:
        raise missing()
    content = site_content(request, ClassifiedsContent)
    return page(
        request,
        "listing.html",
        listing=row,
        category=content.category(row["category"]),
        remarks=connection.execute(
            "SELECT * FROM classifieds_remark WHERE listing = ? ORDER BY id", (id,)
        ).fetchall(),
        is_saved=connection.execute(
            "SELECT 1 FROM classifieds_saved WHERE listing = ?", (id,)
        ).fetchone(),
        facts=store.facts(connection, id),
        has_spot=id <= len(content.listings),
        is_reported=connection.execute(
            "SELECT 1 FROM classifieds_report WHERE listing = ?", (id,)
        ).fetchone(),
        reasons=notices.REASONS,
        error=request.query_params.get("error", ""),
    )


async def remark(request: Request) -> Response:
    fields, id = await form(request), request.path_params["id"]
    connection = database(request)
    if store.listing(connection, id) is None:
        raise missing()
    if not fields.get("body"):
        return see_other(f"/listing/{id}?error=Write+a+comment+first#comments")
    connection.execute(
        "INSERT INTO classifieds_remark (listing, author, body) VALUES (?, ?, ?)",
        (id, region(request).me.handle, fields["body"]),
    )
    return see_other(f"/listing/{id}#comments")


async def contact(request: Request) -> Response:
    """Show the form for a message to the seller, or store a posted message."""
    fields = await form(request) if request.method == "POST" else {}
    connection = database(request)
    row = store.listing(connection, request.path_params["id"])
    if row is None:
        raise missing()
    if request.method == "POST" and fields.get("body"):
        connection.execute(
            "INSERT INTO classifieds_message (listing, receiver, phone, body) VALUES (?, ?, ?, ?)",
            (row["id"], row["seller"], fields.get("phone", ""), fields["body"]),
        )
        return see_other("/messages")
    error = "Write a message first" if request.method == "POST" else ""
    status = 422 if error else 200
    return page(request, "contact.html", listing=row, fields=fields, error=error, status=status)


async def save(request: Request) -> Response:
    """Save a listing, or remove it from the saved ones."""
    await form(request)
    id, connection = request.path_params["id"], database(request)
    if store.listing(connection, id) is None:
        raise missing()
    forgotten = connection.execute("DELETE FROM classifieds_saved WHERE listing = ?", (id,))
    if not forgotten.rowcount:
        connection.execute("INSERT INTO classifieds_saved VALUES (?)", (id,))
    return see_other(f"/listing/{id}")


async def place(request: Request) -> Response:
    """Describe where a listing can be picked up; a frame shows the map."""
    row, shown = _with_spot(request)
    return page(request, "place.html", listing=row, spot=shown.spot)


async def map_frame(request: Request) -> Response:
    row, _ = _with_spot(request)
    return page(request, "map.html", listing=row)


def _with_spot(request: Request) -> tuple[sqlite3.Row, Listing]:
    id = request.path_params["id"]
    row = store.listing(database(request), id)
    spots = {listing.id: listing for listing in site_content(request, ClassifiedsContent).listings}
    if row is None or id not in spots:
        raise missing()
    return row, spots[id]


ROUTES = (
    Route("/", home),
    Route("/search", search),
    Route("/listing/{id:int}", listing),
    Route("/listing/{id:int}/comment", remark, methods=["POST"]),
    Route("/listing/{id:int}/contact", contact, methods=["GET", "POST"]),
    Route("/listing/{id:int}/save", save, methods=["POST"]),
    Route("/listing/{id:int}/place", place),
    Route("/listing/{id:int}/map", map_frame),
    *account.ROUTES,
    *alerts.ROUTES,
    *details.ROUTES,
    *notices.ROUTES,
    *offers.ROUTES,
    *people.ROUTES,
)


SITE = Site(
    name="classifieds",
    placeholder="__CLASSIFIEDS__",
    folder=Path(__file__).parent,
    schema=store.SCHEMA,
    fill=store.fill,
    generate=generate,
    routes=ROUTES,
    picture=photos.picture,
)
