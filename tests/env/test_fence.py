"""A fixed sample of attempts to leave the allowed hosts; `make soak` runs all of them."""

from collections.abc import Iterator
from functools import cache

import pytest

from tests.soak.fence import Attempt, Harness, Setup, attempts

pytestmark = pytest.mark.browser

SAMPLE = {
    "requests": (
        *("img", "css background", "script", "dynamic import", "fetch", "fetch keepalive", "xhr"),
        *("beacon", "WebSocket", "EventSource", "prefetch", "iframe", "frame form post", "ping"),
        *("frame javascript", "audio worklet", "cache", "img, redirected", "fetch, redirected"),
        *("script, redirected", "iframe, redirected", "css import, redirected"),
        *("decimal, fetched", "mapped, fetched", "other port, fetched"),
        *("full width, fetched", "backslashes, fetched", "other port, https, fetched"),
    ),
    "what no route sees": (
        *("STUN", "TURN udp", "TURN tcp", "TURN tls", "RTC of a fresh frame", "ICE candidate udp"),
        *("WebTransport hashes", "speculation prefetch", "speculation prerender", "FedCM"),
        *("WebSocketStream", "fetch in worker", "WebSocket in worker", "WebSocket in blob worker"),
        *("WebTransport in worker", "nested worker socket in worker", "fetch in shared worker"),
        *("WebSocket in shared worker", "EventSource in shared worker"),
        *("importScripts in shared blob worker", "WebSocket in service worker"),
    ),
    "navigation": (
        *(
            "location in alone",
            "form post in alone",
            "meta refresh in alone",
            "redirect 302 in alone",
        ),
        *("two hops in alone", "blob document in alone"),
    ),
    "windows": (
        *("window.open: redirect 302", "window.open noopener: redirect 307", "link _blank: meta"),
        *("form post: redirect 307", "form opener: redirect 302", "empty then later: redirect 302"),
        *("window.open: script", "link named: two hops", "window.open: direct"),
    ),
}


@pytest.fixture(scope="module")
def harness() -> Iterator[Harness]:
    # A control run ends when all attempts have escaped, which may take long on a busy machine.
    with Harness(patience_s=15) as made:
        yield made


@cache
def known() -> dict[str, Attempt]:
    return {each.name: each for chosen in attempts().values() for each in chosen}


@pytest.mark.parametrize("kind", SAMPLE)
def test_no_attempt_reaches_another_host_and_each_does_without_the_fence(
    harness: Harness, kind: str
) -> None:
    setups: tuple[Setup, ...] = ("none", "session", "caller")
    if kind == "windows":
        setups = ("none", "idle session", "idle caller")
    reached = harness.run([known()[name] for name in SAMPLE[kind]], setups)
    assert [name for name, what in reached.pop("none").items() if not what] == []
    for setup, found in reached.items():
        assert {name: what for name, what in found.items() if what} == {}, setup
