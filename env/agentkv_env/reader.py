"""Reads the current tab of a session: its elements and texts, text in its images, and notices."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from playwright.sync_api import Error

from agentkv_env.errors import StillLoading
from agentkv_env.hosts import HostAddresses
from agentkv_env.named_secrets import NamedSecrets
from agentkv_env.nodes import ImageTextReader, build_nodes
from agentkv_env.ocr import Ocr, OcrLine
from agentkv_env.page import Page
from agentkv_env.request_filter import RequestFilter
from agentkv_env.sanitize import clean, quote
from agentkv_env.tab import Tab
from agentkv_env.tabs import Tabs
from agentkv_env.timing import Stopwatch, timed
from agentkv_env.uploads import Uploads

UNBOUNDED = (1 << 15, 1 << 15)  # viewport of a page whose size was never set
MAX_MESSAGE = 120  # characters of a field's message
MAX_NOTICES = 20  # notices shown one by one; the rest is counted
_STILL_LOADING = "the page is still loading, so there is nothing to read yet"


class Reader:
    """Reads pages of one session. The session keeps its tabs on the allowed hosts."""

    def __init__(
        self,
        tabs: Tabs,
        *,
        addresses: HostAddresses,
        may_show: Callable[[str], bool],
        leave_disallowed: Callable[[], None],
        request_filter: RequestFilter,
        ocr: Ocr | None,
        uploads: Uploads,
        secrets: NamedSecrets,
        timeout_s: float,
        stopwatch: Stopwatch | None,
    ) -> None:
        """Prepare.

        Args:
            may_show: returns whether an agent may read pages of an address.
            leave_disallowed: leaves pages of which it may not.
            request_filter: holds the notices of the session.
        """
        self._tabs = tabs
        self._addresses = addresses
        self._may_show = may_show
        self._leave_disallowed_pages = leave_disallowed
        self._filter = request_filter
        self._image_text = ImageTextReader(ocr) if ocr else None
        self._uploads = uploads
        self._secrets = secrets
        self._timeout_s = timeout_s
        self._stopwatch = stopwatch
        self._reported_no_ocr = False
        self._last: tuple[Mapping[str, Any], Page] | None = None  # the last walk and its page

    def read(self) -> Page:
        """Read the current tab, which must be open, in its present state.

        Raises:
            TabClosed, BrowserGone: the page is gone.
        """
        with self._tabs.current.guard():
            self._tabs.current.wait_idle(first_frame=False)
            self._leave_disallowed_pages()
            found = self._read()
            tab = self._tabs.current
            pictures = self._find_pictures(tab, found)
        page = self._page_of(tab, found, pictures)
        self._last = found, page
        return page

    def read_before(self, tab: Tab, reading: str, next_id: int) -> Page:
        """Return a page as our script read it before an event of a person.

        If nothing has changed since the last page, it is that one. Pictures that are new on the
        page may be gone by now, and their text is missing.

        Args:
            reading, next_id: see `PageScript.read_before`.
        """
        found = tab.script.read_before(reading, next_id)
        notices: tuple[str, ...] = ()
        if self._last is not None and found["token"] == self._last[0]["token"]:
            last, page = self._last
            if all(found[key] == last[key] for key in ("nodes", "url", "title", "above", "below")):
                return page
            notices = page.notices
        self._note_state(tab, found)
        page = self._page_of(tab, found, self._find_pictures(tab, found, are_gone=True))
        page = replace(page, notices=tuple(dict.fromkeys((*notices, *page.notices))))
        self._last = found, page
        return page

    def _find_pictures(
        self, tab: Tab, found: Mapping[str, Any], *, are_gone: bool = False
    ) -> Mapping[tuple[str, int], str]:
        """Return the keys of a page's pictures, with which their text is read."""
        if self._image_text is not None:
            with timed(self._stopwatch, "OCR"):
                return self._image_text.collect(
                    found["nodes"],
                    document=found["token"],
                    pixels=lambda frame, number: (
                        "" if are_gone else self._pixels(tab, frame, number)
                    ),
                    screenshot=lambda: (
                        b"" if are_gone else self.screenshot(tab, type="png", animations="allow")
                    ),
                    viewport=_viewport(tab),
                )
        if not self._reported_no_ocr and any("p" in node for node in found["nodes"]):
            self._reported_no_ocr = True
            self._filter.notices.append("text inside images is not read in this session")
        return {}

    def _page_of(
        self, tab: Tab, found: Mapping[str, Any], pictures: Mapping[tuple[str, int], str]
    ) -> Page:
        lines: Mapping[tuple[str, int], Sequence[OcrLine]] = {}
        if self._image_text is not None:
            # Outside the guard, because it makes no browser call.
            with timed(self._stopwatch, "OCR"):
                lines, num_unread = self._image_text.read(pictures)
            if num_unread:
                self._filter.notices.append(f"text inside {num_unread} images could not be read")
        tabs = [each for each in self._tabs.all if each is tab or not each.page.is_closed()]
        with timed(self._stopwatch, "walk"):
            nodes = tuple(build_nodes(found["nodes"], lines, _viewport(tab)))
        page = Page(
            url=clean(self._addresses.to_public(found["url"])),
            title=clean(found["title"]),
            nodes=nodes,
            tabs=tuple(map(self.name_of, tabs)),
            tab=tabs.index(tab),
            pixels_above=found["above"],
            pixels_below=found["below"],
            notices=self.take_notices(),
            may_change=not nodes
            or bool(found["mayChange"] or found["moving"] or tab.num_unanswered),
            uploads=self._uploads.names() if any("file" in node.uses for node in nodes) else (),
        )
        return self._secrets.hide(page)

    def _read(self) -> dict[str, Any]:
        """Read the current tab; an unreadable or disallowed page has no nodes and a notice."""
        until = time.monotonic() + self._timeout_s
        reason = ""
        while not reason or time.monotonic() < until:
            tab = self._tabs.current
            try:
                with timed(self._stopwatch, "walk"):
                    found = tab.read()
            except StillLoading:
                reason = _STILL_LOADING
                break
            except Error as error:
                # The document was replaced during the walk: wait for the new one and read it.
                tab.raise_if_gone(error)
                reason = "the page could not be read: it changes faster than it is read"
                tab.wait_idle()
                self._leave_disallowed_pages()
                continue
            if found["early"] and self._may_show(found["url"]):
                reason = _STILL_LOADING
                tab.wait_idle()
                continue
            if self._may_show(found["url"]):
                self._note_state(tab, found)
                return found
            reason = "this page is not shown: it does not stay on the allowed hosts"
            self._leave_disallowed_pages()
        self._filter.notices.append(reason)
        tab = self._tabs.current
        shown = self._may_show(tab.page.url)
        return {
            **{"nodes": [], "token": "", "above": 0, "below": 0, "mayChange": 0, "moving": 0},
            "url": tab.page.url if shown else "",
            "title": tab.title if shown else "",
        }

    def _note_state(self, tab: Tab, found: Mapping[str, Any]) -> None:
        """Add notices of what the walk says of a page beside its nodes."""
        notices = self._filter.notices
        if found["part"]:
            notices.append("the page is too large: part of it was not read")
        if found["busy"]:
            notices.append("a part of the page says that it is still loading")
        if found["moving"]:
            notices.append(f"{found['moving']} elements and texts of the page are still moving")
        notices += [f"shown for a moment: {text}" for text in found["flashes"]]
        if num := tab.num_unanswered:
            requests = "1 request has" if num == 1 else f"{num} requests have"
            notices.append(f"the page is still loading: {requests} no answer yet")
        if found["unsent"]:
            notices.append(_unsent_notice(found["unsent"]))
        if found["covered"]:
            notices.append(
                "a dialog is open; the elements and texts of the page that it covers are "
                f"left out: {found['covered']}"
            )

    def name_of(self, tab: Tab) -> str:
        """Return the title of a tab as it was last read, or else its public address."""
        return tab.title or clean(self._addresses.to_public(tab.page.url))

    def _pixels(self, tab: Tab, frame: str, number: int) -> str:
        try:
            return str(tab.script.call("pixels", number, frame=frame))
        except StillLoading:
            return ""
        except Error as error:
            tab.raise_if_gone(error)
            return ""

    def screenshot(self, tab: Tab, **options: Any) -> bytes:
        """Return the viewport of a tab; empty if it cannot be drawn, as while styles load."""
        if tab.is_leaving:
            return b""  # the browser would not answer
        try:
            return tab.page.screenshot(timeout=self._timeout_s * 1000, **options)
        except Error as error:
            tab.raise_if_gone(error)
            return b""

    def take_notices(self) -> tuple[str, ...]:
        """Return the new notices without duplicates; beyond `MAX_NOTICES`, only their number."""
        self._tabs.report_surplus()
        notices = list(dict.fromkeys(map(clean, self._filter.take_notices())))
        if len(notices) > MAX_NOTICES:
            rest = len(notices) - MAX_NOTICES
            notices[MAX_NOTICES:] = [f"{rest} more notices are not shown"]
        return tuple(notices)


def _viewport(tab: Tab) -> tuple[int, int]:
    size = tab.page.viewport_size
    return (size["width"], size["height"]) if size else UNBOUNDED


def _unsent_notice(fields: Sequence[Mapping[str, Any]]) -> str:
    """Say why the browser has not sent a form: it shows that in a bubble, which is no element."""
    said = (
        f"{field['r']} {quote(field['n'][:60])}{', which is hidden' if field['h'] else ''}: "
        f"{quote(field['m'][:MAX_MESSAGE])}"
        for field in fields
    )
    return f"the browser did not send the form; {'; '.join(said)}"
