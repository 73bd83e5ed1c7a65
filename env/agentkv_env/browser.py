"""One Chromium: found, started, shared by the sessions of one worker, and killed when it hangs."""

import os
import shutil
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from playwright.sync_api import Browser as PlaywrightBrowser
from playwright.sync_api import Error, Playwright

from agentkv_env.allow import AllowList
from agentkv_env.driver import Driver
from agentkv_env.errors import BrowserGone, BrowserMissing
from agentkv_env.ocr import Ocr
from agentkv_env.proxy import Proxy
from agentkv_env.session import Session
from agentkv_env.watchdog import Watchdog

VARIABLE = "AGENTKV_BROWSER"
"""Environment variable that names the browser's executable."""

SANDBOX = "AGENTKV_SANDBOX"
"""Environment variable: 0 starts Chromium without its sandbox, 1 with it, also as root."""

LAUNCH_S = 30.0
CLOSE_S = 10.0

_FLAGS = (
    # Each context has a proxy, which resolves names; the browser may reach that one address.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    # WebRTC would go beside the proxy. Two names of one switch: the headless shell's, Chromium's.
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--disable-quic",
    # One renderer per page: frames of other sites stay readable from one connection.
    "--disable-site-isolation-trials",
)


def find_executable() -> str | None:
    """The Chromium to use: $AGENTKV_BROWSER, chromium-headless-shell, chromium; else None.

    None means Playwright's own, if `playwright install chromium` has been run.

    Raises:
        BrowserMissing: the variable names a file that is not there.
    """
    named = os.environ.get(VARIABLE)
    if named:
        found = shutil.which(named)
        if not found:
            raise BrowserMissing(f"{VARIABLE} is {named!r}, which is no executable file")
        return found
    # The headless shell is about twice as fast as the full browser and opens no connection itself.
    return shutil.which("chromium-headless-shell") or shutil.which("chromium")


class Browser:
    """A running Chromium. Use from the thread that launched it; a context manager."""

    def __init__(self, running: PlaywrightBrowser, pid: int | None, driver: Driver | None) -> None:
        """Use `launch`."""
        self._running = running
        self._driver = driver
        """None where the caller's Playwright is used."""
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
    ) -> Self:
        """Start a browser, in Chromium's sandbox unless the user is root or $AGENTKV_SANDBOX is 0.

        Args:
            executable: path of a Chromium; None looks it up, see `find_executable`.
            playwright: the caller's running Playwright; None starts one, shared in this thread.

        Raises:
            BrowserMissing: there is no Chromium.
            BrowserGone: it did not start.
            ValueError: $AGENTKV_SANDBOX is neither 0 nor 1.
        """
        path = executable or find_executable()
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
                    chromium_sandbox=sandbox,
                )
                return cls(running, _browser_pid(running), driver)
        except Error as error:
            if driver is not None:
                driver.release()
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
        """Whether sessions can be opened."""
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
    ) -> Session:
        """A fresh session with its own cookies and storage.

        All its connections go through a proxy that knows `hosts`: those of pages, windows, frames
        and workers of every kind. WebRTC has no way out, WebTransport neither.

        Args:
            hosts: the only hosts its pages may reach; without a port only 80 and 443 of a host,
                see `AllowList`.
            addresses: public origin -> real origin; for a public origin that is allowed, the real
                one is allowed too.
            viewport: width and height in pixels.
            ocr: reads text in images; None leaves images unread.
            strict: do actions as VisualWebArena's executor does, see `Session.act`.
            timeout_s: for each thing the browser is asked to do.

        Raises:
            BrowserGone: this browser is dead or closed, or does not answer (it is killed then).
        """
        if not self.is_alive:
            raise BrowserGone("the browser is gone; launch a new one")
        allow = AllowList(hosts, addresses=addresses)
        proxy = Proxy(allow)
        try:
            with self.watchdog.limit(2 * timeout_s):
                context = self._running.new_context(
                    viewport={"width": viewport[0], "height": viewport[1]},
                    accept_downloads=False,
                    service_workers="block",
                    device_scale_factor=1,
                    proxy={"server": proxy.address, "bypass": "<-loopback>"},
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
            addresses=addresses or {},
            proxy=proxy,
            ocr=ocr,
            strict=strict,
            timeout_s=timeout_s,
            watchdog=self.watchdog,
        )

    def close(self) -> None:
        """End the browser and all its processes; safe to call twice and on a dead one."""
        if self._closed:
            return
        self._closed = True
        try:
            if not self.watchdog.fired and self._running.is_connected():
                with self.watchdog.limit(CLOSE_S):
                    self._running.close()
        except Error:
            pass  # it is dead, which is what was asked for
        self.watchdog.stop()
        self.watchdog.kill()  # helpers that outlived it, if there are any
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


def _use_sandbox() -> bool:
    """Chromium refuses to start with it as root."""
    said = os.environ.get(SANDBOX, "")
    if said not in ("", "0", "1"):
        raise ValueError(f"{SANDBOX} is {said!r}; expected 0 or 1")
    return said == "1" if said else os.geteuid() != 0


def _browser_pid(running: PlaywrightBrowser) -> int | None:
    """The browser's process, which Playwright does not tell."""
    connection = running.new_browser_cdp_session()
    processes = connection.send("SystemInfo.getProcessInfo")["processInfo"]
    connection.detach()
    return next((int(entry["id"]) for entry in processes if entry["type"] == "browser"), None)
