"""Services of the shop: stores, gift cards, the club, and past orders."""

import io
from datetime import timedelta

import pytest
from PIL import Image

from agentkv_env.ocr import Ocr
from agentkv_env.sites.server import Server
from agentkv_env.sites.shop.pictures import picture
from agentkv_env.sites.site import money
from agentkv_env.sites.world import World
from tests.env.sites.site_visitor import SiteVisitor


@pytest.fixture(scope="module")
def server():
    with Server(World(75)) as server:
        yield server


@pytest.fixture
def shop(server):
    server.reset()
    return SiteVisitor(server, "shop")


@pytest.fixture
def content(shop):
    return shop.world.shop


def test_every_store_has_its_page(shop, content):
    page = shop.get("/stores")
    for store in content.stores:
        assert f"/stores/{store.place.lower()}" in page.links
        own = shop.get(f"/stores/{store.place.lower()}").text
        for fact in (f"Street {store.street}", f"Manager {store.manager}",
                     f"Parking {store.parking} cars"):  # fmt: skip
            assert fact in own
        assert all(f"{day} {hours}" in own for day, hours in store.week)
        assert "SUNDAY" not in own.upper() and store.closed_on not in own.upper()
    assert shop.get("/stores/nowhere").status == 404


def test_a_store_closes_later_on_its_late_day(content):
    store = content.stores[0]
    opens, closes = store.hours
    week = dict(store.week)
    assert week.pop(store.late_day) == f"{opens} to {closes + 2}"
    week.pop("Saturday")
    assert set(week.values()) == {f"{opens} to {closes}"}


def test_every_town_has_its_delivery_time(shop, content):
    page = shop.get("/help/delivery").text
    assert {place for place, _ in content.delivery_days} == set(shop.world.places)
    assert all(f"{place} {days} day" in page for place, days in content.delivery_days)
    assert "/help/delivery" in shop.get("/help/shipping").links


def test_a_piece_is_kept_in_a_store_that_has_one(shop, content):
    product = next(
        one
        for one in content.products
        if 0 in content.detail(one).in_stores and any(content.detail(one).in_stores)
    )
    pieces = dict(zip((store.place for store in content.stores),
                      content.detail(product).in_stores, strict=True))  # fmt: skip
    address = f"/product/{product.number}/stores"
    page = shop.get(address)
    for place, count in pieces.items():
        assert f"{place} {f'{count} left' if count else 'none'}" in page.text
    empty = next(place for place, count in pieces.items() if not count)
    full = next(place for place, count in pieces.items() if count)
    refused = shop.post(address, store=empty)
    assert refused.status == 422 and "There is none left in that store." in refused.text
    kept = shop.post(address, store=full)
    assert kept.path == "/account/reservations"
    assert f"{product.name} Store: {full}" in kept.text
    assert "No reservations yet." in shop.post(f"{address}/cancel").text


def test_signs_cards_and_invoices_can_be_read(shop, content):
    store, order = content.stores[0], content.orders[1]
    opens, closes = store.sunday
    expected = {
        "sign-1": [f"SUNDAY {opens} TO {closes}", f"CLOSED ON {store.closed_on}"],
        "card-1": [f"CODE {content.gift_cards[0].code}"],
        "card-2": [f"CODE {content.gift_cards[1].code}"],
        f"invoice-{order.number}": [f"INVOICE {order.invoice}"],
    }
    drawn = {key: Image.open(io.BytesIO(picture(shop.world.region, content, key))).convert("RGB")
             for key in expected}  # fmt: skip
    read = Ocr().read(drawn)
    for key, lines in expected.items():
        assert set(lines) <= {line.text for line in read[key]}


@pytest.mark.parametrize("key", ["sign-0", "sign-9", "card-0", "card-9", "card", "invoice-1"])
def test_an_unknown_picture_is_missing(shop, key):
    assert shop.get(f"/image/{key}.png").status == 404


def test_a_gift_card_is_checked_and_added_once(shop, content):
    card = content.gift_cards[1]
    page = shop.get("/account/gift-cards")
    assert card.code not in page.text and f"From {card.giver}" in page.text
    checked = shop.get(f"/account/gift-cards?code={card.code.lower()}")
    assert f"On this card: {money(card.cents)}" in checked.text
    for _ in range(2):
        page = shop.post("/account/gift-cards", code=card.code)
    assert f"Balance: {money(card.cents)}" in page.text
    again = shop.get(f"/account/gift-cards?code={card.code}")
    assert "This card is in your balance." in again.text and "Add to balance" not in again.text


def test_a_wrong_gift_card_is_refused(shop):
    assert "There is no such gift card." in shop.get("/account/gift-cards?code=AB-1").text
    assert "Balance: $0.00" in shop.post("/account/gift-cards", code="AB-1").text


def test_a_gift_card_pays_for_an_order_and_comes_back_when_it_is_cancelled(shop, content):
    card, product = content.gift_cards[0], content.products[0]
    shop.post("/cart/add", product=product.number)
    assert "Use gift card balance" not in shop.get("/checkout").text
    shop.post("/account/gift-cards", code=card.code)
    assert f"Use gift card balance ({money(card.cents)})" in shop.get("/checkout").text
    page = shop.post("/checkout", shipping="Pick up", gift_card="yes")
    used = min(card.cents, product.cents)
    assert f"Gift card {money(used)} off" in page.text
    assert f"Total {money(product.cents - used)}" in page.text
    assert f"Balance: {money(card.cents - used)}" in shop.get("/account/gift-cards").text
    shop.post(f"{page.path}/cancel")
    assert f"Balance: {money(card.cents)}" in shop.get("/account/gift-cards").text


def test_the_club_is_joined_in_a_dialog_and_left_in_another(shop, content):
    page = shop.get("/club")
    assert "<dialog" in page.html and 'id="confirm" disabled' in page.html
    assert f"Yearly {money(content.club.yearly_cents)}" in page.text
    assert "Your plan none" in shop.post("/club/join", plan="Monthly").text
    assert "Your plan Monthly" in shop.post("/club/join", plan="Monthly", rules="yes").text
    assert "Club Monthly" in shop.get("/account").text
    assert "Leave the club?" in shop.get("/club").text
    assert "Your plan none" in shop.post("/club/leave").text


def test_a_delivery_slot_can_be_chosen(shop):
    day = f"{shop.world.now + timedelta(days=2):%A}"
    shop.post("/cart/add", product=1)
    assert f"<option>{day} evening</option>" in shop.get("/checkout").html
    assert f"Delivery slot {day} evening" in shop.post("/checkout", slot=f"{day} evening").text
    shop.post("/cart/add", product=1)
    assert "Delivery slot" not in shop.post("/checkout", slot="at night").text


def test_what_is_saved_for_later_leaves_the_cart_and_comes_back(shop, content):
    for number in (1, 2):
        shop.post("/cart/add", product=number, quantity=3)
    page = shop.post("/cart/1/later")
    assert page.html.count('class="line"') == 1 and "Saved for later" in page.text
    assert f"Total {money(3 * content.products[1].cents)}" in page.text
    back = shop.post("/later/1/cart")
    assert back.html.count('class="line"') == 2 and 'id="later"' not in back.html
    assert back.html.count('value="3"') == 2


def test_an_order_s_history_says_what_happened_when(shop, content):
    for order in content.orders:
        page = shop.get(f"/order/{order.number}/history").text
        assert "Ordered" in page and "Paid" in page
        assert ("Cancelled" in page) == (order.status == "Cancelled")
        assert (f"Brought by {order.courier}" in page) == (order.status == "Delivered")


def test_cancelling_enters_the_history(shop, content):
    number = content.orders[-1].number
    for _ in range(2):
        shop.post(f"/order/{number}/cancel")
    assert shop.get(f"/order/{number}/history").text.count("Cancelled") == 1


def test_the_invoice_s_number_is_only_in_its_picture(shop, content):
    for order in content.orders:
        page = shop.get(f"/order/{order.number}/invoice")
        assert f"/image/invoice-{order.number}.png" in page.html and order.invoice not in page.text
    shop.post("/cart/add", product=1)
    new = shop.post("/checkout")
    assert "The invoice comes with the parcel." in shop.get(f"{new.path}/invoice").text


def test_a_line_of_a_recent_order_can_be_returned(shop, content):
    order = content.orders[2]
    product = content.product(order.lines[1][0])
    page = shop.get(f"/order/{order.number}/return")
    line = page.html.split(f'">{product.name}</option>')[0].rpartition('"')[2]
    sent = shop.post(f"/order/{order.number}/return", line=line, reason="Broken", refund="New one")
    assert sent.path == "/account/returns"
    assert f"Return 1 Order {order.number} {product.name} Broken New one" in sent.text
    shop.post(f"/order/{order.number}/return", line=line, reason="Too small", refund="New one")
    assert shop.get("/account/returns").html.count('class="return"') == 1


@pytest.mark.parametrize("index", [0, 1, 3])
def test_what_is_old_cancelled_or_not_here_yet_cannot_be_returned(shop, content, index):
    number = content.orders[index].number
    assert "This order cannot be returned" in shop.get(f"/order/{number}/return").text
    shop.post(f"/order/{number}/return", line=1)
    assert "No returns yet." in shop.get("/account/returns").text


def test_another_order_s_line_cannot_be_returned(shop, content):
    shop.post(f"/order/{content.orders[2].number}/return", line=1)
    assert "No returns yet." in shop.get("/account/returns").text
