"""A run of official tasks on stand-ins for VisualWebArena's sites: log-ins, resets and scores."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from tests.local_site import Handler, served
from tests.tasks.runs import complete_rows, run
from tests.tasks.test_visualwebarena import SAMPLE

pytestmark = pytest.mark.browser

RESET = "reset-token-4b61"
PASSWORDS = {"CLASSIFIEDS": "blake-word-1", "REDDIT": "marvels-word-2", "SHOPPING": "emma-word-3"}
FORMS = {
    "CLASSIFIEDS": (
        "/index.php?page=login",
        "<input id=email name=user><input id=password name=word type=password>"
        "<button>Log in</button>",
        "<a href='/index.php?page=main&action=logout'>Logout</a>",
    ),
    "REDDIT": (
        "/login",
        "<input name=_username><input name=_password type=password><button>Log in</button>",
        "<button>MarvelsGrantMan136</button>",
    ),
    "SHOPPING": (
        "/customer/account/login/",
        "<input id=email name=user><input id=pass name=word type=password>"
        "<button><span>Sign In</span></button>",
        "<script>document.body.className = 'account customer-account-index'</script>My Account",
    ),
}
"""Path of the log-in page, its fields, and what the page after it shows."""


class StandIn(Handler):
    """A site with the log-in form of one of VisualWebArena's sites, and pages for whoever is in."""

    name = ""
    posts: list[str]
    """All POST requests with their bodies, and the pages that were opened logged in."""

    def do_GET(self) -> None:
        path, form, shown = FORMS[self.name]
        is_in = "in=yes" in (self.headers["Cookie"] or "")
        if self.path == path:
            self._send(f"<form method=post action=/in>{form}</form>")
            return
        if is_in:
            self.posts.append(f"logged in {self.path}")
        self._send(f"<p>{self.path}</p>{shown if is_in else 'a guest'}")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0)).decode()
        self.posts.append(f"{self.path} {body}")
        given = [value for values in parse_qs(body).values() for value in values]
        if PASSWORDS[self.name] in given:
            self.send_response(303)
            self.send_header("Set-Cookie", "in=yes; Path=/")
            self.send_header("Location", "/home")
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self._send("reset" if body == f"token={RESET}" else "no")

    def _send(self, body: str) -> None:
        self.send(f"<body>{body}</body>".encode())


@pytest.fixture
def posts(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, list[str]]]:
    """Serve stand-ins, and set the usual variables; yield what was posted to each."""
    found: dict[str, list[str]] = {name: [] for name in FORMS}
    with ExitStack() as stack:
        for name in FORMS:
            handler = type(name, (StandIn,), {"name": name, "posts": found[name]})
            # sites on one host would share their cookies
            host = f"127.0.0.{list(FORMS).index(name) + 2}"
            monkeypatch.setenv(name, stack.enter_context(served(handler, host)))
            monkeypatch.setenv(f"{name}_PASSWORD", PASSWORDS[name])
        monkeypatch.setenv("CLASSIFIEDS_RESET_TOKEN", RESET)
        yield found


def chosen(folder: Path) -> Path:
    """Write a task of each site that starts on a page of its own and needs no other site."""
    folder.mkdir()
    for site, number in (("classifieds", 0), ("reddit", 125), ("shopping", 40)):
        tasks = json.loads((SAMPLE / f"{site}.json").read_text())
        (task,) = (each for each in tasks if each["task_id"] == number)
        (folder / f"{site}.json").write_text(json.dumps([task]))
    return folder


def test_official_tasks_begin_reset_and_logged_in_and_leave_no_secret(
    posts: dict[str, list[str]], tmp_path: Path
) -> None:
    tasks = chosen(tmp_path / "official")
    out = tmp_path / "out"
    output = run(out, "--tasks", f"visualwebarena:{tasks}", "--model", "stop")
    rows = {row.task_id: row for row in complete_rows(out)}
    assert sorted(rows) == [0, 234 + 125, 444 + 40], output
    assert {row.status for row in rows.values()} == {"stopped"}
    assert {row.score for row in rows.values()} == {0.0}
    assert rows[0].category == "navigation" and rows[484].category == "information"
    assert sorted(rows[0].settings["unreset"]) == ["reddit", "shopping"]
    # before its own task
    assert posts["CLASSIFIEDS"].count(f"/index.php?page=reset token={RESET}") == 1
    for name, word in PASSWORDS.items():
        assert any(word in post for post in posts[name]), name
    assert all("logged in /" in each for each in posts.values())
    secrets = [RESET, *PASSWORDS.values()]
    for path in (path for path in out.rglob("*") if path.is_file()):
        content = path.read_bytes()
        assert not [word for word in secrets if word.encode() in content], path


def test_several_policies_on_sites_that_nothing_resets_are_refused(
    posts: dict[str, list[str]], tmp_path: Path
) -> None:
    tasks = chosen(tmp_path / "official")
    options = ("--model", "stop", "--policies", "full,int8")
    output = run(tmp_path / "out", "--tasks", f"visualwebarena:{tasks}", *options)
    assert "nothing resets reddit, shopping" in " ".join(output.split())
    assert not any(posts.values()) and not os.path.exists(tmp_path / "out" / "results.jsonl")
