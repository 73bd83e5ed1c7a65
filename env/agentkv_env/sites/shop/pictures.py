"""Draw the pictures of the shop; the pages do not repeat their texts."""

from datetime import timedelta

from agentkv_env.sites.images import label, poster, receipt, scene
from agentkv_env.sites.region import Region
from agentkv_env.sites.shop.content import ShopContent, slug
from agentkv_env.sites.site import money, whole_number

PAY_WITHIN_DAYS = 14
"""An invoice is due this many days after the order."""


def picture(region: Region, content: ShopContent, key: str) -> bytes | None:
    """Draw the picture `key`: a word, a dash and a number, or "shipping".

    The words: photo-KIND, tag and label of a product, parcel, receipt and invoice of an order,
    coupon, card (a gift card), sign (of a store).
    """
    shop = content
    kind, _, rest = key.partition("-")
    if kind == "shipping" and not rest:
        limit = f"FROM {shop.free_shipping_dollars} DOLLARS"
        return poster(["FREE SHIPPING", limit, "STANDARD PARCELS ONLY"], key=key)
    if kind == "photo":
        return _photo(shop, rest)
    number = whole_number(rest, 0)
    if kind in ("tag", "label"):
        return _of_product(shop, kind, number)
    if kind == "coupon":
        return _coupon(shop, number)
    if kind == "card":
        return _gift_card(shop, number)
    if kind == "sign":
        return _sign(shop, number)
    if kind == "invoice":
        return _invoice(region, shop, number)
    if kind in ("parcel", "receipt"):
        return _of_order(shop, kind, number)
    return None


def _photo(shop: ShopContent, rest: str) -> bytes | None:
    name, _, variant = rest.rpartition("-")
    kinds = {slug(product.kind): product.kind for product in shop.products}
    if name not in kinds or variant not in ("0", "1"):
        return None
    return scene(kinds[name], key=f"{shop.name}-{rest}")


def _of_product(shop: ShopContent, kind: str, number: int) -> bytes | None:
    product = shop.product(number)
    if product is None or (kind == "tag" and product.club_cents is None):
        return None
    if kind == "tag":
        assert product.club_cents is not None
        tag = f"CLUB {money(product.club_cents)}"
        return scene(product.kind, key=f"{shop.name}-{number}", tag=tag)
    lines = [f"MODEL {product.model}", f"WEIGHT {product.grams} grams"]
    return label(lines, key=product.name)


def _coupon(shop: ShopContent, number: int) -> bytes | None:
    if not 1 <= number <= len(shop.coupons):
        return None
    coupon = shop.coupons[number - 1]
    days = f"{coupon.days_left} DAYS LEFT"
    lines = [f"{coupon.percent} PERCENT OFF", f"CODE {coupon.code}", days]
    return poster(lines, key=coupon.category, width=340, height=200)


def _of_order(shop: ShopContent, kind: str, number: int) -> bytes | None:
    order = next((order for order in shop.orders if order.number == number), None)
    if order is None:
        return None
    if kind == "parcel":
        return label(["PARCEL", f"TRACKING {order.tracking}"], key=order.tracking)
    bought = [(shop.products[line - 1], quantity) for line, quantity in order.lines]
    rows = [(f"{quantity} x {product.kind}", money(quantity * product.cents))
            for product, quantity in bought]  # fmt: skip
    total = sum(quantity * product.cents for product, quantity in bought)
    return receipt([*rows, ("PAID", money(total))], title=shop.name.upper())


def _gift_card(shop: ShopContent, number: int) -> bytes | None:
    if not 1 <= number <= len(shop.gift_cards):
        return None
    code = shop.gift_cards[number - 1].code
    return poster(["GIFT CARD", f"CODE {code}"], key=code, width=340, height=160)


def _sign(shop: ShopContent, number: int) -> bytes | None:
    if not 1 <= number <= len(shop.stores):
        return None
    store = shop.stores[number - 1]
    opens, closes = store.sunday
    lines = ["WELCOME", f"SUNDAY {opens} TO {closes}", f"CLOSED ON {store.closed_on}"]
    return poster(lines, key=store.place, width=360, height=200)


def _invoice(region: Region, shop: ShopContent, number: int) -> bytes | None:
    order = next((order for order in shop.orders if order.number == number), None)
    if order is None:
        return None
    total = sum(shop.products[line - 1].cents * quantity for line, quantity in order.lines)
    due = region.now - timedelta(days=order.days_ago - PAY_WITHIN_DAYS)
    lines = [
        f"INVOICE {order.invoice}",
        f"TOTAL {money(total)}",
        f"PAY BY {due.day} {due:%B}".upper(),
    ]
    return label(lines, key=order.invoice)
