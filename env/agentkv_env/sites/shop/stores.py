"""The stores: addresses, stock and reservations."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agentkv_env.sites.shop.content import slug
from agentkv_env.sites.shop.view import requested_product, shop, show, signed_in
from agentkv_env.sites.site import database, form, missing, see_other


async def stores(request: Request) -> Response:
    return show(request, "stores.html")


async def store(request: Request) -> Response:
    for index, found in enumerate(shop(request).stores, 1):
        if slug(found.place) == request.path_params["place"]:
            return show(request, "store.html", store=found, index=index)
    raise missing()


async def product_in_stores(request: Request) -> Response:
    return _in_stores(request, error="")


def _in_stores(request: Request, error: str) -> Response:
    product = requested_product(request)
    return show(
        request,
        "in-stores.html",
        status=422 if error else 200,
        product=product,
        left=_left(request),
        error=error,
    )


def _left(request: Request) -> dict[str, int]:
    """Show the stock of the product in each store."""
    content = shop(request)
    pieces = content.detail(requested_product(request)).in_stores
    return {store.place: count for store, count in zip(content.stores, pieces, strict=True)}


@signed_in
async def reserve(request: Request) -> Response:
    """Reserve a unit in a store; a product can be reserved in one store at a time."""
    place = (await form(request)).get("store", "")
    if not _left(request).get(place):
        return _in_stores(request, error="There is none left in that store.")
    database(request).execute(
        "INSERT INTO shop_reservation (product, place) VALUES (?, ?)"
        " ON CONFLICT DO UPDATE SET place = excluded.place",
        (requested_product(request).number, place),
    )
    return see_other("/account/reservations")


@signed_in
async def reservations(request: Request) -> Response:
    rows = database(request).execute("SELECT * FROM shop_reservation ORDER BY product")
    kept = [(shop(request).catalogue[row["product"] - 1], row["place"]) for row in rows]
    return show(request, "reservations.html", kept=kept)


@signed_in
async def give_up(request: Request) -> Response:
    database(request).execute(
        "DELETE FROM shop_reservation WHERE product = ?", (requested_product(request).number,)
    )
    return see_other("/account/reservations")


ROUTES: list[BaseRoute] = [
    Route("/stores", stores),
    Route("/stores/{place}", store),
    Route("/product/{number:int}/stores", product_in_stores),
    Route("/product/{number:int}/stores", reserve, methods=["POST"]),
    Route("/product/{number:int}/stores/cancel", give_up, methods=["POST"]),
    Route("/account/reservations", reservations),
]
