"""A browser page to try an agent on, in the Chromium that `agentkv doctor` finds, and its sites."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

from playwright.sync_api import Page, sync_playwright

from agentkv_env.browser import find_executable
from agentkv_env.sites.server import Server
from agentkv_env.sites.world import World


@contextmanager
def browser(addresses: Mapping[str, str] | None = None) -> Iterator[Page]:
    """Start Chromium and yield a page of Playwright's sync API; close both when the context exits.

    Runs the same Chromium as `agentkv run`: $AGENTKV_BROWSER, chromium-headless-shell or chromium,
    else Playwright's own. The page has no proxy; `agentkv_env.session.Session.on` describes what
    keeps an agent to its hosts on such a page.

    Args:
        addresses: public to real origins, both of `http`, such as those that `sites` yields. The
            page shows the public ones.

    Raises:
        ValueError: such an origin is none.
        BrowserMissing: a RuntimeError; $AGENTKV_BROWSER names a file that does not exist.
        playwright.sync_api.Error: no Chromium was found, or it did not start.
    """
    rules = host_rules(addresses or {})
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=find_executable(), args=rules)
        try:
            yield running.new_page()
        finally:
            running.close()


def host_rules(addresses: Mapping[str, str]) -> list[str]:
    """Return the arguments with which Chromium finds public origins at real ones.

    Raises:
        ValueError: an origin is none of `http`.
    """
    rules = [f"MAP {_place(public)} {_place(real)}" for public, real in addresses.items()]
    return [f"--host-resolver-rules={', '.join(rules)}"] if rules else []


def _place(origin: str) -> str:
    parts = urlsplit(origin)
    host = parts.hostname or ""
    if parts.scheme != "http" or not host.replace("-", "").replace(".", "").isalnum():
        raise ValueError(f"{origin!r} is no origin such as http://wiki.localhost or with a port")
    return f"{host}:{parts.port or 80}"


@contextmanager
def sites(world_seed: int = 75) -> Iterator[Mapping[str, str]]:
    """Serve the embedded sites on this machine; yield their public addresses and the real ones.

    `browser(sites)` finds them at the public addresses, such as http://wiki.localhost; any other
    browser finds them at the real ones, whose ports differ each time. nano was trained on these
    sites at their public addresses, and a port in an address may change what it does.

    The sites stop, and forget what was done on them, when the context exits. `agentkv sites` serves
    the same sites from the command line.

    Args:
        world_seed: names, texts and prices of the sites are drawn from this number.
    """
    with Server(World(world_seed)) as server:
        yield server.addresses
