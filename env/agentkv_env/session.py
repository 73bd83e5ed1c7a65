"""One agent's stay in a browser: tabs, observations, actions, and hosts it cannot leave."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from playwright.sync_api import BrowserContext, Dialog, Download, Error, Route, WebSocketRoute
from playwright.sync_api import Page as PlaywrightPage

from agentkv_env import perform
from agentkv_env.actions import Action
from agentkv_env.allow import Addresses, AllowList
from agentkv_env.errors import ActionFailed, BrowserGone
from agentkv_env.ocr import Ocr
from agentkv_env.page import Page
from agentkv_env.reading import Pictures, nodes_of
from agentkv_env.tab import Tab
from agentkv_env.watchdog import Watchdog

POPUP_S = 2.0  # how long a window that was asked for may take to appear
MAX_DIALOG = 200  # characters of a dialog's message that are told


class Session:
    """Pages of one browser context, read and acted on. A context manager; not thread-safe."""

    def __init__(
        self,
        page: PlaywrightPage,
        *,
        hosts: Sequence[str],
        addresses: Mapping[str, str],
        ocr: Ocr | None,
        strict: bool,
        timeout_s: float,
        watchdog: Watchdog,
        owns_context: bool,
    ) -> None:
        """Use `Browser.session` or `Session.on`."""
        self._addresses = Addresses(addresses)
        self._allow = AllowList([*hosts])
        self._ocr = ocr
        self._pictures = Pictures(ocr) if ocr else None
        self._strict = strict
        self._timeout_s = timeout_s
        self._watchdog = watchdog
        self._owns_context = owns_context
        self._context: BrowserContext = page.context
        self._notices: list[str] = []
        self._told_no_ocr = False
        self._opening = False  # a tab of our own is being opened
        self._num_arriving = 0  # windows that pages opened, not attached yet
        self._num_refused_windows = 0
        self._closed = False
        self._tabs: list[Tab] = []
        self._current = self._attach(page)
        self._context.on("page", self._on_page)
        if owns_context:
            self._context.on("dialog", self._on_dialog)
        with self._current.guard():
            self._context.route(self._allow.refused, self._on_refused)
            self._context.route_web_socket(self._allow.refused, self._on_web_socket)
        if owns_context:
            page.set_default_timeout(timeout_s * 1000)

    @classmethod
    def on(
        cls,
        page: PlaywrightPage,
        *,
        hosts: Sequence[str] | None = None,
        addresses: Mapping[str, str] | None = None,
        ocr: Ocr | None = None,
        strict: bool = False,
        timeout_s: float = 5.0,
    ) -> Self:
        """Work on a page the caller owns.

        Their page is never closed, and on `close` everything put on their context is taken off
        again. Tabs opened meanwhile stay. `hosts` defaults to the host the page is on. A browser
        that is not ours is never killed: whether the page still answers is asked before each call
        instead, and a page that stops answering inside one is waited for.

        Raises:
            TypeError: `page` is no page of Playwright's synchronous API in Chromium.
        """
        if not isinstance(page, PlaywrightPage):
            kind = f"{type(page).__module__}.{type(page).__qualname__}"
            raise TypeError(
                f"expected a page of playwright.sync_api, found {kind}; "
                "open it with sync_playwright()"
            )
        browser = page.context.browser
        if browser is not None and browser.browser_type.name != "chromium":
            raise TypeError(f"expected a Chromium page, found {browser.browser_type.name}")
        if hosts is None:
            host = page.url.partition("://")[2].partition("/")[0].rpartition("@")[2]
            hosts = [host] if host else []
        return cls(
            page,
            hosts=hosts,
            addresses=addresses or {},
            ocr=ocr,
            strict=strict,
            timeout_s=timeout_s,
            watchdog=Watchdog(None),
            owns_context=False,
        )

    @property
    def page(self) -> PlaywrightPage:
        """The current tab's Playwright page."""
        return self._current.page

    @property
    def pages(self) -> tuple[PlaywrightPage, ...]:
        """All tabs, in order."""
        return tuple(tab.page for tab in self._tabs)

    # ---- reading ----------------------------------------------------------------------------

    def observe(self) -> Page:
        """Read the current tab as it is now.

        What happened since the last observation and shows on no page is in `notices`.

        Raises:
            BrowserGone: the page crashed or does not answer.
        """
        tab = self._current
        with tab.guard():
            tab.settle(turn=False)
            self._check_address()
            tab = self._current
            try:
                found = tab.read(pictures=True)
            except Error as error:
                # The document changed under the walk: wait for the new one, and read that.
                tab.raise_if_gone(error)
                tab.settle()
                found = tab.read(pictures=True)
            size = tab.page.viewport_size
            viewport = (size["width"], size["height"]) if size else (1 << 15, 1 << 15)
            lines = {}
            if self._pictures is not None:
                lines = self._pictures.read(
                    found["nodes"],
                    document=found["token"],
                    pixels=lambda frame, number: str(
                        tab.call(f"agentkv.pixels({number})", frame=frame)
                    ),
                    screenshot=lambda: tab.page.screenshot(type="png", animations="allow"),
                    viewport=viewport,
                )
            elif not self._told_no_ocr and any("p" in node for node in found["nodes"]):
                self._told_no_ocr = True
                self._tell("text inside images is not read in this session")
        notices = tuple(dict.fromkeys(self._notices))
        self._notices.clear()
        return Page(
            url=self._addresses.to_public(found["url"]),
            title=found["title"],
            nodes=tuple(nodes_of(found["nodes"], lines, viewport)),
            tabs=tuple(
                each.title or self._addresses.to_public(each.page.url) for each in self._tabs
            ),
            tab=self._tabs.index(tab),
            pixels_above=found["above"],
            pixels_below=found["below"],
            notices=notices,
        )

    def screenshot(self) -> bytes:
        """The current viewport as a JPEG."""
        with self._current.guard():
            return self._current.page.screenshot(
                type="jpeg", quality=80, timeout=self._timeout_s * 1000
            )

    # ---- acting -----------------------------------------------------------------------------

    def open(self, *urls: str) -> None:
        """Open addresses (public or real), one tab each; the first becomes current.

        Raises:
            ActionFailed: an address is not on the allowed hosts, or does not load.
        """
        for index, url in enumerate(urls):
            if index:
                self._new_tab()
            with self._current.guard():
                self._goto(url)
                self._current.settle()
                self._current.title = self._current.page.title()
        if len(urls) > 1:
            self._focus(len(self._tabs) - len(urls))

    def act(self, action: Action) -> None:
        """Do `action` and wait for its effect. `stop` does nothing here.

        Elements are pressed in the middle of their first visible rectangle. Unless the session is
        strict, typing replaces what the field held, and what could have no effect (a covered or
        disabled element, an unknown key) is refused in words.

        Raises:
            ActionFailed: it could not be done; the message is for the model.
            BrowserGone: the page crashed or does not answer.
        """
        tab = self._current
        with tab.guard():
            try:
                self._do(action)
                self._current.settle()
                self._follow_popup(tab)
            except Error as error:
                if tab.page.is_closed() and len(self._context.pages) and self._is_alive():
                    pass  # the page closed itself, as windows do
                else:
                    tab.raise_if_gone(error)
                    message = error.message.splitlines()[0]
                    raise ActionFailed(f"{action.kind} failed: {message}") from error
            self._drop_closed()
            self._check_address()

    def _do(self, action: Action) -> None:
        tab, strict, id = self._current, self._strict, action.element_id
        match action.kind:
            case "click" if id is not None:
                perform.click(tab, id, strict=strict)
            case "hover" if id is not None:
                perform.hover(tab, id, strict=strict)
            case "type" if id is not None:
                perform.type_text(tab, action, strict=strict)
            case "clear" if id is not None:
                perform.clear(tab, id, strict=strict)
            case "press":
                perform.press(tab, action.key, strict=strict)
            case "scroll":
                perform.scroll(tab, action.direction)
            case "new_tab":
                self._new_tab()
            case "tab_focus":
                self._focus(-1 if action.tab is None else action.tab)
            case "close_tab":
                self._close_tab()
            case "goto":
                self._goto(action.url)
            case "go_back":
                if not tab.can_go_back:
                    raise ActionFailed("there is no page to go back to")
                tab.page.go_back(wait_until="commit", timeout=self._timeout_s * 1000)
            case "go_forward":
                # No answer is no failure: a cached page comes without one.
                tab.page.go_forward(wait_until="commit", timeout=self._timeout_s * 1000)
            case "stop":
                pass
            case _:
                raise ActionFailed(f"{action.kind} needs the number of an element")

    def _goto(self, url: str) -> None:
        real = self._addresses.to_real(url)
        if not self._allow.allows(real):
            raise ActionFailed(f"{url} is not on the allowed hosts: {self._hosts()}")
        try:
            self._current.page.goto(real, wait_until="commit", timeout=self._timeout_s * 1000)
        except Error as error:
            self._current.raise_if_gone(error)
            if "ERR_ABORTED" in error.message:
                return  # a download or a refused redirect: the page stays, a notice says why
            reason = error.message.splitlines()[0].removeprefix("Page.goto: ")
            shown = self._addresses.to_public(real)
            raise ActionFailed(f"{shown} did not load: {reason.partition(' at ')[0]}") from error

    def _hosts(self) -> str:
        return str(self._allow)

    # ---- tabs -------------------------------------------------------------------------------

    def _attach(self, page: PlaywrightPage) -> Tab:
        tab = Tab(
            page,
            allow=self._allow,
            notice=self._tell,
            watchdog=self._watchdog,
            timeout_s=self._timeout_s,
        )
        page.on("download", self._on_download)
        if not self._owns_context:
            page.on("dialog", self._on_dialog)  # behind its owner's, who may answer first
        self._tabs.append(tab)
        return tab

    def _new_tab(self) -> None:
        self._opening = True
        try:
            page = self._context.new_page()
        finally:
            self._opening = False
        self._current = self._attach(page)

    def _focus(self, index: int) -> None:
        if not 0 <= index < len(self._tabs):
            raise ActionFailed(f"there is no tab {index}; tabs are 0 to {len(self._tabs) - 1}")
        self._current = self._tabs[index]
        self._current.page.bring_to_front()

    def _close_tab(self) -> None:
        if len(self._tabs) == 1:
            self._new_tab()
            self._tabs[0].page.close()
        else:
            self._current.page.close()
        self._drop_closed()

    def _drop_closed(self) -> None:
        self._tabs = [tab for tab in self._tabs if not tab.page.is_closed()]
        if not self._tabs:
            if not self._is_alive():
                raise BrowserGone("the browser is gone")
            self._new_tab()
        if self._current not in self._tabs:
            self._current = self._tabs[-1]
            self._current.page.bring_to_front()

    def _is_alive(self) -> bool:
        browser = self._context.browser
        return not self._watchdog.fired and (browser is None or browser.is_connected())

    def _follow_popup(self, tab: Tab) -> None:
        """A window that the page opened becomes the current tab once it is there."""
        started = time.monotonic()
        while (tab.expects_popup or self._num_arriving) and not tab.page.is_closed():
            if time.monotonic() > started + POPUP_S:
                break
            tab.page.wait_for_timeout(4)
        tab.expects_popup = False
        popup = self._current
        if popup is tab or popup.page.is_closed():
            return
        if self._num_refused_windows and popup.page.url in ("", "about:blank"):
            popup.page.close()  # a window to nowhere
            self._drop_closed()
        else:
            popup.page.wait_for_load_state("domcontentloaded", timeout=POPUP_S * 1000)
            popup.settle()
        self._num_refused_windows = 0

    def _on_page(self, page: PlaywrightPage) -> None:
        if self._opening:
            return
        self._num_arriving += 1
        for tab in self._tabs:
            tab.expects_popup = False
        try:
            self._current = self._attach(page)
        except (Error, BrowserGone):
            pass  # it is closed again already
        finally:
            self._num_arriving -= 1

    def _check_address(self) -> None:
        """Leave a page that is not on the list: the second lock, should the gate have missed it."""
        tab = self._current
        url = tab.page.url
        if self._allow.allows(url) or url.startswith("chrome-error:"):
            return
        self._tell(f"left {url[:200]}: not on the allowed hosts: {self._hosts()}")
        if tab.can_go_back:
            tab.page.go_back(wait_until="commit", timeout=self._timeout_s * 1000)
        elif len(self._tabs) > 1:
            self._close_tab()
        else:
            tab.page.goto("about:blank")
        self._current.settle()

    # ---- what pages do by themselves ----------------------------------------------------------

    def _tell(self, notice: str) -> None:
        self._notices.append(notice)

    def _on_refused(self, route: Route) -> None:
        """Stop a request to a host that is not allowed; a refused document changes nothing."""
        request = route.request
        try:
            if request.resource_type != "document":
                route.abort("blockedbyclient")
                return
            if request.frame.page not in self.pages:
                self._num_refused_windows += 1
            if request.frame.parent_frame is None:
                self._tell(
                    f"navigation to {request.url[:200]} refused; allowed hosts: {self._hosts()}"
                )
            route.fulfill(status=204)
        except Error:
            # A window has no frame yet when its first request comes.
            self._num_refused_windows += 1
            self._tell(f"a new window to {request.url[:200]} was refused")
            route.fulfill(status=204)

    def _on_web_socket(self, socket: WebSocketRoute) -> None:
        socket.close()

    def _on_dialog(self, dialog: Dialog) -> None:
        message = " ".join(dialog.message.split())[:MAX_DIALOG]
        kind = dialog.type
        accepted = kind != "prompt"
        try:
            if accepted:
                dialog.accept()
            else:
                dialog.dismiss()
        except Error:
            return  # its owner answered it
        if kind != "beforeunload":
            self._tell(f"{kind} {'accepted' if accepted else 'dismissed'}: {message}")

    def _on_download(self, download: Download) -> None:
        self._tell(f"download of {download.suggested_filename[:100]} cancelled")

    # ---- end --------------------------------------------------------------------------------

    def close(self) -> None:
        """End the session: close its context, or leave the caller's as it was found."""
        if self._closed:
            return
        self._closed = True
        self._context.remove_listener("page", self._on_page)
        if not self._is_alive():
            return  # Playwright would wait for an answer of the dead
        with self._letting_go():
            if self._owns_context:
                self._context.close()
                return
            for tab in self._tabs:
                tab.page.remove_listener("download", self._on_download)
                tab.page.remove_listener("dialog", self._on_dialog)
                tab.detach()
            self._context.unroute(self._allow.refused, self._on_refused)

    @contextmanager
    def _letting_go(self) -> Iterator[None]:
        try:
            with self._watchdog.limit(2 * self._timeout_s):
                yield
        except Error:
            pass  # what is dead needs no closing

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
