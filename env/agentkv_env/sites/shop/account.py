"""The customer's account: profile, addresses, sign-in and messages to the shop."""

import sqlite3

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agentkv_env.sites.region import Region
from agentkv_env.sites.shop.content import ShopContent
from agentkv_env.sites.shop.view import local_path, shop, show, signed_in
from agentkv_env.sites.site import database, form, missing, see_other

PASSWORD = "welcome"
"""Password of the only account; it protects nothing."""
NEWSLETTERS = ("Never", "Weekly", "Monthly")
TOPICS = ("My order", "A product", "Delivery", "Something else")
ADDRESS_FIELDS = ("label", "person", "street", "place", "postcode")


def fill(region: Region, content: ShopContent, db: sqlite3.Connection) -> None:
    """Insert the customer and the saved addresses."""
    db.execute(
        "INSERT INTO shop_customer VALUES (?, ?, ?, 'Never', '', 1, '', 0)",
        (region.me.name, region.me.email, f"555 {1000 + region.seed % 9000}"),
    )
    db.executemany(
        "INSERT INTO shop_address (label, person, street, place, postcode) VALUES (?, ?, ?, ?, ?)",
        (
            (each.label, each.person, each.street, each.place, each.postcode)
            for each in content.addresses
        ),
    )


@signed_in
async def account(request: Request) -> Response:
    return show(request, "account.html", topics=TOPICS)


@signed_in
async def profile(request: Request) -> Response:
    return show(request, "profile.html", newsletters=NEWSLETTERS, error="")


@signed_in
async def save_profile(request: Request) -> Response:
    fields = await form(request)
    name, email = fields.get("name", "")[:80], fields.get("email", "")[:120]
    if not name or "@" not in email:
        error = "Please give a name and an email address."
        return show(
            request, "profile.html", status=422, newsletters=NEWSLETTERS, error=error
        )  # fmt: skip
    newsletter = fields.get("newsletter", "")
    database(request).execute(
        "UPDATE shop_customer SET name = ?, email = ?, phone = ?, newsletter = ?",
        (name, email, fields.get("phone", "")[:40],
         newsletter if newsletter in NEWSLETTERS else NEWSLETTERS[0]),
    )  # fmt: skip
    return see_other("/account")


@signed_in
async def addresses(request: Request) -> Response:
    rows = database(request).execute("SELECT * FROM shop_address ORDER BY id").fetchall()
    return show(request, "addresses.html", addresses=rows)


@signed_in
async def new_address(request: Request) -> Response:
    blank = {**dict.fromkeys(ADDRESS_FIELDS, ""), "person": _customer(request)["name"]}
    return _address_form(request, blank)


@signed_in
async def add_address(request: Request) -> Response:
    fields = await form(request)
    given = _address_fields(fields)
    if not all(given.values()):
        return _address_form(request, given, error="Please fill in every field.")
    database(request).execute(
        "INSERT INTO shop_address (label, person, street, place, postcode)"
        " VALUES (:label, :person, :street, :place, :postcode)",
        given,
    )
    return see_other(local_path(fields.get("next") or "/account/addresses"))


@signed_in
async def edit_address(request: Request) -> Response:
    row = database(request).execute(
        "SELECT * FROM shop_address WHERE id = ?", (request.path_params["id"],)
    )
    found = row.fetchone()
    if found is None:
        raise missing()
    return _address_form(request, dict(found))


@signed_in
async def save_address(request: Request) -> Response:
    given = _address_fields(await form(request))
    if not all(given.values()):
        return _address_form(request, given, error="Please fill in every field.")
    database(request).execute(
        "UPDATE shop_address SET label = :label, person = :person, street = :street,"
        " place = :place, postcode = :postcode WHERE id = :id",
        {**given, "id": request.path_params["id"]},
    )
    return see_other("/account/addresses")


@signed_in
async def delete_address(request: Request) -> Response:
    database(request).execute(
        "DELETE FROM shop_address WHERE id = ?", (request.path_params["id"],)
    )  # fmt: skip
    return see_other("/account/addresses")


def _customer(request: Request) -> sqlite3.Row:
    row: sqlite3.Row = database(request).execute("SELECT * FROM shop_customer").fetchone()
    return row


def _address_fields(fields: dict[str, str]) -> dict[str, str]:
    return {key: fields.get(key, "")[:80] for key in ADDRESS_FIELDS}


def _address_form(request: Request, fields: dict[str, str], error: str = "") -> Response:
    came_from = local_path(request.query_params.get("next", "/account/addresses"))
    return show(
        request,
        "address.html",
        status=422 if error else 200,
        fields=fields,
        error=error,
        next=came_from,
    )


async def sign_in_form(request: Request) -> Response:
    came_from = local_path(request.query_params.get("next", "/account"))
    return show(request, "sign-in.html", next=came_from, error="")


async def sign_in(request: Request) -> Response:
    fields = await form(request)
    came_from = local_path(fields.get("next") or "/account")
    if fields.get("email") != _customer(request)["email"] or fields.get("password") != PASSWORD:
        error = "The email address or the password is wrong."
        return show(request, "sign-in.html", status=422, next=came_from, error=error)
    database(request).execute("UPDATE shop_customer SET signed_in = 1")
    return see_other(came_from)


async def sign_out(request: Request) -> Response:
    database(request).execute("UPDATE shop_customer SET signed_in = 0")
    return see_other("/sign-in")


async def contact(request: Request) -> Response:
    return show(request, "contact.html", topics=TOPICS, error="", fields={})


async def send_message(request: Request) -> Response:
    fields = await form(request)
    text = fields.get("text", "")[:2000]
    if not text:
        error = "Please write a message."
        return show(request, "contact.html", status=422, topics=TOPICS, error=error, fields=fields)
    topic = fields.get("topic", "")
    database(request).execute(
        "INSERT INTO shop_message (topic, order_number, text) VALUES (?, ?, ?)",
        (topic if topic in TOPICS else TOPICS[-1], fields.get("order", "")[:40], text),
    )
    return see_other("/account/messages")


@signed_in
async def messages(request: Request) -> Response:
    rows = database(request).execute("SELECT * FROM shop_message ORDER BY id DESC").fetchall()
    return show(request, "messages.html", messages=rows, shop_name=shop(request).name)


ROUTES: list[BaseRoute] = [
    Route("/account", account),
    Route("/account/profile", profile),
    Route("/account/profile", save_profile, methods=["POST"]),
    Route("/account/addresses", addresses),
    Route("/account/addresses/new", new_address),
    Route("/account/addresses/new", add_address, methods=["POST"]),
    Route("/account/addresses/{id:int}", edit_address),
    Route("/account/addresses/{id:int}", save_address, methods=["POST"]),
    Route("/account/addresses/{id:int}/delete", delete_address, methods=["POST"]),
    Route("/account/messages", messages),
    Route("/sign-in", sign_in_form),
    Route("/sign-in", sign_in, methods=["POST"]),
    Route("/sign-out", sign_out, methods=["POST"]),
    Route("/contact", contact),
    Route("/contact", send_message, methods=["POST"]),
]
