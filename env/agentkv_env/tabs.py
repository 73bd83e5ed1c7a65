"""The tabs of one session, including the windows that pages open."""

import time
from collections.abc import Callable

from playwright.sync_api import Error
from playwright.sync_api import Page as PlaywrightPage

from agentkv_env.errors import ActionFailed, BrowserGone
from agentkv_env.page_dialogs import PageDialogs
from agentkv_env.request_filter import RequestFilter
from agentkv_env.tab import Tab
from agentkv_env.watchdog import Watchdog

POPUP_S = 2.0  # a requested window must appear within this time
REFUSED_POPUP_S = 0.2  # the same where a page was refused: such a window does not appear as a rule
POLL_MS = 4
MAX_TABS = 10
"""Further windows are closed; each costs about 20 MB."""
# Headless Chromium has no popup blocker.
POPUP_BLOCKER = """(() => {
  const asked = () => navigator.userActivation.isActive;
  const elsewhere = (el) => el.target && !/^_(self|top|parent)$/i.test(el.target);
  const guarded = (holder, name, refuses) => {
    const native = holder[name], apply = Reflect.apply;
    holder[name] = new Proxy(native, { apply: (_, self, given) =>
      refuses(self) && !asked() ? null : apply(native, self, given) });
  };
  guarded(window, "open", () => true);
  guarded(HTMLElement.prototype, "click",
    (el) => (el instanceof HTMLAnchorElement || el instanceof HTMLAreaElement) && elsewhere(el));
  guarded(HTMLFormElement.prototype, "submit", (form) =>
    !/^_(self|top|parent)?$/i.test(Element.prototype.getAttribute.call(form, "target") || ""));
})()"""


class Tabs:
    """All tabs in order, one of them the current one; there is always at least one tab."""

    def __init__(
        self,
        page: PlaywrightPage,
        *,
        request_filter: RequestFilter,
        dialogs: PageDialogs,
        watchdog: Watchdog,
        timeout_s: float,
    ) -> None:
        """Begin with `page`; other pages of its context are not touched."""
        self._context = page.context
        self._filter = request_filter
        self._dialogs = dialogs
        self._watchdog = watchdog
        self._timeout_s = timeout_s
        self._opening = False  # True while `open` opens a tab
        self._num_arriving = 0  # windows opened by pages that are not attached yet
        self._popup: Tab | None = None  # the last window opened by a page, until `follow_popup`
        self._num_surplus = 0  # windows closed beyond MAX_TABS that no notice reports yet
        self.on_attached: Callable[[Tab], None] | None = None
        """Called with each tab before anything of it is read."""
        self.all: list[Tab] = []
        self.current = self._attach(page)
        self._context.on("page", self._on_page)

    @property
    def is_alive(self) -> bool:
        """True if the browser runs."""
        browser = self._context.browser
        return not self._watchdog.fired and (browser is None or browser.is_connected())

    def open(self) -> None:
        """Open an empty tab and make it current.

        Raises:
            ActionFailed: there are `MAX_TABS` already.
        """
        if len(self.all) >= MAX_TABS:
            raise ActionFailed(f"there are {MAX_TABS} tabs already; close one first")
        self._opening = True
        try:
            page = self._context.new_page()
        finally:
            self._opening = False
        self.current = self._attach(page)

    def focus(self, index: int) -> None:
        """Make a tab current.

        Raises:
            ActionFailed: there is no such tab.
        """
        if not 0 <= index < len(self.all):
            raise ActionFailed(f"there is no tab {index}; tabs are 0 to {len(self.all) - 1}")
        self.current = self.all[index]
        self.current.page.bring_to_front()

    def close_current(self) -> None:
        """Close the current tab; an empty tab replaces the last one."""
        closing = self.current
        if len(self.all) == 1:
            self.open()
        closing.page.close()
        self.drop_closed()

    def drop_closed(self) -> None:
        """Remove closed tabs; if the current tab is closed, the last open tab becomes current.

        Raises:
            BrowserGone: all tabs are closed because the browser or the page crashed.
        """
        self.all = [tab for tab in self.all if not tab.page.is_closed()]
        if not self.all:
            if not self.is_alive or self.current.has_crashed:
                raise BrowserGone("the page crashed" if self.is_alive else "the browser is gone")
            self.open()
        if self.current not in self.all:
            self.focus(len(self.all) - 1)

    def follow_popup(self, opener: Tab) -> None:
        """Wait for the window that `opener` requested, if any; it becomes the current tab.

        A window whose address was refused is closed.
        """
        started = time.monotonic()
        has_refused = self._filter.has_refused_page()
        while (opener.expects_popup or self._num_arriving) and not opener.page.is_closed():
            limit_s = REFUSED_POPUP_S if has_refused and not self._num_arriving else POPUP_S
            if time.monotonic() > started + limit_s:
                break
            opener.page.wait_for_timeout(POLL_MS)
            has_refused |= self._filter.has_refused_page()
        opener.expects_popup = False
        popup, self._popup = self._popup, None
        if popup is None or popup.page.is_closed():
            return
        if has_refused and popup.page.url in ("", "about:blank"):
            popup.page.close()
            self.drop_closed()
        else:
            popup.wait_idle()

    def report_surplus(self) -> None:
        """Add a notice with the number of windows closed beyond `MAX_TABS`."""
        if self._num_surplus:
            self._filter.notices.append(
                f"{self._num_surplus} windows that the page opened were closed: "
                f"there are at most {MAX_TABS} tabs"
            )
            self._num_surplus = 0

    def stop_listening(self) -> None:
        """Ignore windows that open from now on."""
        self._context.remove_listener("page", self._on_page)

    def detach(self) -> None:
        """Detach from all tabs and leave them open."""
        for tab in self.all:
            tab.detach()

    def _attach(self, page: PlaywrightPage) -> Tab:
        tab = Tab(
            page,
            request_filter=self._filter,
            watchdog=self._watchdog,
            timeout_s=self._timeout_s,
        )
        self._filter.watch(page)
        self._dialogs.watch(page)
        if self.on_attached is not None:
            self.on_attached(tab)
        self.all.append(tab)
        return tab

    def _on_page(self, page: PlaywrightPage) -> None:
        if self._opening:
            return
        self.all = [tab for tab in self.all if not tab.page.is_closed()] or self.all
        if len(self.all) >= MAX_TABS:
            self._num_surplus += 1
            try:
                page.close()
            except Error:
                pass  # the window is already closed
            return
        self._num_arriving += 1
        is_popup = any(tab.expects_popup for tab in self.all)
        for tab in self.all:
            tab.expects_popup = False
        try:
            self.current = self._popup = self._attach(page)
            self.current.is_popup = is_popup
        except (Error, BrowserGone):
            pass  # the window is already closed
        finally:
            self._num_arriving -= 1
