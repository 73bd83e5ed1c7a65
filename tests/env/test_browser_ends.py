"""Stopped and killed browsers and drivers raise an error in bounded time and leave nothing behind.

Each case runs in its own thread and therefore has its own driver.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentkv_env import browser as browser_module
from agentkv_env import driver as driver_module
from agentkv_env.browser import Browser
from agentkv_env.driver import PREFIX, remove_stale
from agentkv_env.errors import BrowserGone
from tests.tasks.runs import REPOSITORY, is_running, wait_until_gone, workers_of

pytestmark = pytest.mark.browser

Try = Callable[[Callable[[Browser], object]], object]


@pytest.fixture
def elsewhere() -> Iterator[Try]:
    """Launch a browser in a new thread and call a function with it."""

    def tried(function: Callable[[Browser], object]) -> object:
        outcome: list[object] = []

        def inside() -> None:
            browser = Browser.launch()
            family = family_of(browser)
            try:
                outcome.append(function(browser))
            except BaseException as error:
                outcome.append(error)
            finally:
                browser.close()
                browser.close()
            wait_until_gone(family)

        thread = threading.Thread(target=inside, daemon=True)
        thread.start()
        thread.join(60)
        assert outcome and not thread.is_alive(), "the call never came back"
        if isinstance(outcome[0], BaseException):
            raise outcome[0]
        return outcome[0]

    yield tried


def driver_of(browser: Browser) -> int:
    driver = browser._driver
    assert driver is not None and driver.pid is not None
    return driver.pid


def family_of(browser: Browser) -> list[int]:
    """The driver, the browser and all its helpers."""
    driver = driver_of(browser)
    found = [driver, *workers_of(driver)]
    assert browser.pid in found
    return found


VICTIMS: dict[str, Callable[[Browser], int | None]] = {
    "browser": lambda browser: browser.pid,
    "driver": driver_of,
}


@pytest.mark.sample("values")
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_no_session_is_waited_for_in_vain(
    elsewhere: Try, victim: str, how: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentkv_env.watchdog.DRIVER_S", 0.3)

    def ask(browser: Browser) -> object:
        pid = VICTIMS[victim](browser)
        assert pid is not None
        os.kill(pid, how)
        return browser.session(hosts=["localhost"], timeout_s=0.3)

    with pytest.raises(BrowserGone, match="gone|did not answer for 0.6 s and was killed"):
        elsewhere(ask)


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_stopped_browser_or_driver_is_closed_all_the_same(
    elsewhere: Try, victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browser_module, "CLOSE_S", 0.3)
    monkeypatch.setattr(driver_module, "_STOP_S", 0.3)
    monkeypatch.setattr("agentkv_env.watchdog.DRIVER_S", 0.3)

    def stop(browser: Browser) -> int:
        pid = VICTIMS[victim](browser)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        browser.close()
        return pid

    assert not is_running(int(str(elsewhere(stop))))


def test_a_browser_is_launched_beside_one_whose_driver_died(elsewhere: Try) -> None:
    def again(browser: Browser) -> bool:
        driver = driver_of(browser)
        os.kill(driver, signal.SIGKILL)
        wait_until_gone([driver])
        with Browser.launch() as other, other.session(hosts=["localhost"]) as session:
            return session.page.url == "about:blank"

    assert elsewhere(again) is True


def folders() -> set[str]:
    return {path.name for path in Path(tempfile.gettempdir()).glob(PREFIX + "*")}


def test_a_temporary_folder_that_takes_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc/sys")
    with pytest.raises(BrowserGone, match="can be made in /proc/sys: .*TMPDIR"):
        driver_module.Driver()


def test_profiles_of_the_killed_go_at_the_next_start_and_those_of_the_living_stay(
    elsewhere: Try, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = (
        "import time; from agentkv_env.browser import Browser; Browser.launch(); "
        "print('up', flush=True); time.sleep(600)"
    )
    path = os.pathsep.join(str(REPOSITORY / room) for room in (".", "env"))
    environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path)}
    others = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    foreign = tmp_path / "playwright_chromiumdev_profile-abcdef"
    foreign.mkdir()
    try:
        for each in others:
            assert each.stdout is not None and each.stdout.readline() == b"up\n"
        assert len(folders()) == 4  # a folder and a lock for each
        families = [workers_of(each.pid) for each in others]
        others[0].kill()
        others[0].wait()
        wait_until_gone(families[0])
        assert any(tmp_path.glob(f"{PREFIX}*/playwright_chromiumdev_profile-*/*"))
        remove_stale()
        assert len(folders()) == 2
        assert any(tmp_path.glob(f"{PREFIX}*/playwright_chromiumdev_profile-*/*"))
        assert is_running(others[1].pid) and all(map(is_running, families[1]))
    finally:
        for each in others:
            each.kill()
            each.communicate()
    wait_until_gone(families[1])
    seen = elsewhere(lambda browser: len(folders()))
    assert seen == 2  # its own; the folders of the second driver are removed
    assert folders() == set() and foreign.is_dir()
