"""url_match: exact and contained addresses, alternatives, and final slashes."""

import pytest

from agentkv_tasks.addresses import Addresses
from agentkv_tasks.evaluate import url_match

SHOP = "http://shop.localhost"


@pytest.mark.parametrize(
    ("reference", "note", "url", "score"),
    [
        (f"{SHOP}/a", "EXACT", f"{SHOP}/a", 1.0),
        (f"{SHOP}/a", None, f"{SHOP}/a", 1.0),  # None means EXACT
        (f"{SHOP}/a", "EXACT", f"{SHOP}/a/", 1.0),  # one final slash is ignored
        (f"{SHOP}/a/", "EXACT", f"{SHOP}/a", 1.0),
        (f"{SHOP}/a", "EXACT", f"{SHOP}/a//", 0.0),  # only one
        (f"{SHOP}/a", "EXACT", f"{SHOP}/A", 0.0),
        (f"{SHOP}/a", "EXACT", f"{SHOP}/a?x=1", 0.0),
        (f"{SHOP}/a", "EXACT", f"{SHOP}/a#part", 0.0),
        (f"{SHOP}/a |OR| {SHOP}/b", "EXACT", f"{SHOP}/b", 1.0),
        (f"{SHOP}/a", "GOLD in PRED", f"{SHOP}/abc", 1.0),
        (f"{SHOP}/a", "GOLD in PRED", f"{SHOP}/b", 0.0),
        (f"x |OR| {SHOP}/a", "GOLD in PRED", f"{SHOP}/a?x=1", 1.0),
        ("http://localhost:1/a", "EXACT", "http://127.0.0.1:1/a", 1.0),
    ],
)
def test_addresses_compare_as_in_visualwebarena(
    reference: str, note: str | None, url: str, score: float
) -> None:
    assert url_match(reference, note, url) == score


@pytest.mark.parametrize(
    ("reference", "url", "score"),
    [
        (f"{SHOP}/s?a=1&b=2", f"{SHOP}/s?b=2&a=1", 1.0),
        (f"{SHOP}/s?q=blue+kayak", f"{SHOP}/s?q=blue%20kayak", 1.0),
        (f"{SHOP}/a", f"{SHOP}/a#part", 1.0),
        (f"{SHOP}/a", f"{SHOP}/b", 0.0),
        (f"{SHOP}/s?a=1", f"{SHOP}/s?a=2", 0.0),
    ],
)
def test_mended_scoring_accepts_equivalent_addresses(
    reference: str, url: str, score: float
) -> None:
    assert url_match(reference, "EXACT", url, scoring="mended") == score


def test_the_error_for_an_unknown_note_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown url_note 'SAME'; known: EXACT, GOLD in PRED"):
        url_match(SHOP, "SAME", SHOP)


def test_an_address_has_three_forms() -> None:
    real = f"{SHOP}:41233"
    addresses = Addresses({"__SHOPPING__": SHOP}, {SHOP: real})
    assert addresses.fill("__SHOPPING__/a |OR| __REDDIT__") == f"{SHOP}/a |OR| __REDDIT__"
    assert addresses.real("__SHOPPING__/a") == f"{real}/a"
    assert addresses.real(f"{real}/a") == f"{real}/a"
    assert addresses.public(f"<a href='{real}/a'>") == f"<a href='{SHOP}/a'>"
    assert addresses.missing("__SHOPPING__ __REDDIT__") == ["__REDDIT__"]
    assert addresses.hosts("http://elsewhere.test/x") == ("shop.localhost", "elsewhere.test")
    assert addresses.hosts("http://a:b@10.0.0.1:9980/x")[1:] == ("10.0.0.1:9980",)
