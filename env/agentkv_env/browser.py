"""Launch Chromium, share it between the sessions of a worker, and kill it when it hangs."""

import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from playwright.sync_api import Browser as PlaywrightBrowser
from playwright.sync_api import Error, Playwright, StorageState

from agentkv_env.driver import Driver
from agentkv_env.errors import BrowserGone, BrowserMissing
from agentkv_env.hosts import AllowList
from agentkv_env.named_secrets import Secret
from agentkv_env.ocr import Ocr
from agentkv_env.page_dialogs import Dialogs
from agentkv_env.proxy import Proxy
from agentkv_env.session import Session
from agentkv_env.timing import Stopwatch, timed
from agentkv_env.uploads import Uploads
from agentkv_env.watchdog import Watchdog

VARIABLE = "AGENTKV_BROWSER"
"""Environment variable with the browser executable."""

SANDBOX = "AGENTKV_SANDBOX"
"""Environment variable: 0 disables Chromium's sandbox, 1 enables it even for root."""

LAUNCH_S = 30.0
CLOSE_S = 10.0

_FLAGS = (
    # The proxy of each context resolves names; the browser itself may only reach the proxy.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    # WebRTC would bypass the proxy. The headless shell and Chromium name this switch differently.
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--disable-quic",
    # One renderer per page, so that one connection can read frames of other origins.
    "--disable-site-isolation-trials",
    # All pages of a context share a renderer, because starting one for each site is slow.
    "--renderer-process-limit=1",
)


def find_executable(*, is_visible: bool = False) -> str | None:
    """Return the first of $AGENTKV_BROWSER, chromium-headless-shell and chromium, or None.

    None selects Playwright's own browser, which `playwright install chromium` installs.

    Args:
        is_visible: the browser shows its window, which the headless shell cannot.

    Raises:
        BrowserMissing: the variable names no executable file.
    """
    named = os.environ.get(VARIABLE)
    if named:
        found = shutil.which(named)
        if not found:
            raise BrowserMissing(f"{VARIABLE} is {named!r}, which is no executable file")
        return found
    if is_visible:
        return shutil.which("chromium") or shutil.which("google-chrome")
    # The headless shell is about twice as fast as Chromium and makes no requests of its own.
    return shutil.which("chromium-headless-shell") or shutil.which("chromium")


class Browser:
    """A running Chromium; a context manager. Use it only in the thread that launched it."""

    def __init__(self, running: PlaywrightBrowser, pid: int | None, driver: Driver | None) -> None:
        """Wrap a running browser; use `launch` instead."""
        self._running = running
        self._driver = driver
        """None if the caller's Playwright is used."""
        self._closed = False
        self.version = running.version
        self.pid = pid
        self.watchdog = Watchdog(pid, driver=None if driver is None else driver.pid)

    @classmethod
    def launch(
        cls,
        *,
        executable: str | None = None,
        playwright: Playwright | None = None,
        is_visible: bool = False,
    ) -> Self:
        """Launch a browser, sandboxed unless the user is root or $AGENTKV_SANDBOX is 0.

        Args:
            executable: path of a Chromium; None uses `find_executable`.
            is_visible: show its window, which needs a display.
            playwright: the caller's running Playwright; None starts one that the browsers of this
                thread share.

        Raises:
            BrowserMissing: no Chromium was found, or none that can show a window.
            BrowserGone: the browser did not start.
            ValueError: $AGENTKV_SANDBOX is neither 0 nor 1.
        """
        path = executable or find_executable(is_visible=is_visible)
        if is_visible:
            _require_window(path)
        sandbox = _use_sandbox()
        driver = None
        if playwright is None:
            driver = Driver.acquire()
            playwright = driver.playwright
        watchdog = Watchdog(None, driver=None if driver is None else driver.pid)
        try:
            with watchdog.limit(LAUNCH_S + CLOSE_S):
                running = playwright.chromium.launch(
                    executable_path=path,
                    timeout=LAUNCH_S * 1000,
                    args=list(_FLAGS),
                    headless=not is_visible,
                    handle_sigint=not is_visible,  # Ctrl-C in a terminal closes no window
                    chromium_sandbox=sandbox,
                )
                return cls(running, _browser_pid(running), driver)
        except Error as error:
            if driver is not None:
                driver.release()
            if is_visible and path is None:
                raise BrowserMissing(_NO_WINDOW.format("none is installed")) from error
            if path is None or "executable doesn't exist" in str(error).lower():
                raise BrowserMissing(
                    "no Chromium found; install chromium-headless-shell or chromium with your "
                    "system's packages, or run `playwright install chromium`, or set "
                    f"{VARIABLE} to one (looked at: {path or 'PATH and the Playwright cache'})"
                ) from error
            reason = error.message.splitlines()[0]
            if sandbox and "sandbox" in error.message.lower():
                reason = f"its sandbox cannot be used here; {SANDBOX}=0 does without ({reason})"
            raise BrowserGone(f"{path} did not start: {reason}") from error
        finally:
            watchdog.stop()

    @property
    def is_alive(self) -> bool:
        """True if the browser runs, so that sessions can be opened."""
        return not self._closed and not self.watchdog.fired and self._running.is_connected()

    def session(
        self,
        *,
        hosts: Sequence[str],
        addresses: Mapping[str, str] | None = None,
        viewport: tuple[int, int] = (1280, 1024),
        ocr: Ocr | None = None,
        strict: bool = False,
        timeout_s: float = 5.0,
        stopwatch: Stopwatch | None = None,
        storage_state: StorageState | None = None,
        files: Iterable[str | Path] = (),
        secrets: Mapping[str, Secret] | None = None,
        dialogs: Dialogs = "ask",
    ) -> Session:
        """Open a session with its own cookies and storage.

        A proxy that only connects to `hosts` carries all connections of the session's pages,
        windows, frames and workers. WebRTC and WebTransport cannot leave the browser.

        Args:
            hosts: the only hosts that pages may reach; a host without a port allows 80 and 443,
                see `AllowList`.
            addresses: maps public origins to real origins; the real origin of an allowed public
                origin is allowed as well.
            viewport: width and height in pixels.
            ocr: reads text in images; None leaves images unread.
            strict: execute actions as VisualWebArena does, see `Session.act`.
            timeout_s: time limit of each browser operation, in seconds.
            stopwatch: charged with the session's time, as `browser`, `walk`, `screenshots` and
                `OCR`.
            storage_state: cookies and storage to begin with, such as a log-in; None: none.
            files: files, and folders of files, that may be uploaded to pages; no others are read.
            secrets: secrets that actions may name (`<secret:name>`), by their names.
            dialogs: what answers the confirm, the prompt and the warning before it is left of a
                page: `ask`: actions, see `Session.act`; `accept` or `dismiss`: always the same
                button. A strict session accepts all but prompts.

        Raises:
            ValueError: a path of `files` does not exist, a secret has no proper name, or `dialogs`
                has another value.
            BrowserGone: the browser is dead or closed, or did not answer and was killed.
        """
        if not self.is_alive:
            raise BrowserGone("the browser is gone; launch a new one")
        with timed(stopwatch, "browser"):
            return self._open_session(
                AllowList(hosts, addresses=addresses),
                addresses=addresses or {},
                viewport=viewport,
                ocr=ocr,
                strict=strict,
                timeout_s=timeout_s,
                stopwatch=stopwatch,
                storage_state=storage_state,
                uploads=Uploads(files),
                secrets=secrets or {},
                dialogs=dialogs,
            )

    def _open_session(
        self,
        allow: AllowList,
        *,
        addresses: Mapping[str, str],
        viewport: tuple[int, int],
        ocr: Ocr | None,
        strict: bool,
        timeout_s: float,
        stopwatch: Stopwatch | None,
        storage_state: StorageState | None,
        uploads: Uploads,
        secrets: Mapping[str, Secret],
        dialogs: Dialogs,
    ) -> Session:
        proxy = Proxy(allow)
        try:
            with self.watchdog.limit(2 * timeout_s):
                context = self._running.new_context(
                    viewport={"width": viewport[0], "height": viewport[1]},
                    accept_downloads=False,
                    service_workers="block",
                    device_scale_factor=1,
                    proxy={"server": proxy.address, "bypass": "<-loopback>"},
                    storage_state=storage_state,
                )
                page = context.new_page()
        except Error as error:
            proxy.close()
            if self.watchdog.fired:
                raise BrowserGone(
                    f"the browser did not answer for {2 * timeout_s:g} s and was killed"
                ) from error
            raise BrowserGone(f"the browser is gone: {error.message.splitlines()[0]}") from error
        return Session(
            page,
            allow=allow,
            addresses=addresses,
            proxy=proxy,
            ocr=ocr,
            strict=strict,
            timeout_s=timeout_s,
            watchdog=self.watchdog,
            uploads=uploads,
            secrets=secrets,
            dialogs=dialogs,
            stopwatch=stopwatch,
        )

    def close(self) -> None:
        """End the browser and all its processes; closing twice, or a dead browser, does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            if not self.watchdog.fired and self._running.is_connected():
                with self.watchdog.limit(CLOSE_S):
                    self._running.close()
        except Error:
            pass  # the browser is already dead
        self.watchdog.stop()
        self.watchdog.kill()  # helper processes may outlive the browser
        if self._driver is not None:
            self._driver.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


_NO_WINDOW = (
    "a visible browser needs Chromium itself, and {}; install the package chromium with your "
    f"system's packages (apt install chromium), or run `playwright install chromium`, or set "
    f"{VARIABLE} to one"
)


def _require_window(path: str | None) -> None:
    """Check that the Chromium at `path` can show a window. Raises BrowserMissing."""
    has_display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if path is not None and "headless" in Path(path).name:
        raise BrowserMissing(_NO_WINDOW.format(f"{path} is its headless shell"))
    if sys.platform == "linux" and not has_display:
        raise BrowserMissing(
            "a visible browser needs a display, and neither DISPLAY nor WAYLAND_DISPLAY is set; "
            "run it in a graphical session, or under `xvfb-run`"
        )


def _use_sandbox() -> bool:
    # Chromium refuses to start sandboxed as root.
    setting = os.environ.get(SANDBOX, "")
    if setting not in ("", "0", "1"):
        raise ValueError(f"{SANDBOX} is {setting!r}; expected 0 or 1")
    return setting == "1" if setting else os.geteuid() != 0


def _browser_pid(running: PlaywrightBrowser) -> int | None:
    """Return the process id of the browser, which Playwright does not expose."""
    connection = running.new_browser_cdp_session()
    processes = connection.send("SystemInfo.getProcessInfo")["processInfo"]
    connection.detach()
    return next((int(entry["id"]) for entry in processes if entry["type"] == "browser"), None)
