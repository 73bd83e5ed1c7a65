"""What is told of a page is what the browser draws, on pages that nobody wrote for this project."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from agentkv_env.browser import Browser
from agentkv_env.session import Session
from agentkv_env.sites.miniwob import SITE as MINIWOB
from agentkv_env.sites.miniwob import find_pages
from agentkv_env.sites.registry import SITES
from agentkv_env.sites.server import Server
from agentkv_env.sites.world import World
from tests.env import page_corpus
from tests.env.page_truth import differences, truth_of
from tests.sampling import sampled

if TYPE_CHECKING:
    from conftest import Pages

pytestmark = pytest.mark.browser

SEED = 1_000_077
SIZE = (2000, 4000)
"""A window that shows most pages whole: what lies below is not drawn and not told."""
_PATHS = "links => links.map(link => link.pathname + link.search)"
GENERATED = page_corpus.pages()
EXCEPTIONS = {"click-pie", "click-pie-nodelay"}
"""A closed menu draws its letters three pixels high below its button, and our reading says them."""
installed = pytest.mark.skipif(
    not find_spec("miniwob"), reason="the package miniwob is not installed"
)


@pytest.fixture(scope="module")
def generated(browser: Browser, pages: "Pages") -> Iterator[Session]:
    with browser.session(hosts=[f"shop.localhost:{pages.port}"], viewport=SIZE) as session:
        yield session


def untrue(session: Session, address: str) -> list[str]:
    session.open(address)
    for _ in range(20):  # some pages move
        before = truth_of(session.page)
        page = session.observe()
        if truth_of(session.page) == before:
            assert page.nodes, address
            return [f"{address}: {each}" for each in differences(before, page)]
    raise AssertionError(f"{address} does not come to rest")


@pytest.mark.parametrize("name", sampled(GENERATED, every=10))
def test_generated_pages_are_read_as_drawn(name: str, generated: Session, pages: "Pages") -> None:
    pages.set({"/": GENERATED[name]})
    assert not untrue(generated, pages.origin() + "/")


@pytest.mark.parametrize("num_kinds", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_embedded_pages_of_many_kinds_are_read_as_drawn(browser: Browser, num_kinds: int) -> None:
    """Reads `num_kinds` kinds of pages of each site."""
    found = []
    with (
        Server(World(SEED, SITES)) as server,
        browser.session(hosts=server.hosts, addresses=server.addresses, viewport=SIZE) as session,
    ):
        for site in SITES:
            paths, visited = {"": "/"}, 0
            while visited < min(len(paths), num_kinds):
                path = list(paths.values())[visited]
                found += untrue(session, f"http://{site.name}.localhost{path}")
                visited += 1
                for link in session.page.eval_on_selector_all("a[href^='/']", _PATHS):
                    paths.setdefault(link.split("/")[1].split("?")[0], link)
    assert not found


@installed
def test_pages_of_miniwob_are_read_as_drawn(browser: Browser) -> None:
    assert not untrue_of_miniwob(browser, step=40)


@installed
@pytest.mark.slow
def test_all_pages_of_miniwob_are_read_as_drawn(browser: Browser) -> None:
    assert not untrue_of_miniwob(browser, step=1)


def untrue_of_miniwob(browser: Browser, step: int) -> list[str]:
    names = sorted({page.stem for page in (find_pages() / "miniwob").glob("*.html")} - EXCEPTIONS)
    with (
        Server(World(SEED, (MINIWOB,))) as server,
        browser.session(hosts=server.hosts, addresses=server.addresses) as session,
    ):
        addresses = [f"http://miniwob.localhost/task/{name}?seed={SEED}" for name in names[::step]]
        return [each for address in addresses for each in untrue(session, address)]
