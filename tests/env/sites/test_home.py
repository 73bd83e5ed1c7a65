"""The home site: local news, and the user's own data."""

import io

import pytest
from PIL import Image

from agentkv_env.ocr import Ocr
from agentkv_env.sites.home import SITE
from agentkv_env.sites.home.content import NUM_MONTHS, month_of
from agentkv_env.sites.server import Server
from agentkv_env.sites.world import World
from tests.env.sites.site_visitor import SiteVisitor


@pytest.fixture(scope="module")
def server():
    with Server(World(75)) as server:
        yield server


@pytest.fixture
def home(server):
    server.reset()
    return SiteVisitor(server, "home")


def pages(home, address, count):
    return [
        home.get(f"{address}{'&' if '?' in address else '?'}page={n + 1}") for n in range(count)
    ]


def test_the_front_page_leads_to_the_sites_and_to_the_day(home):
    page = home.get("/")
    for site in ("shop", "classifieds", "forum", "wiki"):
        assert f'href="http://{site}.localhost' in page.html
    assert home.world.home.notices[0].subject in page.text
    for link in page.links:
        assert home.get(link).status == 200


def test_every_notice_is_listed_once_and_says_more_on_its_page(home):
    notices = home.world.home.notices
    assert len({notice.subject for notice in notices}) == len(notices)
    links = [link for page in pages(home, "/notices", 3) for link in page.links]
    for notice in notices:
        assert links.count(f"/notice/{notice.id}") == 1
        page = home.get(f"/notice/{notice.id}")
        assert all(f"{key} {value}" in page.text for key, value in notice.facts)
        assert f"/contact/{notice.author.handle}" in page.links
    assert home.get("/notice/0").status == home.get("/notice/999").status == 404


def test_notices_can_be_searched(home):
    notice = home.world.home.notices[-1]
    page = home.get("/notices?q=" + notice.subject.upper().replace(" ", "+"))
    assert f"/notice/{notice.id}" in page.links and "1 notice " in page.text
    assert "0 notices" in home.get("/notices?q=zzzz").text


def test_weather_has_a_row_for_every_town_and_a_forecast(home):
    text = " ".join(page.text for page in pages(home, "/weather", 2))
    for town in home.world.home.weather:
        today, tomorrow = town.forecasts[:2]
        assert f"{town.place} {today.sky} {today.high} C {today.low} C" in text
        assert f"{tomorrow.sky} {tomorrow.high} C" in home.get(f"/weather/{town.place}").text
    assert home.get("/weather/Nowhere").status == 404


def test_the_road_report_comes_after_the_page(home):
    page, rows = home.get("/traffic"), home.get("/traffic/rows")
    assert "Loading the road report" in page.text and 'fetch("/traffic/rows")' in page.html
    for road in home.world.home.roads:
        assert f"{road.start} to {road.end}" not in page.text
        assert f"{road.start} to {road.end} {road.state} {road.delay_minutes} minutes" in rows.text


def test_the_calendar_goes_from_month_to_month(home):
    events = home.world.home.events
    first, last = events[0].day, events[-1].day
    months = [home.get(f"/events?month={month}") for month in range(NUM_MONTHS)]
    seen = " ".join(
        page.text
        for month in range(NUM_MONTHS)
        for page in pages(home, f"/events?month={month}", 3)
    )
    assert all(event.title in seen for event in events)
    assert ["Next month" in page.text for page in months] == [True] * (NUM_MONTHS - 1) + [False]
    assert ["Previous month" in page.text for page in months] == [False] + [True] * (NUM_MONTHS - 1)
    for page, day in ((months[0], first), (months[-1], last)):
        of_month = month_of(home.world.home, day.year, day.month)
        assert f"{day:%B %Y}" in page.text and f"{len(of_month)} events" in page.text
    assert home.get("/events?month=999&page=x").text == months[-1].text


def test_only_the_poster_says_what_an_event_costs(home):
    event = home.world.home.events[0]
    page = home.get(f"/event/{event.id}")
    assert f"Begins {event.begins}" in page.text and f"Host {event.host.name}" in page.text
    assert "dollars" not in page.text.lower()
    drawn = Image.open(io.BytesIO(home.get(f"/image/event-{event.id}.png").body)).convert("RGB")
    lines = [line.text for line in Ocr().read({"poster": drawn})["poster"]]
    assert f"ENTRY {event.entry} DOLLARS" in lines
    for key in ("event-0", "event-x", "event-9999", "event"):
        assert SITE.picture(home.world.region, home.world.home, key) is None


def test_one_can_sign_up_for_what_is_still_to_come(home, server):
    today = home.world.now.date()
    coming = next(event for event in home.world.home.events if event.day >= today)
    assert "not signed up" in home.get("/going").text
    assert "You are signed up." in home.post(f"/event/{coming.id}/go").text
    assert coming.title in home.get("/going").text
    assert "Sign up" in home.post(f"/event/{coming.id}/go").text
    assert coming.title not in home.get("/going").text
    assert home.post("/event/999/go").status == 404


def test_what_is_over_takes_nobody(home):
    over = [event for event in home.world.home.events if event.day < home.world.now.date()]
    assert over
    page = home.post(f"/event/{over[0].id}/go")
    assert "This event is over." in page.text and "Sign up" not in page.text
    assert "not signed up" in home.get("/going").text


def test_everybody_is_in_the_contacts_with_a_phone_of_their_own(home):
    contacts = home.world.home.contacts
    assert len({each.phone for each in contacts}) == len(contacts) == len(home.world.people)
    text = " ".join(page.text for page in pages(home, "/contacts", 3))
    for each in contacts:
        assert f"{each.person.name} {each.department} {each.office}" in text
        page = home.get(f"/contact/{each.person.handle}")
        assert f"Phone {each.phone}" in page.text and f"Hours {each.hours}" in page.text
    assert contacts[0].phone not in text
    assert home.get("/contact/nobody").status == 404


def test_contacts_can_be_searched_by_department(home):
    department = home.world.home.contacts[0].department
    found = [each for each in home.world.home.contacts if each.department == department]
    page = home.get(f"/contacts?q={department}")
    assert f"{len(found)} p" in page.text and found[0].person.name in page.text


def test_settings_change_what_the_front_page_shows(home, server):
    town = home.world.home.weather[3].place
    page = home.post("/settings", town=town, greeting="Hello & <b>you</b>", summary="Weekly")
    assert "Settings saved." in page.text
    assert f"<option selected>{town}</option>" in page.html
    assert 'value="Weekly" checked' in page.html
    front = home.get("/")
    assert f"Weather in {town}" in front.text and "&lt;b&gt;you" in front.html
    home.post("/settings", town="Nowhere", summary="Hourly")
    assert f"Weather in {town}" in home.get("/").text
    server.reset()
    assert f"Weather in {home.world.me.place}" in home.get("/").text


def test_a_library_card_is_given_to_those_who_accept_the_rules(home):
    page = home.get("/card")
    assert "disabled>Get a card" in page.html
    number = str(home.world.home.card_number)
    assert number not in page.text
    refused = home.post("/card", branch=home.world.places[0])
    assert refused.status == 422 and "Accept the rules first." in refused.text
    page = home.post("/card", branch=home.world.places[0], rules="yes")
    assert f"Card number {number} Branch {home.world.places[0]}" in page.text
