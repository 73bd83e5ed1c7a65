"""A browser finds sites at public addresses."""

import pytest

import agentkv
from tests.own_thread import in_own_thread


@pytest.mark.browser
def test_a_browser_shows_the_embedded_sites_at_their_public_addresses() -> None:
    in_own_thread(visit_embedded_sites)


def visit_embedded_sites() -> None:
    with agentkv.sites() as sites, agentkv.browser(sites) as page:
        for address in sites:
            assert page.goto(f"{address}/").ok
            assert page.url == f"{address}/"
        page.goto("http://wiki.localhost/")
        page.locator("input").first.fill("Kalburg")
        page.keyboard.press("Enter")
        page.wait_for_url("http://wiki.localhost/wiki/Kalburg")


@pytest.mark.parametrize(
    "origin", ["https://a.test", "a.test", "http://a.test, MAP * b.test", "http://"]
)
def test_only_an_origin_gets_a_rule(origin: str) -> None:
    with pytest.raises(ValueError, match="no origin such as http://wiki.localhost"):
        in_own_thread(agentkv.browser({"http://wiki.localhost": origin}).__enter__)
