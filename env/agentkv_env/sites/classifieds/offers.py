"""Offers: prices that users propose for listings."""

import sqlite3

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentkv_env.sites.classifieds import account, store
from agentkv_env.sites.classifieds.page import page
from agentkv_env.sites.site import database, form, missing, region, see_other, whole_number


async def offers(request: Request) -> Response:
    me = region(request).me.handle
    found = database(request).execute(
        "SELECT o.*, l.title, l.price, l.seller, l.is_sold FROM classifieds_offer o"
        " JOIN classifieds_listing l ON l.id = o.listing ORDER BY o.id"
    ).fetchall()  # fmt: skip
    return page(
        request,
        "offers.html",
        made=[row for row in found if row["buyer"] == me],
        received=[row for row in found if row["seller"] == me],
    )


async def offer(request: Request) -> Response:
    """Show the form for an offer, or store an offer between half the price and the price."""
    fields = await form(request) if request.method == "POST" else {}
    connection, me = database(request), region(request).me.handle
    row = store.listing(connection, request.path_params["id"])
    if row is None or row["seller"] == me:
        raise missing()
    wrong = _wrong(row, fields) if request.method == "POST" or row["is_sold"] else ""
    if request.method == "POST" and not wrong:
        connection.execute(
            "DELETE FROM classifieds_offer WHERE listing = ? AND buyer = ?", (row["id"], me)
        )
        connection.execute(
            "INSERT INTO classifieds_offer (listing, buyer, dollars, note) VALUES (?, ?, ?, ?)",
            (row["id"], me, whole_number(fields["dollars"], 0), fields.get("note", "")),
        )
        return see_other("/offers")
    status = 422 if wrong and request.method == "POST" else 200
    return page(
        request, "offer.html", listing=row, least=_least(row), fields=fields, error=wrong,
        status=status,
    )  # fmt: skip


async def take_back(request: Request) -> Response:
    await form(request)
    database(request).execute(
        "DELETE FROM classifieds_offer WHERE id = ? AND buyer = ?",
        (request.path_params["id"], region(request).me.handle),
    )
    return see_other("/offers")


async def decide(request: Request) -> Response:
    """Accept an offer, which sells the listing and declines the others, or decline it."""
    await form(request)
    connection, decision = database(request), request.path_params["decision"]
    row = connection.execute(
        "SELECT o.* FROM classifieds_offer o JOIN classifieds_listing l ON l.id = o.listing"
        " WHERE o.id = ? AND l.seller = ?",
        (request.path_params["id"], region(request).me.handle),
    ).fetchone()
    if row is None or decision not in ("accept", "decline"):
        raise missing()
    if decision == "decline":
        _set_state(connection, "declined", "id = ?", row["id"])
        return see_other("/offers")
    _set_state(connection, "declined", "listing = ?", row["listing"])
    _set_state(connection, "accepted", "id = ?", row["id"])
    connection.execute("UPDATE classifieds_listing SET is_sold = 1 WHERE id = ?", (row["listing"],))
    return see_other("/offers")


async def sold(request: Request) -> Response:
    """Mark a listing of the user as sold, or as available again."""
    await form(request)
    row = account.own(request)
    database(request).execute(
        "UPDATE classifieds_listing SET is_sold = ? WHERE id = ?", (1 - row["is_sold"], row["id"])
    )
    return see_other(f"/listing/{row['id']}")


def _set_state(connection: sqlite3.Connection, state: str, where: str, value: int) -> None:
    connection.execute(f"UPDATE classifieds_offer SET state = ? WHERE {where}", (state, value))


def _least(row: sqlite3.Row) -> int:
    return -(-int(row["price"]) // 2)


def _wrong(row: sqlite3.Row, fields: dict[str, str]) -> str:
    if row["is_sold"]:
        return "This listing is sold"
    if not _least(row) <= whole_number(fields.get("dollars"), -1) <= row["price"]:
        return f"Offer {_least(row)} to {row['price']} dollars"
    return ""


ROUTES = (
    Route("/offers", offers),
    Route("/listing/{id:int}/offer", offer, methods=["GET", "POST"]),
    Route("/listing/{id:int}/sold", sold, methods=["POST"]),
    Route("/offers/{id:int}/take-back", take_back, methods=["POST"]),
    Route("/offers/{id:int}/{decision:str}", decide, methods=["POST"]),
)
