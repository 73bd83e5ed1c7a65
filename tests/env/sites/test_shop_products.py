"""Product details: specifications, questions, reviews, and sold-out products."""

import pytest

from agentkv_env.sites.server import Server
from agentkv_env.sites.shop.catalogue import search
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


def test_a_product_s_page_leads_to_its_further_pages(shop, content):
    for product in content.catalogue:
        page = shop.get(f"/product/{product.number}")
        address = f"/product/{product.number}"
        assert {f"{address}/specifications", f"{address}/questions"} <= set(page.links)


def test_specifications_stand_on_a_page_of_their_own(shop, content):
    for product in content.catalogue[::9]:
        page = shop.get(f"/product/{product.number}/specifications")
        own = shop.get(f"/product/{product.number}")
        specifications = dict(content.detail(product).specifications)
        for name, value in specifications.items():
            assert f"{name} {value}" in page.text
        assert specifications["Item code"] not in own.text
        assert specifications["Designed by"] in {person.name for person in shop.world.people}


def test_sizes_have_a_guide_where_there_are_several(shop, content):
    with_sizes = next(one for one in content.products if one.sizes)
    without = next(one for one in content.products if not one.sizes)
    page = shop.get(f"/product/{with_sizes.number}/sizes")
    lengths = [length for _, length in content.detail(with_sizes).sizes_cm]
    assert lengths == sorted(set(lengths))
    for size, length in content.detail(with_sizes).sizes_cm:
        assert f"{size} {length} cm" in page.text
    assert "Size guide" in shop.get(f"/product/{with_sizes.number}").text
    assert "Size guide" not in shop.get(f"/product/{without.number}").text
    assert shop.get(f"/product/{without.number}/sizes").status == 404


def test_answers_stand_on_the_questions_page_alone(shop, content):
    for product in content.catalogue[::9]:
        page = shop.get(f"/product/{product.number}/questions").text
        own = shop.get(f"/product/{product.number}").text
        for answer in content.detail(product).answers:
            assert f"{answer.question} {answer.key}: {answer.value}" in page
            assert f"{answer.key}: " not in own


def test_a_product_answers_each_question_once(content):
    for detail in content.details:
        assert len({answer.key for answer in detail.answers}) == len(detail.answers) >= 3


def test_a_question_can_be_asked_and_waits_for_its_answer(shop):
    page = shop.post("/product/3/questions", question="Is it <b>loud</b>?")
    assert page.path == "/product/3/questions"
    assert "Is it <b>loud</b>? No answer yet." in page.text and "<b>loud" not in page.html
    assert "loud" not in shop.get("/product/4/questions").text


def test_an_empty_question_is_refused(shop):
    refused = shop.post("/product/3/questions", question=" ")
    assert refused.status == 422 and "Please write a question." in refused.text


def test_all_reviews_are_sorted_and_paged(shop, content):
    product = max(content.products, key=lambda one: _reviews_of(content, one))
    address = f"/product/{product.number}/reviews"
    assert address in shop.get(f"/product/{product.number}").links
    pages = []
    while address:
        page = shop.get(address)
        pages.append(page)
        address = next((link for link in page.links if "page=" in link and
                        link.endswith(f"page={len(pages) + 1}")), None)  # fmt: skip
    assert sum(page.html.count('class="review"') for page in pages) == _reviews_of(content, product)
    assert all(page.html.count('class="review"') <= 4 for page in pages)


def test_reviews_with_the_fewest_stars_can_be_put_first(shop, content):
    product = max(content.products, key=lambda one: _reviews_of(content, one))
    stars = [one.stars for one in content.reviews if one.product == product.number]
    for order, expected in (("Fewest+stars", min(stars)), ("Most+stars", max(stars))):
        page = shop.get(f"/product/{product.number}/reviews?sort={order}")
        assert page.html.split('class="review-stars">')[1][0] == str(expected)
    assert shop.get(f"/product/{product.number}/reviews?sort=x%27--").status == 200


def test_nobody_reviews_a_product_twice(content):
    pairs = [(review.product, review.author) for review in content.reviews]
    assert len(set(pairs)) == len(pairs)


def test_the_newest_reviews_are_on_the_product_s_own_page(shop, content):
    shop.post("/product/1/review", stars="4 stars", title="Mine", text="Fine.")
    page = shop.get("/product/1")
    assert page.html.split('class="review-title">')[1].startswith("Mine<")


def test_what_is_sold_out_cannot_be_bought(shop, content):
    for product in content.sold_out:
        page = shop.get(f"/product/{product.number}")
        assert "<button disabled>Add to cart</button>" in page.html
        assert "Stock sold out" in page.text and "Delivery back in " in page.text
        refused = shop.post("/cart/add", product=product.number)
        assert "This is sold out." in refused.text
    assert "Your cart is empty." in shop.get("/cart").text


def test_what_can_be_bought_says_how_much_is_left(shop, content):
    for product in content.products[::9]:
        page = shop.get(f"/product/{product.number}")
        assert f"Stock {content.detail(product).stock} left" in page.text
        assert "<button>Add to cart</button>" in page.html


@pytest.mark.parametrize("seed", [3, 75, 1_000_005])
def test_what_is_sold_out_is_neither_the_cheapest_nor_the_dearest_of_its_kind(seed):
    content = World(seed).shop
    assert content.sold_out
    for product in content.sold_out:
        prices = [one.cents for one in content.products if one.kind == product.kind]
        assert min(prices) < product.cents < max(prices)
        assert not [one for one in content.in_category(product.category)
                    if one.cents == product.cents]  # fmt: skip


def test_what_is_sold_out_is_found_and_listed(shop, content):
    product = content.sold_out[0]
    assert search(content, product.name)[0] == product
    page = shop.get(f"/category/{product.category.lower()}?brand={product.brand}")
    assert product.name in page.text


def test_an_alert_is_set_for_what_is_sold_out_and_for_nothing_else(shop, content):
    gone, there = content.sold_out[0], content.products[0]
    assert "Tell me when it is back" in shop.get(f"/product/{gone.number}").text
    assert "Tell me when it is back" not in shop.get(f"/product/{there.number}").text
    shop.post(f"/product/{there.number}/alert")
    page = shop.post(f"/product/{gone.number}/alert")
    assert page.path == "/account/alerts"
    assert gone.name in page.text and there.name not in page.text
    assert "No alerts yet." in shop.post(f"/product/{gone.number}/alert/remove").text


def test_the_wishlist_does_not_sell_what_is_sold_out(shop, content):
    page = shop.post("/wishlist/add", product=content.sold_out[0].number)
    assert '<button class="plain" disabled>Add to cart</button>' in page.html


def test_also_bought_leads_to_other_kinds_of_the_category(shop, content):
    product = content.products[5]
    page = shop.get(f"/product/{product.number}")
    for number in content.detail(product).also_bought:
        other = content.product(number)
        assert other.category == product.category and other.kind != product.kind
        assert f"/product/{number}" in page.links


def test_what_was_looked_at_last_comes_first_and_once(shop, content):
    for number in (1, 2, 3, 4, 5, 3):
        shop.get(f"/product/{number}")
    part = shop.get("/recent")
    assert part.links == ["/product/3", "/product/5", "/product/4", "/product/2"]
    assert 'fetch("/recent")' in shop.get("/").html


def test_new_arrivals_are_the_newest_products_by_day(shop, content):
    pages = [shop.get(f"/new?page={number}") for number in (1, 2, 3)]
    listed = [int(link.rpartition("/")[2]) for page in pages for link in page.links
              if link.startswith("/product/")]  # fmt: skip
    ages = [content.details[number - 1].arrived_days_ago for number in listed]
    assert len(listed) == 18 and ages == sorted(ages)
    assert max(ages) < min(one.arrived_days_ago for number, one in enumerate(content.details, 1)
                           if number not in listed)  # fmt: skip


def test_a_category_can_be_filtered_by_stars(shop, content):
    category = content.categories[0]
    page = shop.get(f"/category/{category.lower()}?stars=4")
    shown = {int(link.rpartition("/")[2]) for link in page.links if link.startswith("/product/")}
    assert shown
    for product in content.in_category(category):
        stars = [one.stars for one in content.reviews if one.product == product.number]
        is_good = bool(stars) and sum(stars) / len(stars) >= 4
        assert (product.number in shown) == is_good


def test_fewer_products_on_a_page_make_more_pages(shop, content):
    page = shop.get(f"/category/{content.categories[0].lower()}?size=4&sort=Lowest+price")
    assert page.html.count('class="card product"') == 4
    assert "size=4&sort=Lowest+price&page=2".replace("+", "%20") in page.html.replace("&amp;", "&")
    odd = shop.get(f"/category/{content.categories[0].lower()}?size=1000")
    assert odd.html.count('class="card product"') == 8
    cheapest = min(content.in_category(content.categories[0]), key=lambda one: one.cents)
    assert money(cheapest.cents) in page.text


def _reviews_of(content, product):
    return sum(review.product == product.number for review in content.reviews)
