"""Replay a recorded episode without its model: the same replies in a fresh world."""

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path

from agentkv.agent import Agent
from agentkv.models.model import Reply
from agentkv.trace import Episode, Step, Trace, read_trace
from agentkv_env.browser import Browser
from agentkv_env.hosts import is_web_address
from agentkv_env.masking import MASK
from agentkv_env.ocr import Ocr, default_cache
from agentkv_env.page import Page
from agentkv_env.serialize import Layout, serialize
from agentkv_env.sites.server import Server
from agentkv_env.sites.world import World
from agentkv_tasks.addresses import Addresses
from agentkv_tasks.evaluate import CannotScore, Final, Score, evaluate
from agentkv_tasks.goal import goal_of
from agentkv_tasks.settings import RunSettings
from agentkv_tasks.sites import sites_for
from agentkv_tasks.task import parse_tasks


class ReplayError(ValueError):
    """A missing trace, or one that cannot be replayed."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A model that repeats the replies of a trace."""

    steps: tuple[Step, ...]
    name: str = "replay"

    def begin(self, goal: str, *, seed: int = 0) -> "RecordedConversation":
        return RecordedConversation(self.steps)


class RecordedConversation:
    """The replies of one trace, in order."""

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self._replies = iter(steps)

    def reply(self, page: Page, note: str = "", deadline: float | None = None) -> Reply:
        return recorded_reply(next(self._replies), page)


def recorded_reply(step: Step, page: Page) -> Reply:
    """Return the reply of a recorded step, with the present page in the format of that step."""
    return Reply(text=step.reply, observation=_as_shown(page, step.observation))


def _as_shown(page: Page, recorded: str) -> str:
    """Serialize a page in the format of a recorded observation; empty if it cannot be compared.

    Observations that refer to earlier pages cannot, nor can those of versions that wrote the box of
    every text; scripts have none.
    """
    if not recorded or _REFERS_BACK.search(recorded) or _BOXED_TEXT.search(recorded):
        return ""
    layout: Layout = "before" if shows_ids_first(recorded) else "after"
    return serialize(page, layout=layout).text


def shows_ids_first(observation: str) -> bool:
    """Return whether a page was shown as chat models read it, ids before names."""
    return _BEFORE.search(observation) is not None


_REFERS_BACK = re.compile(r"^(?:same|gone):", re.MULTILINE)
_BEFORE = re.compile(r"(?:^| )\[\d+\] ", re.MULTILINE)  # elsewhere, a number ends its line
_BOXED_TEXT = re.compile(r"^text .*['\"] @-?\d+,-?\d+,\d+,\d+$", re.MULTILINE)


def page_difference(recorded: str, present: str) -> list[str]:
    """Return the first lines of a unified diff of two observations; none if they do not differ.

    Secrets that the recorded one masks may be any text in the present one, and what the recorded
    one had cut off may be any lines.
    """
    if not recorded or not present:
        return []
    before, now = recorded.split("\n"), present.split("\n")
    if _CUT.match(before[-1]):
        before = [line for line in before[:-1] if line != _MORE_BELOW]
        if before and before[-1].endswith(" ...") and before[-1] not in now:
            del before[-1]  # the part of a text that still fitted
        now = now[: len(before)]
    now = [
        then if MASK in then and _allows(then, line) else line
        for line, then in zip_longest(now, before[: len(now)], fillvalue="")
    ]
    lines = difflib.unified_diff(before, now, "recorded", "present", n=1, lineterm="")
    return list(islice(lines, 2, 2 + _MOST_LINES))


_CUT = re.compile(r"cut: \d+ more lines$")
_MORE_BELOW = "more below"
_MOST_LINES = 12
"""Lines of a difference that are shown (our choice)."""


def _allows(masked: str, line: str) -> bool:
    """Return whether a line may be what was masked."""
    return re.fullmatch(".*".join(map(re.escape, masked.split(MASK))), line) is not None


def has_masks(trace: Trace) -> bool:
    """Return True if a reply or the task contains a masked secret."""
    return any(MASK in step.reply for step in trace.steps) or MASK in str(trace.head.get("task"))


def find_trace(place: Path, key: str | None) -> Path:
    """Return the trace file `place`, or the only trace in folder `place` that begins with `key`.

    Raises:
        ReplayError: no trace matches, or several do.
    """
    if place.is_file():
        return place
    folder = place / "traces"
    found = sorted(folder.glob("*.jsonl"))
    matching = [path for path in found if key is None or path.stem.startswith(key)]
    if len(matching) == 1:
        return matching[0]
    if not found:
        raise ReplayError(f"{place}: neither a trace nor a folder with traces of a run")
    names = ", ".join(path.stem for path in (matching or found)[:6])
    many = "several traces match" if matching else "no trace matches"
    raise ReplayError(f"{folder}: {many} '{key or ''}'; give one of: {names}, ...")


def replay(
    path: Path, *, on_step: Callable[[Step, Step], None]
) -> tuple[Trace, Episode, Score | None]:
    """Replay the trace at `path` in the embedded world and score the result.

    Traces hold no secrets. The replay types `***` in place of a password, so pages behind a sign-in
    and scores that need the secret may differ (`has_masks`).

    Args:
        path: a trace that `agentkv run` wrote.
        on_step: called with each recorded step and the same step of the replay.

    Raises:
        ReplayError: the trace holds no task, or a task that cannot start or be scored here.
        TaskError: the task in the trace is invalid.
        TraceError: the file is not a trace.
    """
    trace = read_trace(path)
    if "task" not in trace.head or not trace.steps:
        raise ReplayError(f"{path}: not a trace of a task with at least one step")
    if trace.head.get("has_own_sites"):
        raise ReplayError(f"{path}: played on sites of a file; a replay plays embedded sites only")
    (task,) = parse_tasks([trace.head["task"]], source=str(path))
    world_seed = trace.head.get("world_seed", 0)
    if not isinstance(world_seed, int) or world_seed < 0:
        raise ReplayError(f"{path}: world_seed is {world_seed!r:.40}; expected an integer from 0")
    recorded = dict(enumerate(trace.steps))
    limits = RunSettings()
    with (
        Server(World(world_seed, sites_for([task]))) as server,
        Browser.launch() as browser,
    ):
        addresses = Addresses(server.placeholders, server.addresses)
        if missing := addresses.missing(task.start_url):
            raise ReplayError(
                f"{path}: the task starts on {', '.join(missing)}, and a replay plays on embedded "
                "sites only"
            )
        for url in map(addresses.fill, task.start_urls):
            if not is_web_address(url):
                raise ReplayError(f"{path}: start_url: {url!r:.80} is not a web address")
        with browser.session(
            hosts=addresses.hosts(*task.start_urls),
            addresses=server.addresses,
            viewport=task.window,
            ocr=Ocr.find(default_cache()),
        ) as session:
            session.open(*(addresses.fill(url) for url in task.start_urls))
            if task.intent_element:
                session.dismiss_dialogs()
            episode = Agent(Recorded(trace.steps), max_repeats=limits.max_repeats).run(
                session,
                goal_of(task, session.page),
                max_steps=len(trace.steps),
                on_step=lambda step: on_step(recorded[step.index], step),
            )
            if episode.status == "env_error":
                return trace, episode, None
            session.dismiss_dialogs()
            final = Final.of(session.page, episode.answer, addresses)
            try:
                score = evaluate(task, final, page=session.page, addresses=addresses)
            except CannotScore as error:
                raise ReplayError(f"{path}: cannot be scored here: {error}") from error
            return trace, episode, score
