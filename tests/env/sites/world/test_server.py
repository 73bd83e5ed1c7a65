import http.client
from collections import Counter
from urllib.parse import urlsplit

import pytest

from agentkv_env.sites import PortBusy, Server, World
from agentkv_env.sites.server import template_bytes


def test_every_address_that_links_lead_to_answers(crawled) -> None:
    broken = {url: answer.status for url, answer in crawled.items() if answer.status != 200}
    only_posted_to = {url for url, status in broken.items() if status == 405}
    assert broken.keys() == only_posted_to
    visited = Counter(urlsplit(url).hostname for url in crawled.keys() - only_posted_to)
    assert {site for site, count in visited.items() if count > 50} == {
        "home.localhost", "shop.localhost", "classifieds.localhost", "forum.localhost",
        "wiki.localhost",
    }  # fmt: skip


def test_forms_that_are_only_posted_to_accept_posts(crawled, visitor) -> None:
    targets = {url for url, answer in crawled.items() if answer.status == 405}
    assert targets
    for url in sorted(targets)[:40]:
        assert visitor.post(url).status in (200, 404, 422), url


def test_no_page_points_away_from_loopback(served: Server, crawled) -> None:
    hosts = {f"{site.name}.localhost" for site in served.world.sites}
    away = {
        link
        for answer in crawled.values()
        for link in answer.links
        if urlsplit(link).scheme != "http" or urlsplit(link).hostname not in hosts
    }
    assert not away


def test_pages_have_titles_and_their_inputs_have_labels(crawled) -> None:
    for url, answer in crawled.items():
        if answer.is_page:
            assert "<title></title>" not in answer.text, url
            assert answer.text.count("<h1") == 1 or answer.status != 200, url


def test_a_missing_page_is_in_the_site_s_own_style(served: Server, visitor) -> None:
    for site in served.world.sites:
        answer = visitor.get(f"http://{site.name}.localhost/no/such/page")
        assert answer.status == 404
        assert "There is nothing at /no/such/page." in answer.text
        assert "/style.css" in answer.text


def test_an_unknown_host_is_told_which_sites_there_are(visitor) -> None:
    answer = visitor.get("http://bank.localhost/")
    assert answer.status == 404
    assert "no site at 'bank.localhost" in answer.text and "shop.localhost" in answer.text


def test_a_reset_brings_back_the_very_bytes(served: Server, visitor) -> None:
    fresh = template_bytes(served.world)
    for _ in range(2):
        visitor.post("http://shop.localhost/cart/add", product=1)
        visitor.post("http://shop.localhost/wishlist/add", product=2)
        assert served.db.serialize() != fresh
        served.reset()
        assert served.db.serialize() == fresh


def test_the_database_of_equal_worlds_is_equal() -> None:
    assert template_bytes(World(7)) == template_bytes(World(7))


def test_the_same_seed_serves_the_same_pages(
    served: Server, visitor, crawled, serve_visitor
) -> None:
    with serve_visitor(World(served.world.seed)) as again:
        for url in sorted(crawled)[::40]:
            assert again.get(url).body == crawled[url].body, url


def test_a_busy_port_is_named(served: Server) -> None:
    other = Server(served.world, port=served.port)
    with pytest.raises(PortBusy, match=f"port {served.port} on 127.0.0.1 is busy"):
        other.start()
    other.stop()


def test_a_stopped_server_frees_its_port(world: World) -> None:
    with Server(world) as first:
        port = first.port
    with Server(world, port=port) as second:
        assert second.port == port


def test_two_servers_of_one_world_do_not_share_state(world: World, visitor, serve_visitor) -> None:
    visitor.post("http://shop.localhost/cart/add", product=1)
    with serve_visitor(world) as other:
        assert "Your cart is empty" in other.get("http://shop.localhost/cart").text


def test_placeholders_are_visualwebarena_s(served: Server) -> None:
    assert served.placeholders == {
        "__HOMEPAGE__": "http://home.localhost",
        "__SHOPPING__": "http://shop.localhost",
        "__CLASSIFIEDS__": "http://classifieds.localhost",
        "__REDDIT__": "http://forum.localhost",
        "__WIKIPEDIA__": "http://wiki.localhost",
    }


def test_pictures_may_be_cached_and_are_the_same_each_time(visitor) -> None:
    first = visitor.get("http://shop.localhost/image/coupon-1.png")
    assert first.status == 200 and "max-age" in first.headers["cache-control"]
    assert first.body == visitor.get("http://shop.localhost/image/coupon-1.png").body


def test_an_oversized_form_is_refused(visitor) -> None:
    assert visitor.post("http://shop.localhost/contact", text="x" * 100_000).status == 413


def test_the_server_listens_on_loopback_only(served: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served.port)
    connection.request("GET", "/", headers={"Host": "home.localhost"})
    assert connection.getresponse().read()
    assert connection.sock.getpeername()[0] == "127.0.0.1"
    connection.close()


def test_a_failing_page_is_in_the_site_s_own_style(served: Server, visitor) -> None:
    served.db.execute("DROP TABLE shop_cart")
    answer = visitor.get("http://shop.localhost/cart")
    assert answer.status == 500
    assert "Something went wrong" in answer.text and served.world.shop.name in answer.text


def test_a_world_whose_sites_have_no_tables_can_be_served_and_reset() -> None:
    with Server(World(75, sites=())) as server:
        server.reset()
        assert server.hosts == ()
