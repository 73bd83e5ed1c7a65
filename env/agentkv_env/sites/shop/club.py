"""Membership and gift cards."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agentkv_env.sites.shop.services import GiftCard
from agentkv_env.sites.shop.view import shop, show, signed_in
from agentkv_env.sites.site import database, form, see_other

PLANS = ("Yearly", "Monthly")


@signed_in
async def club(request: Request) -> Response:
    return show(request, "club.html", plans=PLANS)


@signed_in
async def join(request: Request) -> Response:
    """Join the club, if the customer has accepted the rules."""
    fields = await form(request)
    if fields.get("rules") == "yes":
        plan = fields.get("plan", "")
        database(request).execute(
            "UPDATE shop_customer SET plan = ?", (plan if plan in PLANS else PLANS[0],)
        )
    return see_other("/club")


@signed_in
async def leave(request: Request) -> Response:
    database(request).execute("UPDATE shop_customer SET plan = ''")
    return see_other("/club")


@signed_in
async def gift_cards(request: Request) -> Response:
    code = request.query_params.get("code", "").strip().upper()
    card = _card(request, code)
    return show(
        request,
        "gift-cards.html",
        code=code,
        card=card,
        is_redeemed=card is not None and _is_redeemed(request, card),
    )


@signed_in
async def redeem(request: Request) -> Response:
    """Add a gift card to the customer's balance, once."""
    card = _card(request, (await form(request)).get("code", ""))
    db = database(request)
    if card is not None and not _is_redeemed(request, card):
        db.execute("INSERT INTO shop_redeemed VALUES (?)", (card.code,))
        db.execute("UPDATE shop_customer SET gift_cents = gift_cents + ?", (card.cents,))
    return see_other("/account/gift-cards")


def _card(request: Request, code: str) -> GiftCard | None:
    return next((card for card in shop(request).gift_cards if card.code == code), None)


def _is_redeemed(request: Request, card: GiftCard) -> bool:
    found = database(request).execute("SELECT 1 FROM shop_redeemed WHERE code = ?", (card.code,))
    return found.fetchone() is not None


ROUTES: list[BaseRoute] = [
    Route("/club", club),
    Route("/club/join", join, methods=["POST"]),
    Route("/club/leave", leave, methods=["POST"]),
    Route("/account/gift-cards", gift_cards),
    Route("/account/gift-cards", redeem, methods=["POST"]),
]
