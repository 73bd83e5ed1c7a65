"""The programs in `examples` run as a reader would run them, against a site on loopback."""

import contextlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[2]
FORM = """<title>Sign in</title><form method="post" action="/sign-in">
<label>Name <input name="name"></label>
<label>Password <input type="password" name="password"></label><button>Go</button></form>"""
ORDERS = "<title>Orders</title><h1>Orders of Ann</h1><p>Three orders are open.</p>"


class _Handler(BaseHTTPRequestHandler):
    """Shows /orders to those with the right cookie, and a form to all others."""

    server: "Site"

    def do_GET(self) -> None:
        is_signed_in = "session=ann" in self.headers.get("Cookie", "")
        self.server.asked.append(f"GET {self.path} {'signed in' if is_signed_in else 'stranger'}")
        self._answer(200, ORDERS if is_signed_in else FORM)

    def do_POST(self) -> None:
        form = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.asked.append(f"POST {self.path} {form}")
        is_ann = form == "name=ann&password=correct+horse"
        cookie = {"Set-Cookie": "session=ann; HttpOnly"} if is_ann else {}
        self._answer(303, "", {"Location": "/orders", **cookie})

    def _answer(self, status: int, html: str, headers: dict[str, str] | None = None) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.send_response(status)
            for name, value in {"Content-Type": "text/html", **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(html.encode())

    def log_message(self, *args: object) -> None:
        pass


class Site(ThreadingHTTPServer):
    """A site with a sign-in."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://localhost:{self.server_port}/orders"


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        yield site
        site.shutdown()


def start(example: str, *arguments: str, folder: Path) -> "subprocess.Popen[str]":
    path = os.pathsep.join(str(ROOT / room) for room in (".", "env", "kernels", "tasks"))
    return subprocess.Popen(
        [sys.executable, str(ROOT / "examples" / example), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # without a terminal, a password is read from the input
    )


@pytest.mark.slow  # tests/env/test_boundaries.py begins a session with kept cookies as well
def test_a_sign_in_is_kept_for_later_runs(site: Site, tmp_path: Path) -> None:
    arguments = ("signed_in.py", site.url, "How many orders are open?")
    first = start(*arguments, folder=tmp_path)
    output, errors = first.communicate("ann\ncorrect horse\n")
    assert first.returncode == 0, errors
    assert f"{site.url} " in output and site.asked[-1] == "GET /orders signed in"
    assert stat.S_IMODE((tmp_path / "state.json").stat().st_mode) == 0o600
    assert "correct" not in output + (tmp_path / "state.json").read_text()
    site.asked.clear()
    second = start(*arguments, folder=tmp_path)
    again, errors = second.communicate("")
    assert second.returncode == 0, errors
    assert again.splitlines()[-1] == output.splitlines()[-1].removeprefix("Name: ")
    assert "GET /orders stranger" not in site.asked and "POST" not in "".join(site.asked)


@pytest.mark.slow  # tests/agentkv/agent/test_async_session.py loads a session as well
def test_a_session_goes_on_after_its_process_was_killed(site: Site, tmp_path: Path) -> None:
    goals = ("What does the page say?", "Who has orders?", "How many orders are open?")
    killed = start("resume.py", site.url, *goals, folder=tmp_path)
    assert killed.stdout is not None
    lines = [killed.stdout.readline()]
    killed.send_signal(signal.SIGKILL)
    lines += killed.communicate()[0].splitlines()  # what it did before the signal arrived
    done = json.loads((tmp_path / "resumable" / "progress.json").read_text())["done"]
    assert done < len(goals)
    resumed = start("resume.py", site.url, *goals, folder=tmp_path)
    output, errors = resumed.communicate()
    assert resumed.returncode == 0, errors
    numbers = [int(line.split()[0]) for line in output.splitlines()]
    assert numbers == list(range(done + 1, len(goals) + 1))
    read = [int(re.findall(r"read (\d+)", line)[0]) for line in [lines[0], *output.splitlines()]]
    assert read == sorted(set(read))  # the cache went on, and was not begun anew
