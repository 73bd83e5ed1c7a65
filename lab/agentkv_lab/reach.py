"""Reach of a task: the observation tokens between a text on a page and its use.

    python -m agentkv_lab.reach --tasks vwa-long

plays every solution of a suite in a browser and writes the measurements to the suite's
`measured.json`.
"""

import argparse
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from tokenizers import Tokenizer

from agentkv.agent import Agent
from agentkv.dialog.prompt import PlainTemplate
from agentkv.models.find import NANO
from agentkv.models.model import Reply
from agentkv.models.scripted import Solution, SolutionConversation
from agentkv_env.browser import Browser
from agentkv_env.ocr import Ocr, default_cache
from agentkv_env.page import Page
from agentkv_env.serialize import neutralize, serialize
from agentkv_env.sites.server import Server
from agentkv_env.sites.world import DEFAULT_SEED, World
from agentkv_tasks.addresses import Addresses
from agentkv_tasks.evaluate import Final, evaluate
from agentkv_tasks.measured import Measurements, path_of
from agentkv_tasks.suites import load_suite
from agentkv_tasks.task import Task

MEASURED = ("vwa75", "vwa-long")
"""Suites with measurements."""
OBSERVATION_TOKENS = 3840
"""Tokens per page; the agent's default."""


@dataclass(frozen=True, slots=True)
class Use:
    """A text of `Task.needs`, its source and its use."""

    text: str
    source: int | None
    """Step whose page showed it last before its use; None if no page did."""
    step: int
    """Step whose reply uses it; the page of that step comes before the use."""
    distance: int
    """Tokens of the pages between the last page or reply that held it and its use."""


class RecordedSolution:
    """A `Solution` that records the pages and replies of one episode."""

    name = "played"

    def __init__(self, steps: Sequence[str]) -> None:
        self._conversation: SolutionConversation = Solution(steps).begin("")
        self.pages: list[Page] = []
        self.replies: list[str] = []

    def begin(self, goal: str, *, seed: int = 0) -> "RecordedSolution":
        return self

    def reply(self, page: Page, note: str = "", deadline: float | None = None) -> Reply:
        answer = self._conversation.reply(page, note, deadline)
        self.pages.append(page)
        self.replies.append(answer.text)
        return answer


# ---- distances in texts ---------------------------------------------------------------------


def uses(
    needs: Sequence[str],
    pages: Sequence[str],
    replies: Sequence[str],
    *,
    count: Callable[[str], int] = len,
) -> Iterator[Use]:
    """Yield the source and the distance of each of `needs`, in order of use.

    Args:
        pages: observations of an episode.
        replies: reply to each observation.
        count: function that counts the tokens of a text.

    Raises:
        ValueError: no reply after the previous use contains a text.
    """
    sizes = [count(page) for page in pages]
    earlier: dict[str, int] = {}
    first = 0
    for text in needs:
        begin = max(first, earlier.get(text, -1) + 1)
        step = next((s for s in range(begin, len(replies)) if _contains(replies[s], text)), None)
        if step is None:
            raise ValueError(f"needs {text!r}, which no reply from step {begin + 1} on contains")
        source = _last_index(pages[: step + 1], text)
        written = _last_index(replies[:step], text)
        known = [place for place in (source, written) if place is not None]
        yield Use(text, source, step, sum(sizes[max(known, default=-1) + 1 : step + 1]))
        first = earlier[text] = step


def _last_index(texts: Sequence[str], wanted: str) -> int | None:
    return next((i for i in reversed(range(len(texts))) if _contains(texts[i], wanted)), None)


def _contains(text: str, wanted: str) -> bool:
    """Return True if `text` contains `wanted` as whole words, in any case."""
    words = re.escape(neutralize(wanted))
    return re.search(rf"(?<!\w){words}(?!\w)", text, re.IGNORECASE) is not None


# ---- solutions in a browser -----------------------------------------------------------------


def play(
    task: Task, browser: Browser, server: Server, ocr: Ocr | None
) -> tuple[RecordedSolution, float]:
    """Play the solution of a task; return the recording and the score."""
    server.reset()
    addresses = Addresses(server.placeholders, server.addresses)
    recording = RecordedSolution([addresses.fill(line) for line in task.solution])
    with browser.session(hosts=server.hosts, addresses=server.addresses, ocr=ocr) as session:
        session.open(*(addresses.fill(url) for url in task.start_urls))
        done = Agent(recording).run(session, task.intent, max_steps=task.max_steps)
        final = Final.of(session.page, done.answer, addresses)
        score = evaluate(task, final, page=session.page, addresses=addresses)
    return recording, score.value


def measure(task: Task, recording: RecordedSolution, count: Callable[[str], int]) -> Measurements:
    """Measure a task from the recording of its solution.

    Raises:
        ValueError: no page before its use shows a needed text.
    """
    seen = [serialize(page, budget=OBSERVATION_TOKENS, count=count) for page in recording.pages]
    texts = [one.text for one in seen]
    sizes = [count(text) for text in texts]
    found = list(uses(task.needs, texts, recording.replies, count=count))
    if unseen := [use.text for use in found if use.source is None]:
        raise ValueError(f"task {task.task_id} needs {unseen[0]!r}, which no page shows")
    sources = {recording.pages[use.source].url for use in found if use.source is not None}
    return Measurements(
        tokens=sum(sizes),
        total=sum(sizes) + sum(map(count, (task.intent, *recording.replies))),
        steps=len(sizes),
        page=round(median(sizes)),
        cut=sum(one.num_cut for one in seen),
        sources=len(sources),
        distances=tuple(use.distance for use in found),
        pages=tuple(use.step - use.source for use in found if use.source is not None),
    )


def nano_token_counter() -> Callable[[str], int]:
    """Return a function that counts tokens with nano's tokenizer."""
    return PlainTemplate(Tokenizer.from_file(str(NANO / "tokenizer.json"))).count


def main() -> None:
    """Measure all tasks of a suite and write the file."""
    parser = argparse.ArgumentParser(description="Measure how far back the tasks of a suite reach.")
    parser.add_argument("--tasks", choices=MEASURED, default=MEASURED[0])
    parser.add_argument("--world-seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--out", type=Path, help="by default measured.json beside the suite")
    options = parser.parse_args()
    suite = load_suite(options.tasks, world_seed=options.world_seed)
    count, ocr = nano_token_counter(), Ocr.find(default_cache())
    rows = {}
    with Server(World(options.world_seed)) as server, Browser.launch() as browser:
        for task in suite.tasks:
            recording, score = play(task, browser, server, ocr)
            row = measure(task, recording, count)
            rows[task.task_id] = asdict(row)
            print(task.task_id, task.category, f"score {score:g}", row, flush=True)
    lines = (f' "{number}": {json.dumps(row)}' for number, row in rows.items())
    (options.out or path_of(suite.name)).write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
