"""The classifieds: finding, posting and changing listings, writing to sellers."""

import re

import pytest

from agentkv_env.sites.server import Server
from agentkv_env.sites.world import World
from tests.env.sites.site_visitor import SiteVisitor

GOOD = {"title": "Purple kazoo", "category": "music", "price": "12", "condition": "Used"}


@pytest.fixture(scope="module")
def server():
    with Server(World(75)) as server:
        yield server


@pytest.fixture
def classifieds(server):
    server.reset()
    return SiteVisitor(server, "classifieds")


def own(classifieds):
    me = classifieds.world.me.handle
    return next(x for x in classifieds.world.classifieds.listings if x.seller == me)


def foreign(classifieds):
    me = classifieds.world.me.handle
    return next(x for x in classifieds.world.classifieds.listings if x.seller != me)


def titles(page):
    return re.findall(r'<a class="title"[^>]*>([^<]*)<', page.html)


def prices(page):
    return [int(price) for price in re.findall(r'class="price">\$(\d+)<', page.html)]


def test_filters_leave_only_what_fits(classifieds):
    listings = classifieds.world.classifieds.listings
    one = listings[9]
    page = classifieds.get(f"/search?category={one.category}&town={one.town}")
    fitting = {x.title for x in listings if (x.category, x.town) == (one.category, one.town)}
    assert set(titles(page)) == fitting
    assert f"{len(fitting)} listings found" in page.text
    assert max(prices(classifieds.get("/search?most=100"))) <= 100


@pytest.mark.parametrize("order, backwards", [("cheapest", False), ("dearest", True)])
def test_sorting_goes_on_over_the_pages(classifieds, order, backwards):
    pages = [classifieds.get(f"/search?sort={order}&page={number}") for number in range(1, 10)]
    shown = [price for page in pages for price in prices(page)]
    assert len(shown) == len(classifieds.world.classifieds.listings)
    assert shown == sorted(shown, reverse=backwards)


def test_search_wants_every_word_of_the_query_in_the_title(classifieds):
    title = classifieds.world.classifieds.listings[4].title
    words = title.split()
    assert titles(classifieds.get(f"/search?q={words[2]}+{words[0].lower()}")) != []
    assert title in titles(classifieds.get("/search?q=" + "+".join(words)))
    assert titles(classifieds.get(f"/search?q={words[0]}+zzzz")) == []


def test_a_posted_listing_appears_everywhere(classifieds):
    town = classifieds.world.places[0]
    page = classifieds.post("/post", **GOOD, town=town, description="Loud", delivery="yes")
    assert page.path.startswith("/listing/")
    for part in ("Purple kazoo", "$12", "Music", town, "Loud", "possible"):
        assert part in page.text
    assert "Purple kazoo" in classifieds.get("/mine").text
    assert titles(classifieds.get("/search?q=kazoo")) == ["Purple kazoo"]


@pytest.mark.parametrize("field", ["title", "category", "price", "condition", "town"])
def test_a_listing_with_something_missing_is_refused_and_kept_in_the_form(classifieds, field):
    fields = {**GOOD, "town": classifieds.world.places[0], field: ""}
    page = classifieds.post("/post", **fields)
    assert page.status == 422 and 'role="alert"' in page.html
    kept = next(value for key, value in fields.items() if key != field)
    assert kept in page.html
    assert titles(classifieds.get("/search?q=kazoo")) == []


def test_an_own_listing_can_be_changed_and_deleted(classifieds):
    listing = own(classifieds)
    fields = {**GOOD, "town": listing.town}
    page = classifieds.post(f"/listing/{listing.id}/edit", **fields)
    assert "Purple kazoo" in page.text and "pick up only" in page.text
    classifieds.post(f"/listing/{listing.id}/delete")
    assert classifieds.get(f"/listing/{listing.id}").status == 404
    assert "Purple kazoo" not in classifieds.get("/mine").text


def test_nobody_changes_or_deletes_what_belongs_to_somebody_else(classifieds):
    listing = foreign(classifieds)
    town = listing.town
    assert classifieds.post(f"/listing/{listing.id}/edit", **GOOD, town=town).status == 403
    assert classifieds.post(f"/listing/{listing.id}/delete").status == 403
    assert listing.title in classifieds.get(f"/listing/{listing.id}").text


def test_a_letter_to_a_seller_is_filed_with_its_phone_number(classifieds):
    listing = foreign(classifieds)
    path = f"/listing/{listing.id}/contact"
    assert classifieds.post(path, body="", phone="1").status == 422
    page = classifieds.post(path, body="Is it <b>blue</b>?", phone="555 1234")
    assert page.path == "/messages"
    assert f"To {listing.seller} about {listing.title}" in page.text
    assert "Is it &lt;b&gt;blue" in page.html and "555 1234" in page.text


def test_saving_twice_forgets_again(classifieds):
    content = classifieds.world.classifieds
    listing = next(x for x in content.listings if x.id not in content.saved)
    classifieds.post(f"/listing/{listing.id}/save")
    assert listing.title in classifieds.get("/saved").text
    classifieds.post(f"/listing/{listing.id}/save")
    assert listing.title not in titles(classifieds.get("/saved"))


def test_a_comment_is_shown_with_its_author(classifieds):
    page = classifieds.post("/listing/1/comment", body="Nice one")
    assert f"{classifieds.world.me.handle}: Nice one" in page.text
    assert "Write a comment first" in classifieds.post("/listing/1/comment", body=" ").text


def test_what_a_photo_says_stands_nowhere_in_the_page(classifieds):
    read = [x for x in classifieds.world.classifieds.listings if x.photo.kind != "none"]
    assert len(read) > 40
    for listing in read:
        page = classifieds.get(f"/listing/{listing.id}")
        assert not re.search(rf"(?<![\w-]){re.escape(listing.photo.fact)}(?!\d)", page.text)
        assert classifieds.get(f"/image/photo-{listing.id}.png").body.startswith(b"\x89PNG")


def test_a_seller_is_shown_with_all_listings(classifieds):
    seller = classifieds.world.classifieds.listings[0].seller
    mine = [x for x in classifieds.world.classifieds.listings if x.seller == seller]
    page = classifieds.get(f"/seller/{seller}")
    assert f"{len(mine)} listings by {seller}" in page.text
    assert classifieds.get("/seller/nobody").status == 404


def test_every_title_is_unique(classifieds):
    listings = classifieds.world.classifieds.listings
    assert len({listing.title for listing in listings}) == len(listings)
