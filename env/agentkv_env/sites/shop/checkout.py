"""The checkout: address, shipping, delivery time and payment."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agentkv_env.sites.shop.cart import lines, summary
from agentkv_env.sites.shop.view import shop, show, signed_in
from agentkv_env.sites.site import database, form, money, region, see_other, whole_number


@dataclass(frozen=True, slots=True)
class Shipping:
    """A shipping method."""

    name: str
    cents: int
    days: str

    @property
    def label(self) -> str:
        return f"{self.name} ({money(self.cents) if self.cents else 'free'}, {self.days})"


SHIPPING = (
    Shipping("Standard", 490, "3 to 5 days"),
    Shipping("Express", 990, "next day"),
    Shipping("Pick up", 0, "from our store"),
)
PAYMENTS = ("Invoice", "Bank transfer", "Cash on delivery")
GIFT_WRAP_CENTS = 250
SLOT_DAYS = (2, 3)
"""Days ahead for which a delivery time can be chosen."""


def slots(now: datetime) -> tuple[str, ...]:
    """Return the delivery times; the first is the default."""
    days = [now + timedelta(days=count) for count in SLOT_DAYS]
    return (
        "Any time",
        *(f"{day:%A} {half}" for day in days for half in ("morning", "evening")),
    )


@signed_in
async def checkout(request: Request) -> Response:
    db = database(request)
    return show(
        request,
        "checkout.html",
        lines=lines(db, shop(request)),
        summary=summary(db, shop(request)),
        addresses=db.execute("SELECT * FROM shop_address ORDER BY id").fetchall(),
        methods=SHIPPING,
        payments=PAYMENTS,
        slots=slots(region(request).now),
        gift_wrap_cents=GIFT_WRAP_CENTS,
    )


@signed_in
async def place_order(request: Request) -> Response:
    """Place an order for the cart and empty it; an empty cart leads back to its page."""
    fields = await form(request)
    db = database(request)
    bought, sums = lines(db, shop(request)), summary(db, shop(request))
    address = db.execute(
        "SELECT * FROM shop_address ORDER BY id = ? DESC, id",
        (whole_number(fields.get("address"), 0),),
    ).fetchone()
    if not bought or address is None:
        return see_other("/cart" if not bought else "/account/addresses/new")
    now = region(request).now
    method = next((way for way in SHIPPING if way.name == fields.get("shipping")), SHIPPING[0])
    free_from_cents = shop(request).free_shipping_dollars * 100
    is_free = method is SHIPPING[0] and sums.total_cents >= free_from_cents
    shipping_cents = 0 if is_free else method.cents
    wrap = int(fields.get("gift_wrap") == "yes")
    total = sums.total_cents + shipping_cents + wrap * GIFT_WRAP_CENTS
    (balance,) = db.execute("SELECT gift_cents FROM shop_customer").fetchone()
    from_card = min(balance, total) if fields.get("gift_card") == "yes" else 0
    (number,) = db.execute("SELECT max(number) + 1 FROM shop_order").fetchone()
    order = {
        "number": number,
        "placed": now.isoformat(),
        "status": "Being packed",
        "recipient": address["person"],
        "street": address["street"],
        "place": address["place"],
        "postcode": address["postcode"],
        "shipping": method.name,
        "payment": _one_of(fields.get("payment"), PAYMENTS),
        "gift_wrap": wrap,
        "note": fields.get("note", "")[:200],
        "coupon": sums.coupon.code if sums.coupon else "",
        "discount_cents": sums.discount_cents,
        "shipping_cents": shipping_cents,
        "total_cents": total - from_card,
        "slot": _one_of(fields.get("slot"), slots(now)),
        "gift_card_cents": from_card,
    }
    columns, marks = ", ".join(order), ", ".join(f":{name}" for name in order)
    db.execute(f"INSERT INTO shop_order ({columns}) VALUES ({marks})", order)
    db.execute(
        "INSERT INTO shop_order_line (number, product, colour, size, cents, quantity)"
        " SELECT ?, product, colour, size, cents, quantity FROM shop_cart ORDER BY id",
        (number,),
    )
    db.execute(
        "INSERT INTO shop_order_event (number, step, happened) VALUES (?, 'Ordered', ?)",
        (number, now.isoformat()),
    )
    db.execute("DELETE FROM shop_cart")
    db.execute("UPDATE shop_customer SET coupon = '', gift_cents = gift_cents - ?", (from_card,))
    return see_other(f"/order/{number}")


def _one_of(choice: str | None, choices: tuple[str, ...]) -> str:
    return choice if choice in choices and choice is not None else choices[0]


ROUTES: list[BaseRoute] = [
    Route("/checkout", checkout),
    Route("/checkout", place_order, methods=["POST"]),
]
