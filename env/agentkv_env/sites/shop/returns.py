"""Returns of ordered products."""

from datetime import datetime, timedelta

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agentkv_env.sites.shop.cart import as_lines
from agentkv_env.sites.shop.orders import requested_lines, requested_order
from agentkv_env.sites.shop.view import shop, show, signed_in
from agentkv_env.sites.site import database, form, region, see_other, whole_number

RETURN_DAYS = 90
REASONS = ("Too small", "Too large", "Broken", "Wrong product", "Not needed")
REFUNDS = ("Money back", "New one", "Gift card")


def may_return(request: Request) -> bool:
    """Return whether the order in the address was delivered recently enough for a return."""
    order = requested_order(request)
    placed = datetime.fromisoformat(order["placed"])
    is_recent = region(request).now - placed <= timedelta(days=RETURN_DAYS)
    return bool(order["status"] == "Delivered" and is_recent)


@signed_in
async def return_form(request: Request) -> Response:
    return show(
        request,
        "return.html",
        order=requested_order(request),
        lines=as_lines(shop(request), requested_lines(request)),
        may_return=may_return(request),
        days=RETURN_DAYS,
        reasons=REASONS,
        refunds=REFUNDS,
    )


@signed_in
async def send_back(request: Request) -> Response:
    """Register the return of an order line, or change the reason of a registered return."""
    fields = await form(request)
    line = whole_number(fields.get("line"), 0)
    if not may_return(request) or line not in {row["id"] for row in requested_lines(request)}:
        return see_other(f"{request.url.path}")
    reason, refund = fields.get("reason"), fields.get("refund")
    database(request).execute(
        "INSERT INTO shop_return (line, reason, refund) VALUES (?, ?, ?)"
        " ON CONFLICT DO UPDATE SET reason = excluded.reason, refund = excluded.refund",
        (
            line,
            reason if reason in REASONS else REASONS[-1],
            refund if refund in REFUNDS else REFUNDS[0],
        ),
    )
    return see_other("/account/returns")


@signed_in
async def registered(request: Request) -> Response:
    rows = database(request).execute(
        "SELECT shop_return.id, number, product, reason, refund FROM shop_return"
        " JOIN shop_order_line ON shop_order_line.id = line ORDER BY shop_return.id"
    )
    named = [(row, shop(request).products[row["product"] - 1]) for row in rows]
    return show(request, "registered.html", returns=named)


ROUTES: list[BaseRoute] = [
    Route("/order/{number:int}/return", return_form),
    Route("/order/{number:int}/return", send_back, methods=["POST"]),
    Route("/account/returns", registered),
]
