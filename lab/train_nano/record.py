"""Record the solutions of suites, played in a browser in training worlds.

    python -m train_nano.record --first 1000000 --worlds 40
    python -m train_nano.record --tasks vwa75 vwa-long

Each suite and world has one file, and existing files are kept. Some episodes contain a detour: a
wrong link and the step back. Only the step back is trained on, and an episode with a detour is
dropped unless it scores 1.0. Episodes without a detour are the suite's own solutions, which its
tests score.
"""

import argparse
import itertools
import random
import time
from pathlib import Path

from playwright.sync_api import Error as PlaywrightError

from agentkv.agent import Agent
from agentkv.dialog.reply import write_reply
from agentkv.models.model import Conversation, Model, Reply
from agentkv.models.scripted import Solution, SolutionStuck
from agentkv_env.actions import Action
from agentkv_env.browser import Browser
from agentkv_env.errors import BrowserGone
from agentkv_env.ocr import Ocr, default_cache
from agentkv_env.page import Node, Page
from agentkv_env.sites.names import FIRST_TRAINING_SEED
from agentkv_env.sites.server import Server
from agentkv_env.sites.world import World
from agentkv_tasks.addresses import Addresses
from agentkv_tasks.evaluate import Final, evaluate
from agentkv_tasks.suites import SUITES
from agentkv_tasks.task import Task
from train_nano.episode import RecordedEpisode, RecordedTurn, save

RECORDINGS = Path(__file__).parent / "recordings"
BACK = "go_back\n```go_back```"


class Recorder:
    """A scripted model for one episode that records pages and replies and may take a detour."""

    name = "recorder"

    def __init__(self, script: Model, rng: random.Random, *, has_detour: bool) -> None:
        self._script = script
        self._conversation: Conversation | None = None
        self._rng = rng
        self._detours_left = 1 if has_detour else 0
        self._is_lost = False
        self._has_unsent_text = False
        self.turns: list[RecordedTurn] = []

    def begin(self, goal: str, *, seed: int = 0) -> "Recorder":
        self._conversation = self._script.begin(goal, seed=seed)
        return self

    def reply(self, page: Page, note: str = "", deadline: float | None = None) -> Reply:
        if self._is_lost:
            self._is_lost = False
            self.turns.append(RecordedTurn(page, BACK, note))
            return Reply(text=BACK)
        wrong = self._wrong_link(page)
        if wrong is not None:
            text = write_reply(Action(kind="click", element_id=wrong.id), page)
            self.turns.append(RecordedTurn(page, text, note, counts=False))
            self._is_lost = True
            return Reply(text=text)
        assert self._conversation is not None, "begin() comes first"
        reply = self._conversation.reply(page, note, deadline)
        self._has_unsent_text = "```type" in reply.text and "[0]" in reply.text
        self.turns.append(RecordedTurn(page, reply.text, note))
        return reply

    def _wrong_link(self, page: Page) -> Node | None:
        """Draw a link for a detour, or None; a page with typed text must not be left."""
        if not self._detours_left or self._has_unsent_text or self._rng.random() > 0.3:
            return None
        if page.pixels_above or any(node.value and node.role == "textbox" for node in page.nodes):
            return None
        links = [node for node in page.nodes if node.role == "link"]
        if not links:
            return None
        self._detours_left -= 1
        return self._rng.choice(links)


def recordable_suites() -> list[str]:
    """Return the suites with solutions that training may see."""
    return [name for name, suite in SUITES.items() if suite.has_solutions and not suite.is_held_out]


def record(
    seed: int, suite: str, browsers: "Browsers", ocr: Ocr | None
) -> tuple[list[RecordedEpisode], list[str]]:
    """Record a suite in the training world `seed`.

    Returns:
        The episodes, and why others were dropped.

    Raises:
        ValueError: the suite is unknown, held out or without solutions, or `seed` belongs to an
            evaluation world.
    """
    known = recordable_suites()
    if suite not in known:
        if suite not in SUITES:
            why = "is unknown"
        elif SUITES[suite].is_held_out:
            why = "measures what training has not seen"
        else:
            why = "has no solutions"
        raise ValueError(f"suite {suite!r} {why}; suites to record: {', '.join(known)}")
    if seed < FIRST_TRAINING_SEED:
        raise ValueError(
            f"seed {seed} belongs to an evaluation world; use {FIRST_TRAINING_SEED} or higher"
        )
    world = World(seed)
    rng = random.Random(f"record/{seed}")
    episodes, dropped = [], []
    with Server(world) as server:
        addresses = Addresses(server.placeholders, server.addresses)
        for task in SUITES[suite].tasks(world):
            server.reset()
            name = episode_name(seed, suite, task)
            has_detour = rng.random() < 0.2
            try:
                browser = browsers.running()
                episode, score = _play(task, name, addresses, browser, ocr, rng, has_detour)
            except (SolutionStuck, BrowserGone, PlaywrightError) as error:
                dropped.append(f"{name}: {str(error).splitlines()[0]}")
                continue
            if score < 1.0:
                dropped.append(f"{name}: scored {score}{' after a detour' if has_detour else ''}")
            else:
                episodes.append(episode)
    return episodes, dropped


def _play(
    task: Task,
    name: str,
    addresses: Addresses,
    browser: Browser,
    ocr: Ocr | None,
    rng: random.Random,
    has_detour: bool,
) -> tuple[RecordedEpisode, float]:
    steps = [addresses.fill(line) for line in task.solution]
    recorder = Recorder(Solution(steps), rng, has_detour=has_detour)
    with browser.session(
        hosts=addresses.hosts(*task.start_urls), addresses=dict(addresses.origins), ocr=ocr
    ) as session:
        session.open(*(addresses.real(url) for url in task.start_urls))
        done = Agent(recorder).run(session, task.intent, max_steps=task.max_steps + 2)
        score = 1.0 if done.status == "stopped" else 0.0
        if has_detour and score:
            final = Final.of(session.page, done.answer, addresses)
            score = evaluate(task, final, page=session.page, addresses=addresses).value
    return RecordedEpisode(task.intent, tuple(recorder.turns), name, task.paraphrases), score


def episode_name(seed: int, suite: str, task: Task) -> str:
    """Return the name of an episode: world, suite, category and number of the template."""
    return f"{seed}/{suite}/{task.category}/{task.intent_template_id}"


class Browsers:
    """Context manager for one browser that is relaunched after a crash."""

    def __init__(self) -> None:
        self._browser: Browser | None = None

    def running(self) -> Browser:
        """Return the browser, after launching a new one if necessary."""
        if self._browser is None or not self._browser.is_alive:
            self._browser = Browser.launch()
        return self._browser

    def __enter__(self) -> "Browsers":
        return self

    def __exit__(self, *_: object) -> None:
        if self._browser is not None and self._browser.is_alive:
            self._browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Record solutions in training worlds.")
    parser.add_argument(
        "--tasks",
        nargs="+",
        choices=recordable_suites(),
        metavar="SUITE",
        default=["vwa75"],
        help="suites to record (default: vwa75); `train_nano.record_miniwob` records miniwob",
    )
    parser.add_argument("--first", type=int, default=FIRST_TRAINING_SEED)
    parser.add_argument("--worlds", type=int, default=40)
    parser.add_argument("--out", type=Path, default=RECORDINGS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    ocr = Ocr.find(default_cache())
    with Browsers() as browsers:
        seeds = range(options.first, options.first + options.worlds)
        for suite, seed in itertools.product(options.tasks, seeds):
            path = options.out / f"{suite}-{seed}.jsonl.xz"
            if path.exists():
                continue
            started = time.perf_counter()
            episodes, dropped = record(seed, suite, browsers, ocr)
            partial = path.with_suffix(".partial")
            save(episodes, partial)
            partial.replace(path)
            print(
                f"{suite} {seed}: {len(episodes)} episodes, {time.perf_counter() - started:.0f} s",
                flush=True,
            )
            for line in dropped:
                print(f"  dropped {line}", flush=True)


if __name__ == "__main__":
    main()
