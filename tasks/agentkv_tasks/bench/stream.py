"""Token streams for all policies of a measurement."""

import contextlib
import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from rich.progress import Progress

from agentkv.agent import Agent
from agentkv.config import RunSettings
from agentkv.dialog.prompt import Template
from agentkv.models.model import Reply
from agentkv.models.scripted import Solution
from agentkv_env.browser import Browser
from agentkv_env.page import Page
from agentkv_env.serialize import serialize
from agentkv_env.sites.server import Server
from agentkv_env.sites.world import World
from agentkv_tasks.addresses import Addresses
from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.run.preflight import find_browser
from agentkv_tasks.suites import load_suite


@dataclass(frozen=True, slots=True)
class Stream:
    """A reproducible stream of tokens."""

    source: str
    """Origin: `world 75`, or the name of a file."""
    ids: tuple[int, ...]
    of_replies: tuple[bool, ...]
    """True for the tokens of replies; a model only reads the others."""

    @property
    def digest(self) -> str:
        """SHA-256 of the ids in decimal, separated by commas."""
        return hashlib.sha256(",".join(map(str, self.ids)).encode()).hexdigest()


def check_source(settings: RunSettings, text: Path | None) -> None:
    """Check that a stream can be read from a text file, or else from the world of the settings.

    Raises:
        BenchError: the file is missing.
        BrowserMissing: the world needs a browser, and none was found.
    """
    if text is None:
        find_browser(settings.browser_path)
    elif not text.is_file():
        raise BenchError(f"--text {text} is not a file")


def read_world(
    settings: RunSettings, template: Template, num_tokens: int, progress: Progress
) -> Stream:
    """Return the first tokens of the world of the settings; raises as `of_world`."""
    bar = progress.add_task("reading the world", total=num_tokens)
    stream = of_world(
        settings.world_seed,
        template,
        num_tokens,
        browser_path=settings.browser_path,
        on_page=lambda done: progress.update(bar, completed=done),
    )
    progress.remove_task(bar)
    return stream


def read_stream(
    settings: RunSettings,
    text: Path | None,
    template: Template,
    num_tokens: int,
    progress: Progress,
) -> Stream:
    """Return the first tokens of a text file, or else of the world of the settings.

    Raises:
        BenchError, BrowserMissing, BrowserGone: as `of_file` and `of_world`.
    """
    if text is not None:
        return of_file(text, template, 1, num_tokens)
    return read_world(settings, template, num_tokens, progress)


MOST_CHARACTERS = 16
"""Characters of a text that are encoded for each token that is needed, at most."""


def of_file(
    path: Path, template: Template, num_samples: int, length: int, *, offset: int = 0
) -> Stream:
    """Return parts of a text file of `length` tokens each, one after another.

    The text after the first `offset` tokens is cut into sections of equally many characters, and
    each part is the beginning of one. So the parts are spread over the whole text, none overlap,
    and what lies between them is not encoded.

    Raises:
        BenchError: the file cannot be read, or is too short; the message says how many parts fit.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"--text {path} cannot be read: {error}") from error
    if offset:
        ends = template.encoded(text[: offset * MOST_CHARACTERS]).ends
        if len(ends) <= offset:
            raise BenchError(f"--offset {offset}: --text {path} has {len(ends)} tokens")
        text = text[ends[offset - 1] :]
    parts = _sections(text, template, num_samples, length)
    if min(map(len, parts)) < length:
        fit = sum(map(len, parts)) // length
        while fit and min(map(len, _sections(text, template, fit, length))) < length:
            fit -= 1
        if not fit:
            raise BenchError(
                f"--text {path} has {sum(map(len, parts))} tokens for this model, {length} are "
                "needed; give a longer file or lower --tokens"
            )
        raise BenchError(
            f"--text {path} is too short for {num_samples} parts of {length} tokens that do not "
            f"overlap; {fit} fit. Give --samples {fit}, a longer file, or lower --seen or --tokens"
        )
    ids = [id for part in parts for id in part]
    return Stream(path.name, tuple(ids), (False,) * len(ids))


def _sections(text: str, template: Template, count: int, length: int) -> list[list[int]]:
    """Return the first `length` tokens of each of `count` sections, fewer where it has no more."""
    ends = [number * len(text) // count for number in range(count + 1)]
    most = length * MOST_CHARACTERS
    return [
        template.encode(text[start : min(stop, start + most)])[:length]
        for start, stop in pairwise(ends)
    ]


def of_world(
    world_seed: int,
    template: Template,
    num_tokens: int,
    *,
    browser_path: Path | None = None,
    on_page: Callable[[int], None],
) -> Stream:
    """Return what an agent reads and writes while it plays the solutions of vwa75.

    All solutions form one stream, as a cache that lives across episodes would see it. The seed
    decides the world and the order of the tasks. Text in images is not read, so that equal seeds
    give equal streams with and without Tesseract.

    Args:
        on_page: called with the number of tokens so far.

    Raises:
        BenchError: the suite has fewer tokens.
        BrowserMissing, BrowserGone: the browser was not found, or has ended.
    """
    tasks = list(load_suite("vwa75", world_seed=world_seed).tasks)
    random.Random(world_seed).shuffle(tasks)
    recorder = _Recorder(template, on_page)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(Server(World(world_seed)))
        addresses = Addresses(server.placeholders, server.addresses)
        executable = str(browser_path) if browser_path else None
        browser = stack.enter_context(Browser.launch(executable=executable))
        for task in tasks:
            if len(recorder.ids) >= num_tokens:
                break
            server.reset()
            recorder.solution = Solution([addresses.fill(line) for line in task.solution])
            with browser.session(
                hosts=server.hosts, addresses=server.addresses, viewport=(1280, 1024), ocr=None
            ) as session:
                session.open(*(addresses.fill(url) for url in task.start_urls))
                Agent(recorder).run(session, task.intent, max_steps=len(task.solution))
    if len(recorder.ids) < num_tokens:
        raise BenchError(
            f"the solutions of world {world_seed} have {len(recorder.ids)} tokens, {num_tokens} "
            "are needed; lower --tokens or give a --text"
        )
    ids, of_replies = recorder.ids[:num_tokens], recorder.of_replies[:num_tokens]
    return Stream(f"world {world_seed}", tuple(ids), tuple(of_replies))


class _Recorder:
    """Plays a solution and records what a language model would have read and written."""

    name = "solution"

    def __init__(self, template: Template, on_page: Callable[[int], None]) -> None:
        self._template, self._on_page = template, on_page
        self.ids: list[int] = []
        self.of_replies: list[bool] = []
        self.solution = Solution(())
        self._conversation = self.solution.begin("")

    def begin(self, goal: str, *, seed: int = 0) -> "_Recorder":
        self._conversation = self.solution.begin(goal)
        self._write(self._template.opening(goal))
        return self

    def reply(self, page: Page, note: str = "", deadline: float | None = None) -> Reply:
        template = self._template
        seen = serialize(page, layout=template.layout).text
        self._write(template.turn(seen, note))
        reply = self._conversation.reply(page, note)
        self._write(template.encode(reply.text), is_reply=True)
        self._write(template.separator)
        self._on_page(len(self.ids))
        return reply

    def _write(self, ids: Sequence[int], *, is_reply: bool = False) -> None:
        self.ids += ids
        self.of_replies += [is_reply] * len(ids)
