"""Scripts of the sites in a real browser: dialogs, fetched parts, hidden text, a framed map."""

import pytest

from agentkv_env.actions import parse
from agentkv_env.ocr import Ocr
from agentkv_env.sites.server import Server
from agentkv_env.sites.world import World

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def server():
    with Server(World(75)) as server:
        yield server


@pytest.fixture
def session(browser, server):
    server.reset()
    with browser.session(
        hosts=server.hosts, addresses=server.addresses, viewport=(1280, 1024), ocr=Ocr()
    ) as session:
        yield session


def node(page, name):
    return next(each for each in page.nodes if each.id is not None and each.name == name)


def click(session, name):
    number = node(session.observe(), name).id
    session.act(parse(f"click [{number}]", strict=False))
    return session.observe()


def texts(page):
    return [each.name for each in page.nodes]


def for_sale_by_others(server):
    content, me = server.world.classifieds, server.world.me.handle
    return next(x for x in content.listings if x.seller != me and not x.is_sold)


def test_a_report_can_be_sent_once_a_reason_is_chosen(session, server):
    listing = for_sale_by_others(server)
    session.open(f"http://classifieds.localhost/listing/{listing.id}")
    assert "Send report" not in texts(session.observe())
    opened = click(session, "Report listing")
    assert "disabled" in node(opened, "Send report").states
    chosen = click(session, "Rude words")
    assert "disabled" not in node(chosen, "Send report").states
    assert "disabled" in node(click(session, "Send report"), "Reported").states


def test_a_report_can_be_left_without_sending(session, server):
    session.open(f"http://classifieds.localhost/listing/{for_sale_by_others(server).id}")
    click(session, "Report listing")
    assert "Send report" not in texts(click(session, "Cancel"))


def test_a_phone_number_comes_in_the_place_of_its_button(session, server):
    seller = server.world.classifieds.sellers[2]
    session.open(f"http://classifieds.localhost/seller/{seller.handle}")
    page = click(session, "Show phone number")
    assert f"Phone: {seller.phone}" in texts(page)
    assert "Show phone number" not in texts(page)


def test_a_spoiler_is_read_after_a_click(session, server):
    thread = next(t for t in server.world.forum.threads if t.extras.spoiler)
    session.open(f"http://forum.localhost/thread/{thread.id}")
    assert thread.extras.spoiler not in texts(session.observe())
    assert thread.extras.spoiler in texts(click(session, "Show spoiler"))


def test_the_map_in_the_frame_is_read(session, server):
    listing = server.world.classifieds.listings[2]
    session.open(f"http://classifieds.localhost/listing/{listing.id}/place")
    assert any(f"HOUSE {listing.spot.house}" in text for text in texts(session.observe()))
