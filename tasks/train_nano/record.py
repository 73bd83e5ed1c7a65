"""Record the tasks' own solutions, played in the browser in training worlds.

    PYTHONPATH=tasks python -m nano.record --first 1000000 --worlds 40

One file a world; a world that has its file is not recorded again. Some episodes stray: a wrong
link, then the way back. Only the way back is learnt from, and what then does not score 1.0 is left
out. (Episodes that do not stray are the suite's own solutions, which its tests score.)
"""

import argparse
import random
import time
from collections.abc import Sequence
from pathlib import Path

from playwright.sync_api import Error as PlaywrightError

from agentkv.agent import Agent
from agentkv.dialog.reply import write_reply
from agentkv.models.model import Reply
from agentkv.models.scripted import Solution, SolutionStuck
from agentkv_env.actions import Action
from agentkv_env.browser import Browser
from agentkv_env.errors import BrowserGone
from agentkv_env.ocr import Ocr, default_cache
from agentkv_env.page import Node, Page
from agentkv_env.sites.names import FIRST_TRAINING_SEED
from agentkv_env.sites.server import Server
from agentkv_env.sites.world import World
from agentkv_tasks import vwa75
from agentkv_tasks.addresses import Addresses
from agentkv_tasks.evaluate import Final, evaluate
from agentkv_tasks.task import Task
from train_nano.episode import Episode, Turn, save

RECORDINGS = Path(__file__).parent / "recordings"
BACK = "go_back\n```go_back```"


class Recorder:
    """A `Solution` that keeps what it saw and said, and strays at times. One episode's worth."""

    name = "recorder"

    def __init__(
        self, steps: Sequence[str], goal: str, rng: random.Random, *, strays: bool
    ) -> None:
        self._conversation = Solution(steps).begin(goal)
        self._rng = rng
        self._strays_left = 1 if strays else 0
        self._is_lost = False
        self._left_typing = False
        self.turns: list[Turn] = []

    def begin(self, goal: str, *, seed: int = 0) -> "Recorder":
        return self

    def reply(self, page: Page, note: str = "", deadline: float | None = None) -> Reply:
        if self._is_lost:
            self._is_lost = False
            self.turns.append(Turn(page, BACK, note))
            return Reply(text=BACK)
        wrong = self._wrong_link(page)
        if wrong is not None:
            text = write_reply(Action(kind="click", element_id=wrong.id), page)
            self.turns.append(Turn(page, text, note, counts=False))
            self._is_lost = True
            return Reply(text=text)
        answer = self._conversation.reply(page, note, deadline)
        self._left_typing = "```type" in answer.text and "[0]" in answer.text
        self.turns.append(Turn(page, answer.text, note))
        return answer

    def _wrong_link(self, page: Page) -> Node | None:
        """A link to stray to, where coming back loses nothing."""
        if not self._strays_left or self._left_typing or self._rng.random() > 0.3:
            return None
        if page.pixels_above or any(node.value and node.role == "textbox" for node in page.nodes):
            return None
        links = [node for node in page.nodes if node.role == "link"]
        if not links:
            return None
        self._strays_left -= 1
        return self._rng.choice(links)


def record(seed: int, browsers: "Browsers", ocr: Ocr | None) -> tuple[list[Episode], list[str]]:
    """The episodes of the training world `seed`, and what became of those left out.

    Raises:
        ValueError: `seed` is of an evaluation world.
    """
    if seed < FIRST_TRAINING_SEED:
        raise ValueError(
            f"seed {seed} is an evaluation world's; training ones begin at {FIRST_TRAINING_SEED}"
        )
    world = World(seed)
    rng = random.Random(f"record/{seed}")
    episodes, left_out = [], []
    with Server(world) as server:
        addresses = Addresses(server.placeholders, server.addresses)
        for task in vwa75.tasks(world):
            server.reset()
            name = f"{seed}/{task.category}/{task.intent_template_id}"
            strays = rng.random() < 0.2
            try:
                episode, score = _play(task, name, addresses, browsers.running(), ocr, rng, strays)
            except (SolutionStuck, BrowserGone, PlaywrightError) as error:
                left_out.append(f"{name}: {str(error).splitlines()[0]}")
                continue
            if score < 1.0:
                left_out.append(f"{name}: scored {score}{' after straying' if strays else ''}")
            else:
                episodes.append(episode)
    return episodes, left_out


def _play(
    task: Task,
    name: str,
    addresses: Addresses,
    browser: Browser,
    ocr: Ocr | None,
    rng: random.Random,
    strays: bool,
) -> tuple[Episode, float]:
    steps = [addresses.fill(line) for line in task.solution]
    recorder = Recorder(steps, task.intent, rng, strays=strays)
    with browser.session(
        hosts=addresses.hosts(*task.start_urls), addresses=dict(addresses.origins), ocr=ocr
    ) as session:
        session.open(*(addresses.real(url) for url in task.start_urls))
        done = Agent(recorder).run(session, task.intent, max_steps=task.max_steps + 2)
        score = 1.0 if done.status == "stopped" else 0.0
        if strays and score:
            final = Final.of(session.page, done.answer, addresses)
            score = evaluate(task, final, page=session.page, addresses=addresses).value
    return Episode(task.intent, tuple(recorder.turns), name), score


class Browsers:
    """One browser at a time, launched anew when it was lost; a context manager."""

    def __init__(self) -> None:
        self._browser: Browser | None = None

    def running(self) -> Browser:
        """A browser that answers."""
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
    parser.add_argument("--first", type=int, default=FIRST_TRAINING_SEED)
    parser.add_argument("--worlds", type=int, default=40)
    parser.add_argument("--out", type=Path, default=RECORDINGS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    ocr = Ocr.find(default_cache())
    with Browsers() as browsers:
        for seed in range(options.first, options.first + options.worlds):
            path = options.out / f"world-{seed}.jsonl.xz"
            if path.exists():
                continue
            started = time.perf_counter()
            episodes, left_out = record(seed, browsers, ocr)
            partial = path.with_suffix(".partial")
            save(episodes, partial)
            partial.replace(path)
            print(
                f"{seed}: {len(episodes)} episodes, {time.perf_counter() - started:.0f} s",
                flush=True,
            )
            for line in left_out:
                print(f"  left out {line}", flush=True)


if __name__ == "__main__":
    main()
