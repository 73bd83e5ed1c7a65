import pytest

from agentkv_env.sites import World
from agentkv_env.sites.shop.catalogue import search
from agentkv_env.sites.site import money

SHOP = "http://shop.localhost"


def test_searching_for_a_full_name_finds_that_product_first(world: World) -> None:
    for product in world.shop.products:
        assert search(world.shop, product.name)[0] == product


def test_search_prefers_products_that_hold_all_words(world: World) -> None:
    product = world.shop.products[0]
    found = search(world.shop, f"{product.brand} {product.kind}")
    assert product in found
    assert all(product.brand in other.name for other in found)


def test_searching_for_nonsense_finds_nothing(visitor) -> None:
    assert "Nothing found" in visitor.get(f"{SHOP}/search?q=qqqq").text


def test_sorting_by_price_puts_the_cheapest_first(world: World, visitor) -> None:
    category = world.shop.categories[0]
    cheapest = min(world.shop.in_category(category), key=lambda product: product.cents)
    page = visitor.get(f"{SHOP}/category/{category.lower()}?sort=Lowest+price").text
    first = page.index('class="card product"')
    assert cheapest.name in page[first : first + 400]


def test_filters_by_brand_and_price_hold(world: World, visitor) -> None:
    product = world.shop.products[3]
    dollars = product.cents // 100
    page = visitor.get(
        f"{SHOP}/category/{product.category.lower()}?brand={product.brand}"
        f"&min={dollars}&max={dollars + 1}"
    ).text
    assert product.name in page and "1 product<" in page


def test_odd_filters_are_ignored(world: World, visitor) -> None:
    category = world.shop.categories[0].lower()
    page = visitor.get(f"{SHOP}/category/{category}?min=abc&max=-4&page=999&sort=x")
    assert page.status == 200 and "Page 2 of 2" in page.text


def test_paging_keeps_the_filters(world: World, visitor) -> None:
    category = world.shop.categories[0].lower()
    page = visitor.get(f"{SHOP}/category/{category}?sort=Name&page=1")
    assert f"{SHOP}/category/{category}?sort=Name&page=2" in page.links


def test_the_cart_adds_up(world: World, visitor) -> None:
    first, second = world.shop.products[0], world.shop.products[1]
    visitor.post(f"{SHOP}/cart/add", product=first.number, quantity=2)
    page = visitor.post(f"{SHOP}/cart/add", product=second.number).text
    assert first.name in page and second.name in page
    assert f'id="total">{money(2 * first.cents + second.cents)}<' in page
    assert "Cart (3)" in page


def test_the_same_choice_twice_is_one_line_and_another_colour_is_another(
    world: World, visitor
) -> None:
    product = next(each for each in world.shop.products if len(each.colours) > 1)
    for colour in (product.colours[0], product.colours[0], product.colours[1]):
        page = visitor.post(f"{SHOP}/cart/add", product=product.number, colour=colour).text
    assert page.count('class="line"') == 2


def test_a_quantity_of_none_removes_the_line(visitor) -> None:
    visitor.post(f"{SHOP}/cart/add", product=1)
    assert 'value="4"' in visitor.post(f"{SHOP}/cart/1/quantity", quantity=4).text
    assert "Your cart is empty" in visitor.post(f"{SHOP}/cart/1/quantity", quantity=0).text


def test_a_coupon_takes_its_share_off_its_category_only(world: World, visitor) -> None:
    coupon = world.shop.coupons[0]
    inside = world.shop.in_category(coupon.category)[0]
    outside = next(each for each in world.shop.products if each.category != coupon.category)
    visitor.post(f"{SHOP}/cart/add", product=inside.number)
    visitor.post(f"{SHOP}/cart/add", product=outside.number)
    page = visitor.post(f"{SHOP}/cart/coupon", code=coupon.code.lower()).text
    discount = inside.cents * coupon.percent // 100
    assert f'id="discount">{money(discount)}<' in page
    assert f'id="total">{money(inside.cents + outside.cents - discount)}<' in page


def test_a_wrong_coupon_is_refused(visitor) -> None:
    visitor.post(f"{SHOP}/cart/add", product=1)
    assert "There is no such coupon." in visitor.post(f"{SHOP}/cart/coupon", code="FREE").text


def test_the_price_on_the_tag_is_given_to_those_who_read_it(world: World, visitor) -> None:
    product = next(each for each in world.shop.products if each.club_cents is not None)
    wrong = visitor.post(f"{SHOP}/cart/add", product=product.number, tag="$1.00").text
    assert "That is not the price on the tag." in wrong
    tag = money(product.club_cents)
    assert f'id="total">{tag}<' in visitor.post(
        f"{SHOP}/cart/add", product=product.number, tag=tag
    ).text  # fmt: skip


def test_an_order_keeps_what_was_chosen_and_empties_the_cart(world: World, visitor) -> None:
    product = world.shop.products[4]
    visitor.post(f"{SHOP}/cart/add", product=product.number, quantity=2)
    page = visitor.post(
        f"{SHOP}/checkout", address=2, shipping="Express", payment="Bank transfer",
        gift_wrap="yes", note="Ring twice",
    )  # fmt: skip
    assert page.url == f"{SHOP}/order/{world.shop.orders[-1].number + 1}"
    for part in (product.name, world.shop.addresses[1].street, "Express", "Bank transfer",
                 "Ring twice", money(2 * product.cents + 990 + 250)):  # fmt: skip
        assert part in page.text
    assert "Your cart is empty" in visitor.get(f"{SHOP}/cart").text
    assert visitor.get(f"{SHOP}/order/latest").body == page.body


def test_an_empty_cart_cannot_be_ordered(world: World, visitor) -> None:
    assert visitor.post(f"{SHOP}/checkout").url == f"{SHOP}/cart"
    latest = visitor.get(f"{SHOP}/order/latest")
    assert f"Order {world.shop.orders[-1].number}" in latest.text


def test_only_an_order_being_packed_can_be_cancelled(world: World, visitor) -> None:
    delivered, packed = world.shop.orders[0], world.shop.orders[-1]
    assert 'id="status">Delivered' in visitor.post(f"{SHOP}/order/{delivered.number}/cancel").text
    assert 'id="status">Cancelled' in visitor.post(f"{SHOP}/order/{packed.number}/cancel").text


def test_an_old_order_can_be_ordered_again(world: World, visitor) -> None:
    order = world.shop.orders[0]
    page = visitor.post(f"{SHOP}/order/{order.number}/again").text
    for number, _ in order.lines:
        assert world.shop.products[number - 1].name in page


def test_the_comparison_keeps_the_last_four(world: World, visitor) -> None:
    for number in range(1, 6):
        page = visitor.post(f"{SHOP}/compare/add", product=number).text
    assert world.shop.products[0].name not in page
    assert all(product.name in page for product in world.shop.products[1:5])


def test_a_review_appears_under_the_customer_s_name(world: World, visitor) -> None:
    page = visitor.post(
        f"{SHOP}/product/1/review", stars="4 stars", title="Sturdy & <b>calm</b>", text="Fine."
    )
    assert page.url.startswith(f"{SHOP}/product/1")
    assert "Sturdy & <b>calm</b>" in page.text and b"<b>calm" not in page.body
    assert world.me.name in page.text


def test_a_review_without_stars_is_refused_and_keeps_what_was_written(visitor) -> None:
    page = visitor.post(f"{SHOP}/product/1/review", stars="", title="Half", text="Not done")
    assert page.status == 422 and "Not done" in page.text


def test_profile_and_addresses_can_be_changed(visitor) -> None:
    page = visitor.post(
        f"{SHOP}/account/profile", name="New Name", email="n@mail.example", phone="1",
        newsletter="Weekly",
    ).text  # fmt: skip
    assert "New Name" in page and "Weekly" in page
    fields = {"label": "Cabin", "person": "New Name", "street": "1 Hill", "place": "Top",
              "postcode": "10001"}  # fmt: skip
    page = visitor.post(f"{SHOP}/account/addresses/new", next="/checkout", **fields)
    assert page.url == f"{SHOP}/checkout"
    assert "Cabin" in visitor.get(f"{SHOP}/account/addresses").text
    assert "Cabin" not in visitor.post(f"{SHOP}/account/addresses/3/delete").text


def test_forms_send_nobody_away_from_the_shop(world: World, visitor) -> None:
    fields = {"label": "A", "person": "B", "street": "C", "place": "D", "postcode": "E"}
    page = visitor.post(f"{SHOP}/account/addresses/new", next="//evil.example/", **fields)
    assert page.url == f"{SHOP}/"


def test_after_signing_out_the_account_asks_to_sign_in(world: World, visitor) -> None:
    visitor.post(f"{SHOP}/sign-out")
    assert visitor.get(f"{SHOP}/orders").url == f"{SHOP}/sign-in?next=/orders"
    refused = visitor.post(f"{SHOP}/sign-in", email=world.me.email, password="wrong")
    assert refused.status == 422
    page = visitor.post(f"{SHOP}/sign-in", email=world.me.email, password="welcome", next="/orders")
    assert page.url == f"{SHOP}/orders"


@pytest.mark.parametrize("path", ["/product/9999", "/category/none", "/brand/none", "/order/1",
                                  "/order/99999999999999999999", "/image/label-0.png",
                                  "/image/tag-9999.png",
                                  "/account/addresses/99"])  # fmt: skip
def test_what_does_not_exist_is_missing(path: str, visitor) -> None:
    assert visitor.get(SHOP + path).status == 404


def test_what_is_only_in_pictures_is_on_no_page(world: World, crawled) -> None:
    secrets = {product.model for product in world.shop.products}
    secrets |= {coupon.code for coupon in world.shop.coupons}
    secrets |= {order.tracking for order in world.shop.orders}
    secrets |= {order.invoice for order in world.shop.orders}
    secrets |= {card.code for card in world.shop.gift_cards}
    secrets |= {
        f">{money(each.club_cents)}" for each in world.shop.products if each.club_cents is not None
    } - {f">{money(each.cents)}" for each in world.shop.products}
    for url, answer in crawled.items():
        if url.startswith(SHOP) and answer.is_page:
            assert not [secret for secret in secrets if secret in answer.text], url
