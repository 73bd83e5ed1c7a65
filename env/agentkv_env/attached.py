"""Attach to a Chrome that its user runs, over its debugging port."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

from playwright.sync_api import Browser as PlaywrightBrowser
from playwright.sync_api import Error
from playwright.sync_api import Page as PlaywrightPage

from agentkv_env.driver import Driver
from agentkv_env.hosts import is_web_address
from agentkv_env.sanitize import clean

_CONNECT_MS = 10_000
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_MOST_NAMED = 10  # tabs that an error names


class CannotAttach(ValueError):
    """There is no browser or no tab to attach to; the message says what to do."""


@contextmanager
def attached_page(endpoint: str, url: str | None = None) -> Iterator[PlaywrightPage]:
    """Attach to a running Chrome and yield one of its tabs; detach when the context exits.

    Neither the browser nor any of its tabs is closed.

    Args:
        endpoint: address of the debugging port on this machine, such as http://localhost:9222.
        url: yield the tab that shows this address, or a new empty tab if there is none. None: the
            only tab that shows a web page.

    Raises:
        CannotAttach: the address is no port of this machine, no browser answers there, or it has
            no tab or several.
    """
    require_loopback(endpoint)
    driver = Driver.acquire()
    try:
        try:
            running = driver.playwright.chromium.connect_over_cdp(endpoint, timeout=_CONNECT_MS)
        except Error as error:
            raise CannotAttach(
                f"no Chrome answers at {endpoint}; start one with --remote-debugging-port=9222 and "
                f"a --user-data-dir of its own ({clean(error.message.splitlines()[0])[:200]})"
            ) from None
        try:
            yield _tab(running, url)
        finally:
            running.close()  # of a browser that was attached to, this closes the connection only
    finally:
        driver.release()


def require_loopback(endpoint: str) -> None:
    """Check that an address is a port of this machine.

    Whoever controls a debugging port controls the browser and all that it is signed in to, and the
    protocol has neither keys nor encryption, so it is used on this machine only.

    Raises:
        CannotAttach: it is not.
    """
    expected = "expected a port of this machine, such as http://localhost:9222"
    try:
        parts = urlsplit(endpoint)
        port = parts.port
    except ValueError:
        raise CannotAttach(f"{endpoint[:100]!r} is no address; {expected}") from None
    if parts.scheme != "http" or port is None or "@" in parts.netloc:
        raise CannotAttach(f"{endpoint[:100]!r} is no debugging port; {expected}")
    if parts.hostname not in _LOOPBACK:
        raise CannotAttach(
            f"{endpoint[:100]!r} is another machine, and a debugging port has neither keys nor "
            f"encryption; {expected}, which `ssh -L 9222:localhost:9222 HOST` can forward"
        )


def _tab(running: PlaywrightBrowser, url: str | None) -> PlaywrightPage:
    pages = [page for context in running.contexts for page in context.pages]
    if url is not None:
        shown = next((page for page in pages if page.url.rstrip("/") == url.rstrip("/")), None)
        return running.contexts[0].new_page() if shown is None else shown
    with_web_page = [page for page in pages if is_web_address(page.url)]
    if len(with_web_page) == 1:
        return with_web_page[0]
    if not with_web_page:
        raise CannotAttach("the browser shows no web page; open one, or give its address")
    named = "; ".join(clean(page.url)[:100] for page in with_web_page[:_MOST_NAMED])
    raise CannotAttach(
        f"the browser shows {len(with_web_page)} web pages; give the address of one: {named}"
    )


def other_pages(page: PlaywrightPage) -> Sequence[PlaywrightPage]:
    """Return the other tabs beside `page`."""
    return [other for other in page.context.pages if other is not page]
