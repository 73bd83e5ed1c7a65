"""A browser session of one agent: tabs, observations and actions, on the allowed hosts only."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from playwright.sync_api import Error
from playwright.sync_api import Page as PlaywrightPage

from agentkv_env import executor
from agentkv_env.actions import Action
from agentkv_env.async_bridge import BridgedObject
from agentkv_env.errors import ActionFailed, BrowserGone, TabClosed
from agentkv_env.hosts import AllowList, HostAddresses
from agentkv_env.named_secrets import NamedSecrets, Secret, names_in
from agentkv_env.ocr import Ocr
from agentkv_env.page import Page
from agentkv_env.page_dialogs import LAST_STEP, DialogOpened, Dialogs, PageDialogs
from agentkv_env.person import Person
from agentkv_env.place import Check
from agentkv_env.proxy import Proxy
from agentkv_env.reader import Reader
from agentkv_env.request_filter import RequestFilter
from agentkv_env.sanitize import clean
from agentkv_env.tab import Tab
from agentkv_env.tabs import POPUP_BLOCKER, Tabs
from agentkv_env.timing import Stopwatch, timed
from agentkv_env.uploads import Uploads
from agentkv_env.watchdog import Watchdog

_DIALOG = "a dialog of the page is open; all else waits until it is answered"
_ONLY_LOOKING = {"scroll", "hover", "select_text", "new_tab", "tab_focus", "close_tab"}


class PageError(ValueError):
    """A caller's page that no session can be opened on."""


class Session:
    """Observes and acts on the pages of one browser context; a context manager, not thread-safe."""

    def __init__(
        self,
        page: PlaywrightPage,
        *,
        allow: AllowList,
        addresses: Mapping[str, str],
        ocr: Ocr | None,
        strict: bool,
        timeout_s: float,
        watchdog: Watchdog,
        proxy: Proxy | None,
        uploads: Uploads,
        secrets: Mapping[str, Secret],
        dialogs: Dialogs,
        stopwatch: Stopwatch | None = None,
        bystanders: Sequence[PlaywrightPage] = (),
    ) -> None:
        """Use `Browser.session` or `Session.on` instead.

        A session with a proxy owns the proxy and the context.
        """
        self._addresses = HostAddresses(addresses)
        self._allow = allow
        self._proxy = proxy
        self._strict = strict
        self._uploads = uploads
        self.secrets = NamedSecrets(secrets, addresses=addresses)
        """Secrets that actions may name; observations and errors show their names."""
        self._timeout_s = timeout_s
        self._watchdog = watchdog
        self._stopwatch = stopwatch
        self._context = page.context
        self._start_url = ""
        self._seen: tuple[Tab, Page] | None = None  # the page that was read last, and its tab
        self._interrupted = ""  # what a dialog interrupted, until the dialog is answered
        self._closed = False
        self._filter = RequestFilter(self._context, allow, proxy=proxy, bystanders=bystanders)
        self._dialogs = PageDialogs(
            self._context,
            dialogs=dialogs,
            strict=strict,
            owns_context=proxy is not None,
            may_show=self._may_show,
            end_script=self._end_script,
            notices=self._filter.notices,
        )
        self._tabs = Tabs(
            page,
            request_filter=self._filter,
            dialogs=self._dialogs,
            watchdog=watchdog,
            timeout_s=timeout_s,
        )
        self._reader = Reader(
            self._tabs,
            addresses=self._addresses,
            may_show=self._may_show,
            leave_disallowed=self._leave_disallowed_pages,
            request_filter=self._filter,
            ocr=ocr,
            uploads=uploads,
            secrets=self.secrets,
            timeout_s=timeout_s,
            stopwatch=stopwatch,
        )
        with self._tabs.current.guard():
            self._filter.install()
            self._dialogs.install()
        if proxy is not None:
            self._context.set_default_timeout(timeout_s * 1000)
            self._context.add_init_script(POPUP_BLOCKER)

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
        files: Iterable[str | Path] = (),
        secrets: Mapping[str, Secret] | None = None,
        dialogs: Dialogs = "ask",
        bystanders: Sequence[PlaywrightPage] = (),
    ) -> Self:
        """Open a session on a page that the caller owns.

        The session never closes the page. `close` removes everything that the session added to the
        context; tabs opened meanwhile stay open. `hosts` defaults to the host of the page. A
        caller's browser is never killed. Instead, each call first checks that the page answers; a
        page that stops answering during a call blocks the call.

        A caller's browser does not use our proxy, so the session closes the other ways out one by
        one while it lasts:

        * Requests of pages, frames and dedicated workers are checked at every hop.
        * A Content-Security-Policy restricts sockets, WebTransport and sign-in requests. Every
          document gets it; a document that is already loaded keeps it until it is left.
        * New windows show an empty document until all their hops are checked.
        * Shared workers are paused until the end of the session.
        * RTCPeerConnection, navigator.serviceWorker and prefetch rules are removed from documents.

        Timers of documents pass through functions of ours, which see when an action is over. A
        document keeps them until it is left.

        Not covered: running workers and open connections, references to the removed APIs that a
        document kept, and prefetch rules that a script puts into a shadow tree. Use
        `Browser.launch` for untrusted pages.

        Args:
            page: a page of Playwright's synchronous API in Chromium.
            hosts, addresses, ocr, strict, timeout_s, files, secrets, dialogs: see
                `Browser.session`. Handlers of the caller's that answer a dialog come first.
            bystanders: other pages of the context, whose requests may go on to any host.

        Raises:
            TypeError: `page` is no such page.
            ValueError: a path of `files` does not exist, a secret has no proper name, or `dialogs`
                has another value.
            PageError: a ValueError; the page is closed, or shows a file, which no host serves.
        """
        require_chromium_page(page)
        if page.is_closed():
            raise PageError("the page is closed; give one that is open")
        if page.url.startswith("file:"):
            raise PageError(
                f"the page shows {page.url[:200]}, and agents act on pages of web servers only; "
                "serve its folder, such as with `python -m http.server`, and open it there"
            )
        if hosts is None:
            host = page.url.partition("://")[2].partition("/")[0].rpartition("@")[2]
            hosts = [host] if host else []
        return cls(
            page,
            allow=AllowList(hosts, addresses=addresses),
            addresses=addresses or {},
            ocr=ocr,
            strict=strict,
            timeout_s=timeout_s,
            watchdog=Watchdog(None),
            proxy=None,
            uploads=Uploads(files),
            secrets=secrets or {},
            dialogs=dialogs,
            bystanders=bystanders,
        )

    @property
    def page(self) -> PlaywrightPage:
        """The Playwright page of the current tab; it answers no call while a dialog is open."""
        return self._tabs.current.page

    @property
    def pages(self) -> tuple[PlaywrightPage, ...]:
        """The Playwright pages of all tabs, in order."""
        return tuple(tab.page for tab in self._tabs.all)

    def observe(self) -> Page:
        """Read the current tab in its present state.

        The page's `notices` report events since the last observation that no node shows. A page
        that cannot be read, because it is still loading or changes too fast, has no nodes and a
        notice with the reason. While a dialog of the page is open, only the dialog is read.

        Raises:
            BrowserGone: the page crashed or did not answer.
        """
        with timed(self._stopwatch, "browser"):
            if not self._dialogs.is_open:
                try:
                    with self._dialogs.asking():
                        page = self._observe_open()
                    self._dialogs.forget_row()
                    self._seen = (self._tabs.current, page)
                    return page
                except DialogOpened:
                    pass
            return self._observe_dialog()

    def watch_person(self) -> Person:
        """Return what hears a person who acts in the tabs, from now on in place of `act`.

        The session has read no page yet. Dialogs with a choice are left to the person.
        """
        return Person(
            self._tabs,
            self._reader,
            self._dialogs,
            self.secrets,
            observe_dialog=self._observe_dialog,
            to_public=self._addresses.to_public,
            may_show=self._may_show,
        )

    def _observe_open(self) -> Page:
        for _ in self._tabs.all:
            try:
                return self._read_current()
            except TabClosed:
                pass  # now another tab is current
        return self._read_current()

    def _read_current(self) -> Page:
        self._recover_closed_tab()
        return self._reader.read()

    def _observe_dialog(self) -> Page:
        tab = self._tabs.current
        of_page = self._dialogs.page
        url = clean(self._addresses.to_public(tab.page.url if of_page is None else of_page.url))
        behind = None
        if self._seen is not None and self._seen[0] is tab and self._seen[1].url == url:
            behind = self._seen[1]
        self._filter.notices.append(_DIALOG)
        page = Page(
            url=url,
            title=tab.title,
            nodes=self._dialogs.show(tab.script.take_numbers, behind),
            tabs=tuple(map(self._reader.name_of, self._tabs.all)),
            tab=self._tabs.all.index(tab) if tab in self._tabs.all else 0,  # it may have closed
            notices=self._reader.take_notices(),
        )
        return self.secrets.hide(page)

    def _may_show(self, url: str) -> bool:
        return self._allow.allows(url) or url.startswith("chrome-error:")

    def _recover_closed_tab(self) -> None:
        """If the current tab closed itself, switch to another tab or reopen the first page.

        Raises:
            BrowserGone: the page or the browser crashed.
        """
        if self._tabs.current.page.is_closed():
            with self._dialogs.asking(False):
                self._replace_closed_tab()

    def _replace_closed_tab(self) -> None:
        num_left = sum(not page.is_closed() for page in self.pages)
        self._tabs.drop_closed()
        if num_left:
            self._filter.notices.append("the page closed its window; another tab is current now")
            return
        self._filter.notices.append("the page closed its window; the first page is open again")
        if self._start_url:
            with self._tabs.current.guard():
                try:
                    self._goto(self._start_url)
                    self._tabs.current.wait_idle()
                except ActionFailed as error:
                    self._filter.notices.append(str(error))

    def screenshot(self) -> bytes:
        """Return the current viewport as a JPEG; empty if the page cannot be drawn.

        Raises:
            BrowserGone: the page crashed or did not answer.
        """
        if self._dialogs.is_open:
            return b""  # the page would not answer
        try:
            with (
                timed(self._stopwatch, "screenshots"),
                self._dialogs.asking(),
                self._tabs.current.guard(),
            ):
                self._leave_disallowed_pages()
                return self._reader.screenshot(self._tabs.current, type="jpeg", quality=80)
        except (TabClosed, DialogOpened):
            return b""

    def open(self, *urls: str) -> None:
        """Open addresses (public or real), one tab each; the first tab becomes current.

        A dialog that opens meanwhile stays open if there is one address, and is dismissed if there
        are several.

        Raises:
            ActionFailed: an address is not on the allowed hosts or did not load.
        """
        self._start_url = urls[0] if urls else self._start_url
        self.dismiss_dialogs()
        with timed(self._stopwatch, "browser"):
            try:
                with self._dialogs.asking(len(urls) == 1):
                    self._open(urls)
            except DialogOpened:
                pass  # the next observation has it

    def _open(self, urls: Sequence[str]) -> None:
        for index, url in enumerate(urls):
            if index:
                self._tabs.open()
            tab = self._tabs.current
            with tab.guard():
                with self._dialogs.asking(False):  # the page before has no say
                    self._goto(url)
                tab.wait_idle()
                if not self._strict:
                    tab.wait_late()
                tab.read_title()
        if len(urls) > 1:
            self._tabs.focus(len(self._tabs.all) - len(urls))

    def act(self, action: Action) -> None:
        """Execute `action` and wait for its effect; `stop` has no effect here.

        Unless the session is strict, timers that the action armed and movements of text that it
        began count as its effect, for at most `tab.LATE_S` seconds.

        Elements are pressed in the middle of their first visible rectangle, or at the action's
        point. `<secret:name>` in a text to type stands for a secret, which is typed on its hosts
        only. Unless the session is strict, typing replaces the old text of a field, and actions
        without effect (on a covered, inert or disabled element, or with an unknown key) are
        refused. An action fails if a field or list does not keep what it set; where the field
        writes it in a form of its own, the next observation has a notice.

        If a dialog of the page with a choice opens, it is the next observation, and the next action
        answers it: `click` on its buttons, `type` into the field of a prompt, or `press` with Enter
        or Escape. The page's script waits meanwhile. Any other action is refused.

        Raises:
            ActionFailed: the action failed; the message is for the model.
            BrowserGone: the page crashed or did not answer.
        """
        with timed(self._stopwatch, "browser"):
            try:
                self._act(action)
            except (ActionFailed, BrowserGone) as error:
                # it may quote the page, or what was typed
                if (shown := self.secrets.masks.mask(str(error))) == str(error):
                    raise
                raise type(error)(shown) from None

    def _act(self, action: Action) -> None:
        is_begun = is_done = self._dialogs.is_open
        watches = action.kind != "wait" and not self._strict
        check: Check | None = None
        if not is_begun:
            self._recover_closed_tab()
        elif not self._answer(action):
            return
        interrupted, self._interrupted = self._interrupted, ""
        tab = self._tabs.current
        try:
            with self._dialogs.asking():
                with suppress(TabClosed), tab.guard(), _failing(tab, action):
                    if not is_begun:
                        if tab.is_leaving:
                            tab.wait_idle(first_frame=False)
                        if watches:
                            changes = action.kind not in _ONLY_LOOKING
                            tab.begin_action(action.element_id, changes=changes)
                        is_begun = True
                        check = self._execute(action)
                        is_done = True
                    if self._dialogs.is_open:
                        self._interrupted = interrupted
                        return
                    if tab.holds_mouse:
                        tab.holds_mouse = False
                        with LAST_STEP:
                            tab.page.mouse.up()
                    self._tabs.current.wait_idle()
                    self._tabs.follow_popup(tab)
                    if watches:
                        self._tabs.current.wait_late()
                    if check is not None and (notice := check(False)):
                        self._filter.notices.append(notice)
                self._recover_closed_tab()  # an action may close its window
                with self._tabs.current.guard():
                    self._leave_disallowed_pages()
            if interrupted:
                self._filter.notices.append(
                    f"the dialog interrupted {interrupted}: it may be done in part"
                )
        except DialogOpened:  # the next observation has it
            self._interrupted = interrupted
            if not is_begun:
                raise ActionFailed(f"{action.kind} was not done: a dialog opened first") from None
            if not is_done:
                on = "" if action.element_id is None else f" on [{action.element_id}]"
                self._interrupted = f"{action.kind}{on}"

    def _end_script(self, page: PlaywrightPage) -> None:
        for tab in self._tabs.all:
            if tab.page is page:
                tab.end_script()

    def _answer(self, action: Action) -> bool:
        """Carry out `action` on the open dialog; return whether the page goes on."""
        if action.kind == "stop":
            return False
        with self._watchdog.limit(2 * self._timeout_s):
            return self._dialogs.answer(action)

    def dismiss_dialogs(self) -> None:
        """Dismiss the dialog that is open, if any, so that `page` answers; a notice tells it."""
        with timed(self._stopwatch, "browser"), self._watchdog.limit(2 * self._timeout_s):
            self._dialogs.dismiss()

    def _execute(self, action: Action) -> Check | None:
        tab = self._tabs.current
        match action.kind:
            case "new_tab" | "tab_focus" | "close_tab":
                with self._dialogs.asking(False):  # a tab that is half open would be lost
                    self._change_tab(action)
            case "goto":
                with LAST_STEP:
                    self._goto(action.url)
            case "go_back":
                if not tab.can_go_back:
                    raise ActionFailed("there is no page to go back to")
                with LAST_STEP:
                    tab.page.go_back(wait_until="commit", timeout=self._timeout_s * 1000)
            case "go_forward":
                # Playwright returns no response for a cached page.
                with LAST_STEP:
                    tab.page.go_forward(wait_until="commit", timeout=self._timeout_s * 1000)
            case "stop":
                pass
            case _:
                return executor.execute(
                    tab, action, strict=self._strict, uploads=self._uploads, secrets=self.secrets
                )
        return None

    def _change_tab(self, action: Action) -> None:
        match action.kind:
            case "new_tab":
                self._tabs.open()
            case "tab_focus":
                self._tabs.focus(-1 if action.tab is None else action.tab)
            case "close_tab":
                self._tabs.close_current()

    def _goto(self, url: str) -> None:
        if names_in(url):
            raise ActionFailed("a secret is no part of an address; type it into a field of a page")
        real = self._addresses.to_real(url)
        if not self._allow.allows(real):
            raise ActionFailed(f"{url} is not on the allowed hosts: {self._allow}")
        try:
            self.page.goto(real, wait_until="commit", timeout=self._timeout_s * 1000)
        except Error as error:
            self._tabs.current.raise_if_gone(error)
            if "ERR_ABORTED" in error.message:
                return  # a download or a refused redirect; the page stays, and a notice says why
            reason = error.message.splitlines()[0].removeprefix("Page.goto: ")
            reason = self._filter.failure_of(real) or reason.partition(" at ")[0]
            shown = self._addresses.to_public(real)
            raise ActionFailed(f"{shown} did not load: {reason}") from error

    def _leave_disallowed_pages(self) -> None:
        """Leave pages that are not on the allowed hosts, in case the request filter missed one.

        Goes back in the history first, then to the previous tab, and at last to an empty tab.
        """
        with self._dialogs.asking(False):
            self._leave_while_disallowed()

    def _leave_while_disallowed(self) -> None:
        goes_back = True
        while not self._may_show(url := self._tabs.current.page.url):
            tab = self._tabs.current
            self._filter.notices.append(
                f"left {url[:200]}: not on the allowed hosts: {self._allow}"
            )
            try:
                if goes_back and tab.can_go_back:
                    goes_back = False
                    tab.page.go_back(wait_until="commit", timeout=self._timeout_s * 1000)
                else:
                    goes_back = True
                    self._tabs.close_current()
            except Error as error:
                tab.raise_if_gone(error)
                tab.page.goto("about:blank")
            self._tabs.current.wait_idle()

    def close(self) -> None:
        """End the session: close its own context, or restore the caller's."""
        if self._closed:
            return
        self._closed = True
        with timed(self._stopwatch, "browser"):
            self._close()

    def _close(self) -> None:
        self._tabs.stop_listening()
        if self._proxy is not None:
            self._proxy.close()
        if not self._tabs.is_alive:
            return  # Playwright would wait for an answer forever
        try:
            with self._watchdog.limit(2 * self._timeout_s):
                if self._proxy is not None:
                    self._context.close()
                else:
                    self._dialogs.release()
                    self._tabs.detach()
                    self._filter.release()
        except Error:
            pass  # the context is already dead

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@contextmanager
def _failing(tab: Tab, action: Action) -> Iterator[None]:
    """Turn an error of the browser into the failure of an action."""
    try:
        yield
    except Error as error:
        tab.raise_if_gone(error)
        message = error.message.splitlines()[0]
        raise ActionFailed(f"{action.kind} failed: {message}") from error


def require_chromium_page(page: object) -> None:
    """Raise a TypeError unless `Session.on` can open a session on `page`."""
    if not isinstance(page, PlaywrightPage | BridgedObject):
        kind = f"{type(page).__module__}.{type(page).__qualname__}"
        raise TypeError(
            f"expected a page of playwright.sync_api, found {kind}; open it with sync_playwright()"
        )
    browser = page.context.browser
    if browser is None:
        raise TypeError("expected a page of a browser, found one of a device or an application")
    if browser.browser_type.name != "chromium":
        raise TypeError(f"expected a Chromium page, found {browser.browser_type.name}")
