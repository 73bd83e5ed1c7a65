"""The classifieds: offers, ratings, alerts, details, reports, the cookie banner, maps."""

import io
import re

import pytest
from PIL import Image

from agentkv_env.ocr import Ocr
from agentkv_env.sites.server import Server
from agentkv_env.sites.world import World
from tests.env.sites.site_visitor import SiteVisitor

FIRST_PAGE = {"title": "Purple kazoo", "category": "music", "price": "12", "condition": "Used"}


@pytest.fixture(scope="module")
def server():
    with Server(World(75)) as server:
        yield server


@pytest.fixture
def classifieds(server):
    server.reset()
    return SiteVisitor(server, "classifieds")


@pytest.fixture
def listings(classifieds):
    return classifieds.world.classifieds.listings


def is_free(classifieds, listing):
    return listing.seller != classifieds.world.me.handle and not listing.is_sold


def row(page, key):
    return re.search(rf'<th scope="row">{key}</th><td[^>]*>(.*?)</td>', page.html)[1]


def test_the_facts_of_a_listing_are_rows_of_its_table(classifieds, listings):
    for listing in listings[:8]:
        page = classifieds.get(f"/listing/{listing.id}")
        assert all(row(page, key) == value for key, value in listing.facts)


def test_where_a_listing_is_stands_in_words_and_the_house_only_on_the_map(classifieds, listings):
    listing = listings[0]
    assert f'href="/listing/{listing.id}/place"' in classifieds.get(f"/listing/{listing.id}").html
    page = classifieds.get(f"/listing/{listing.id}/place")
    assert row(page, "Street") == listing.spot.street
    assert row(page, "Bus line") == str(listing.spot.bus)
    assert f"HOUSE {listing.spot.house}" not in page.text
    assert f"/image/map-{listing.id}.png" in classifieds.get(f"/listing/{listing.id}/map").html


def test_maps_can_be_read(classifieds, listings):
    drawn = {x.id: classifieds.get(f"/image/map-{x.id}.png").body for x in listings[:12]}
    read = Ocr().read(
        {str(id): Image.open(io.BytesIO(png)).convert("RGB") for id, png in drawn.items()}
    )
    for listing in listings[:12]:
        spot = listing.spot
        expected = {spot.street, f"HOUSE {spot.house}", f"PARKING {spot.parking} METRES"}
        assert expected <= {line.text for line in read[str(listing.id)]}


def test_an_offer_is_kept_until_it_is_taken_back(classifieds, listings):
    listing = next(x for x in listings if is_free(classifieds, x))
    path = f"/listing/{listing.id}/offer"
    low = classifieds.post(path, dollars=listing.price // 3, note="For school")
    assert low.status == 422 and "For school" in low.html
    assert classifieds.post(path, dollars="").status == 422
    page = classifieds.post(path, dollars=listing.price - 1, note="For school")
    assert page.path == "/offers"
    assert f"{listing.title} ${listing.price - 1} For school waiting" in page.text
    page = classifieds.post(path, dollars=listing.price)
    assert f"{listing.title} ${listing.price} waiting" in page.text
    assert f"${listing.price - 1}" not in page.text
    id = re.search(r"/offers/(\d+)/take-back", page.html)[1]
    assert "You have made no offers" in classifieds.post(f"/offers/{id}/take-back").text


def test_accepting_an_offer_sells_the_listing_and_declines_the_others(classifieds):
    offers = classifieds.world.classifieds.offers
    page = classifieds.get("/offers")
    assert all(f"{x.buyer} offers ${x.dollars} : {x.note}" in page.text for x in offers)
    page = classifieds.post("/offers/2/accept")
    same = [number for number, x in enumerate(offers, 1) if x.listing == offers[1].listing]
    states = dict(
        re.findall(r'id="offer-(\d+)".*?class="offer-state">(\w+)<', page.html, re.DOTALL)
    )
    for number in range(1, len(offers) + 1):
        expected = "accepted" if number == 2 else "declined" if number in same else "waiting"
        assert states[str(number)] == expected
    assert row(classifieds.get(f"/listing/{offers[1].listing}"), "State") == "sold"
    assert "declined" in classifieds.post("/offers/1/decline").text
    assert classifieds.post("/offers/999/accept").status == 404


def test_nobody_makes_an_offer_for_what_is_sold(classifieds, listings):
    listing = next(x for x in listings if x.is_sold)
    page = classifieds.get(f"/listing/{listing.id}")
    assert row(page, "State") == "sold"
    assert "<button disabled>Make an offer</button>" in page.html
    refused = classifieds.post(f"/listing/{listing.id}/offer", dollars=listing.price)
    assert refused.status == 422 and "This listing is sold" in refused.text


def test_an_own_listing_can_be_marked_as_sold_and_put_up_again(classifieds, listings):
    me = classifieds.world.me.handle
    mine = next(x for x in listings if x.seller == me)
    assert row(classifieds.post(f"/listing/{mine.id}/sold"), "State") == "sold"
    assert "sold" in classifieds.get("/mine").text
    assert row(classifieds.post(f"/listing/{mine.id}/sold"), "State") == "for sale"
    foreign = next(x for x in listings if x.seller != me)
    assert classifieds.post(f"/listing/{foreign.id}/sold").status == 403


def test_a_seller_s_rating_is_the_mean_of_what_buyers_gave(classifieds):
    seller = next(x for x in classifieds.world.classifieds.sellers if len(x.ratings) > 2)
    page = classifieds.get(f"/seller/{seller.handle}")
    mean = sum(x.stars for x in seller.ratings) / len(seller.ratings)
    assert row(page, "Rating").startswith(f"{mean:.1f} of 5")
    assert row(page, "Sales") == str(seller.sales)
    assert row(page, "Pick-up hours") == seller.pick_up


def test_a_rating_is_shown_first_and_replaces_the_one_before(classifieds):
    me = classifieds.world.me.handle
    seller = next(x for x in classifieds.world.classifieds.sellers if x.handle != me).handle
    path = f"/seller/{seller}/ratings"
    assert classifieds.post(path, stars="", body="kept words").status == 422
    assert "kept words" in classifieds.post(path, stars="", body="kept words").html
    classifieds.post(path, stars=2, body="Slow")
    page = classifieds.post(path, stars=5, body="Quick <after> all")
    assert f"{me} 5 stars Quick" in page.text and "&lt;after&gt;" in page.html
    assert "Slow" not in page.text
    assert classifieds.post(f"/seller/{me}/ratings", stars=5, body="I am great").status == 422


def test_a_saved_search_is_listed_with_its_count_and_leads_back(classifieds, listings):
    listing = listings[9]
    assert "Save this search" not in classifieds.get("/search").text
    found = classifieds.get(f"/search?category={listing.category}&town={listing.town}")
    assert "Save this search" in found.text
    page = classifieds.post("/alerts", category=listing.category, town=listing.town, most="")
    same = [x for x in listings if (x.category, x.town) == (listing.category, listing.town)]
    name = f"{classifieds.world.classifieds.category(listing.category).name}, {listing.town}"
    assert f"{name} {len(same)} listings now" in page.text
    assert f"{len(same)} listings found" in classifieds.get(page.links[-1]).text
    assert name not in classifieds.post("/alerts/3/delete").text
    assert "Choose a filter first" in classifieds.post("/alerts", q=" ").text


def test_alerts_of_the_world_are_there_from_the_start(classifieds):
    content = classifieds.world.classifieds
    page = classifieds.get("/alerts")
    for alert in content.alerts:
        name = content.category(alert.category).name
        assert f"{name}, {alert.town}, up to ${alert.most}" in page.text


def test_a_listing_is_posted_over_two_pages_that_keep_what_was_typed(classifieds):
    town = classifieds.world.places[0]
    first = {**FIRST_PAGE, "town": town}
    refused = classifieds.post("/post/details", **{**first, "title": ""})
    assert refused.status == 422 and "Give the listing a title" in refused.text
    second = classifieds.post("/post/details", **first)
    assert second.status == 200 and 'value="Purple kazoo"' in second.html
    typed = {"Brand": "Red Star", "Year": "1811", "Length": "x", "publish": "yes"}
    refused = classifieds.post("/post/details", **first, **typed)
    assert refused.status == 422
    for part in ("The year is 1950 to 2026", "Give the length as a whole number"):
        assert part in refused.text
    assert 'value="Red Star"' in refused.html and 'value="Purple kazoo"' in refused.html
    typed = {**typed, "Year": "2011", "Length": "90"}
    page = classifieds.post("/post/details", **first, **typed)
    assert (row(page, "Brand"), row(page, "Year")) == ("Red Star", "2011")
    assert row(page, "Length") == "90 cm" and "Weight" not in page.text
    back = classifieds.post("/post", **first, back="yes")
    assert back.status == 200 and 'value="Purple kazoo"' in back.html


def test_details_of_an_own_listing_can_be_changed(classifieds, listings):
    mine = next(x for x in listings if x.seller == classifieds.world.me.handle)
    form = classifieds.get(f"/listing/{mine.id}/details")
    for key, value in mine.facts:
        number = value if key in ("Brand", "Year") else value.split()[0]
        assert f'name="{key}"' in form.html and f'value="{number}"' in form.html
    page = classifieds.post(f"/listing/{mine.id}/details", Brand="Nobody", Year="1999")
    assert (row(page, "Brand"), row(page, "Year")) == ("Nobody", "1999")
    foreign = next(x for x in listings if x.seller != mine.seller)
    assert classifieds.post(f"/listing/{foreign.id}/details", Year="1999").status == 403


def test_a_listing_is_reported_once_and_for_a_reason(classifieds, listings):
    listing = next(x for x in listings if is_free(classifieds, x))
    assert "<dialog" in classifieds.get(f"/listing/{listing.id}").html
    refused = classifieds.post(f"/listing/{listing.id}/report")
    assert "Choose a reason first" in refused.text and "<dialog" in refused.html
    page = classifieds.post(f"/listing/{listing.id}/report", reason="Wrong price")
    assert "disabled>Reported</button>" in page.html and "<dialog" not in page.html


def test_the_cookie_banner_is_there_until_it_is_answered_and_leads_back(classifieds):
    banner = classifieds.get("/search?category=boats&sort=cheapest")
    assert "This site uses cookies" in banner.text
    back = re.search(r'name="back" value="([^"]*)"', banner.html)[1].replace("&amp;", "&")
    page = classifieds.post("/cookies", choice="all", back=back)
    assert page.path == "/search?category=boats&sort=cheapest"
    assert "cookies" not in page.text and "cookies" not in classifieds.get("/").text
    assert classifieds.post("/cookies", choice="all", back="//elsewhere.example/").path == "/"


def test_a_seller_s_phone_number_is_fetched_and_not_in_the_page(classifieds):
    seller = classifieds.world.classifieds.sellers[2]
    page = classifieds.get(f"/seller/{seller.handle}")
    assert "Show phone number" in page.text and seller.phone not in page.html
    assert classifieds.get(f"/seller/{seller.handle}/phone").html == f"Phone: {seller.phone}"
