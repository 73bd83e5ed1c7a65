"""`agentkv record`: a person reaches goals on embedded sites, and the episodes train a model."""

import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Locator
from playwright.sync_api import Page as PlaywrightPage
from tokenizers import Tokenizer
from typer.testing import CliRunner

from agentkv.agent import Agent
from agentkv.demonstration import Demonstration, NotWritable, require_writable
from agentkv.dialog.prompt import PlainTemplate
from agentkv.models.model import Reply
from agentkv.recordings import Recording, RecordingError, RecordingFile, read_recordings
from agentkv_env.actions import Action
from agentkv_env.browser import Browser, find_executable
from agentkv_env.page import Page
from agentkv_tasks.cli.app import cli
from agentkv_tasks.evaluate import Graders
from agentkv_tasks.run.plan import make_plan
from agentkv_tasks.run.played_sites import PlayedSites, sites_of
from agentkv_tasks.run.played_task import EpisodeEnd, begun, score_of
from agentkv_tasks.settings import RunSettings
from agentkv_tasks.suites import load_suite
from agentkv_tasks.task import Task
from agentkv_tasks.train.rows import IGNORED, episode_rows
from agentkv_tasks.train.settings import TrainSettings
from tests.env.conftest import Pages

pytestmark = pytest.mark.browser

SEED = 1_000_000
ROOT = Path(__file__).parents[2]
STEP = re.compile(r"(click|type) \[(\w+): ((?:[^\[\]]|\[[^\]]*\])*?)\](?: \[(.*)\] \[([01])\])?")


class ByHand:
    """A person who carries out the steps of a solution with mouse and keyboard."""

    def __init__(self, demonstration: Demonstration, pages: tuple[PlaywrightPage, ...]) -> None:
        self._demonstration = demonstration
        self._pages = pages
        self._page = pages[0]

    def do(self, line: str) -> None:
        page = self._page
        if line.startswith("tab_focus"):
            self._page = self._pages[int(line[11:-1])]
        elif line == "go_back":
            page.keyboard.press("Alt+ArrowLeft")
            page.go_back()
        else:
            found = STEP.fullmatch(line)
            assert found is not None, line
            verb, role, name, text, enter = found.groups()
            self._press(role, name)
            if role == "combobox":
                options = self._find(role, name)
                labels = options.locator("option").all_inner_texts()
                for _ in range(
                    labels.index(text) - int(options.evaluate("el => el.selectedIndex"))
                ):
                    page.keyboard.press("ArrowDown")
                page.keyboard.press("Enter")
            elif verb == "type":
                page.keyboard.press("Control+a")
                page.keyboard.type(text)
                if enter == "1":
                    page.keyboard.press("Enter")
        self._demonstration.wait(0.05)

    def _find(self, role: str, name: str) -> Locator:
        roles = ("textbox", "searchbox", "spinbutton") if role == "textbox" else (role,)
        first, *others = (
            self._page.get_by_role(each, name=name, exact=True)  # type: ignore[arg-type]
            for each in roles
        )
        for other in others:
            first = first.or_(other)
        return first.first

    def _press(self, role: str, name: str) -> None:
        """Scroll with the wheel until the element can be seen, and press its middle."""
        element = self._find(role, name)
        for _ in range(20):
            box, size = element.bounding_box(), self._page.viewport_size
            assert box is not None and size is not None
            y = box["y"] + box["height"] / 2
            if 0 < y < size["height"]:
                self._page.mouse.click(box["x"] + min(box["width"] / 2, 40), y)
                return
            self._page.mouse.wheel(0, 300 if y > 0 else -300)
            self._demonstration.wait(0.1)
        raise AssertionError(f"{role} {name} cannot be scrolled to")


@dataclass
class Replies:
    """A model that writes the replies of a recording, whatever it is shown."""

    texts: list[str]
    name: str = "replies"

    def begin(self, goal: str, *, seed: int = 0) -> "Replies":
        return Replies(list(self.texts))

    def reply(self, page: Page, note: str = "", deadline: float | None = None) -> Reply:
        assert not note, note
        return Reply(text=self.texts.pop(0))


def task_of(number: int) -> Task:
    return next(t for t in load_suite("vwa75", world_seed=SEED).tasks if t.task_id == number)


@pytest.fixture(scope="module")
def sites() -> Iterator[PlayedSites]:
    suite = load_suite("vwa75", world_seed=SEED)
    settings = RunSettings(model="solution", world_seed=SEED)
    with sites_of(make_plan(settings, suite, suite.tasks, sites={}, threads=1)) as started:
        yield started


def demonstrated(task: Task, sites: PlayedSites, browser: Browser) -> tuple[Recording, list[str]]:
    """Play a task by hand; return the recording, and the lines of the solution."""
    sites.begin(task, browser)
    addresses = sites.addresses
    *lines, stop = (addresses.fill(line) for line in task.solution)
    urls = [addresses.fill(url) for url in task.start_urls]
    opened = browser.session(
        hosts=addresses.hosts(*task.start_urls),
        addresses=dict(addresses.origins),
        viewport=task.window,
    )
    with opened as session:
        demonstration = Demonstration(session, task.intent)
        session.open(*urls)
        demonstration.begin()
        person = ByHand(demonstration, session.pages)
        for line in lines:
            person.do(line)
        demonstration.finish()
        assert demonstration.missed == []
        return demonstration.recording(stop[len("stop [") : -1], world_seed=SEED), lines


# lists, boxes and radio buttons; going back; two tabs; a page that is scrolled
@pytest.mark.parametrize("number", [12, 14, 15, 23])
def test_what_a_person_did_reaches_the_goal_when_an_agent_does_it(
    number: int, sites: PlayedSites, browser: Browser, tmp_path: Path
) -> None:
    task = task_of(number)
    recording, _ = demonstrated(task, sites, browser)
    with RecordingFile(tmp_path / "mine.jsonl") as file:
        file.append(recording)
    (read,) = read_recordings(tmp_path / "mine.jsonl")
    assert read == recording and all(step.counts for step in read.steps)

    sites.begin(task, browser)
    with begun(task, browser, sites.addresses, ocr=None, log_in=None) as (session, goal):
        replies = Replies([step.reply for step in read.steps])
        played = Agent(replies).run(session, goal)
        assert played.status == "stopped" and not any(step.error for step in played.steps)
        end = EpisodeEnd.of(session, played.answer, browser, sites.addresses)
        score = score_of(task, end, browser, sites.addresses, graders=Graders(admin=sites.admin))
    assert score.value == 1.0, score.reason


def test_the_rows_of_a_demonstration_learn_its_replies(
    sites: PlayedSites, browser: Browser
) -> None:
    recording, _ = demonstrated(task_of(4), sites, browser)
    assert [step.reply.splitlines()[0] for step in recording.steps] == [
        *("at Search", "at Denelus Classic Fish Tank", "at Colour", "at Quantity"),
        *("at Add to cart", "done"),
    ]
    template = PlainTemplate(Tokenizer.from_file(str(ROOT / "agentkv/models/nano/tokenizer.json")))
    settings = TrainSettings(recordings=(Path("mine.jsonl"),))
    found = episode_rows(recording, template, settings, most=1 << 16)
    (row,) = found.rows
    learned = [
        template.decode([label for label in row.labels[start : stop - 1] if label != IGNORED])
        for start, stop in row.replies
    ]
    assert learned == [step.reply for step in recording.steps] and not found.num_lost


@pytest.mark.parametrize("text", ["```", "a``` b", "x ```stop [1]```", "5 [1] [0]"])
def test_a_text_that_no_reply_can_hold_is_refused_or_read_back(text: str) -> None:
    page = Page("http://a.test/", "A", ())
    action = Action("type", element_id=1, text=text, enter=False)
    if "```" in text:
        with pytest.raises(NotWritable):
            require_writable(action, page)
    else:
        require_writable(action, page)


def test_an_episode_that_shows_a_typed_password_is_refused(browser: Browser) -> None:
    shows = "<input type=password oninput='out.textContent = value'><p id=out>"
    with Pages() as pages, browser.session(hosts=[f"a.localhost:{pages.port}"]) as session:
        pages.set({"/": shows})
        demonstration = Demonstration(session, "Log in")
        session.open(pages.origin("a") + "/")
        demonstration.begin()
        session.page.mouse.click(30, 20)
        session.page.keyboard.type("hunter2 hunter2")
        lines = demonstration.wait(0.1) + demonstration.finish()
        assert len(demonstration.missed) == 1 and "hunter2" not in str(lines)
        with pytest.raises(RecordingError, match="shows a password that was typed"):
            demonstration.recording("done")


class Command:
    """`agentkv record` in a process of its own, on a terminal."""

    def __init__(self, *arguments: str) -> None:
        self._terminal, theirs = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "agentkv", "record", *arguments],
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
        )
        os.close(theirs)

    def read_to(self, text: str) -> str:
        """Return what is printed up to a text, which must come."""
        assert self._process.stdout is not None
        said = ""
        while not said.endswith(text):
            character = self._process.stdout.read(1)
            assert character, said
            said += character
        return said

    def type(self, line: str) -> None:
        os.write(self._terminal, f"{line}\n".encode())

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def end(self) -> tuple[int, str]:
        said, _ = self._process.communicate(timeout=60)
        os.close(self._terminal)
        return self._process.returncode, said


@pytest.fixture
def tab(browser: Browser) -> Iterator[tuple[str, PlaywrightPage]]:
    """The endpoint of a Chrome with a debugging port, and a tab in which a person acts."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
    with browser.session(hosts=[]) as session:
        assert session.page.context.browser is not None
        chromium = session.page.context.browser.browser_type
    arguments = [f"--remote-debugging-port={port}"]
    with chromium.launch(executable_path=find_executable(), args=arguments) as running:
        yield f"http://127.0.0.1:{port}", running.new_context().new_page()


def test_a_person_is_asked_at_the_end_and_may_go_on_in_the_same_file(
    tab: tuple[str, PlaywrightPage], tmp_path: Path
) -> None:
    endpoint, page = tab
    file = tmp_path / "mine.jsonl"
    with Pages() as pages:
        pages.set({"/": "<title>A</title><a href=/b>Deals</a>", "/b": "<title>B</title>7 left"})
        url = pages.origin() + "/"
        options = ("--goal", "How many?", "--to", str(file), "--connect", endpoint)
        for answer, kept, num_episodes in (("7", "n", 0), ("7", "y", 1), ("", "y", 2)):
            page.goto(url)
            command = Command(url, *options)
            assert "press Enter or Ctrl-C here" in command.read_to("to finish\n")
            page.mouse.click(20, 15)
            assert command.read_to("link 'Deals'\n") == "1 click [1] link 'Deals'\n"
            command.type("")
            command.read_to("empty for none: ")
            command.type(answer)
            command.read_to("keep the episode of 1 action? y = yes, n = no: ")
            command.type(kept)
            code, said = command.end()
            assert code == (kept == "n"), said
            assert len(list(read_recordings(file)) if file.exists() else []) == num_episodes
        first, second = read_recordings(file)
        assert [step.reply for step in first.steps] == ["at Deals\n```click [1]```", STOPS["7"]]
        assert second.steps[-1].reply == STOPS[""] and second.goal == "How many?"
        assert not page.is_closed(), "the person's tab stays open"


STOPS = {"7": "done\n```stop [7]```", "": "done\n```stop []```"}


def test_ctrl_c_and_the_closing_of_the_window_end_a_recording(
    tab: tuple[str, PlaywrightPage], tmp_path: Path
) -> None:
    endpoint, page = tab
    with Pages() as pages:
        pages.set({"/": "<title>A</title><a href=/b>Deals</a>", "/b": "<title>B</title><p>b"})
        url = pages.origin() + "/"
        for number, closes in enumerate((False, True)):
            file = tmp_path / f"{number}.jsonl"
            page.goto(url)
            options = ("--goal", "Go", "--to", str(file), "--connect", endpoint, "--yes")
            command = Command(url, *options)
            assert "press Ctrl-C here" in command.read_to("to finish\n")
            page.mouse.click(20, 15)
            command.read_to("link 'Deals'\n")
            page.wait_for_timeout(500)  # a person sees the page before closing it
            if closes:
                page.close()
            else:
                command.interrupt()
            code, said = command.end()
            assert code == 0, said
            (episode,) = read_recordings(file)
            assert [step.page.title for step in episode.steps] == ["A", "B"]


def test_an_incomplete_episode_is_kept_only_if_the_person_insists(
    tab: tuple[str, PlaywrightPage], tmp_path: Path
) -> None:
    endpoint, page = tab
    file = tmp_path / "mine.jsonl"
    with Pages() as pages:
        pages.set({"/": "<input type=password aria-label=Key><input type=checkbox><p>words"})
        url = pages.origin() + "/"
        options = (url, "--goal", "Go", "--to", str(file), "--connect", endpoint, "--yes")
        for insists in (False, True):
            page.goto(url)
            command = Command(*options, *(("--incomplete",) if insists else ()))
            command.read_to("to finish\n")
            page.mouse.click(30, 20)
            page.keyboard.type("hunter2 hunter2")
            page.mouse.click(*centre(page, "[type=checkbox]"))
            command.read_to("not recordable: the text in textbox Key: passwords")
            command.read_to("click [2]")
            command.interrupt()
            code, said = command.end()
            assert code == (not insists) and file.exists() == insists, said
        assert "hunter2" not in file.read_text()


def centre(page: PlaywrightPage, selector: str) -> tuple[float, float]:
    box = page.locator(selector).bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("http://a.test/", "--yes"), "a visible browser needs a display"),
        (("http://a.test/",), "standard input is no terminal"),
        (("ftp://a.test/", "--yes"), "'ftp://a.test/' is not a web address"),
        (
            ("http://shop.localhost/", "--world-seed", "75", "--yes"),
            "worlds below 1000000 evaluate",
        ),
        (("http://a.test/", "--yes", "--goal", "use <secret:x>"), "there is no <secret:x>"),
        (("http://a.test/", "--yes", "--hosts", "a b"), "--hosts: host 'a b' is no host name"),
        (("http://a.test/", "--yes", "--to", str(ROOT / "LICENSE")), "not JSON; expected a rec"),
    ],
)
def test_what_cannot_be_recorded_is_refused_in_a_line_before_a_window_opens(
    options: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "AGENTKV_BROWSER"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "mine.jsonl"
    result = CliRunner().invoke(
        cli, ["record", "--goal", "Go", "--to", str(file), *options], input=""
    )
    assert said in " ".join(result.output.split()), result.output
    assert result.exit_code == 2 and not file.exists()
