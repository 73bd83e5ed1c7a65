"""`agentkv_lab injection`: what the orders of hostile pages achieve.

A thread of the embedded forum ends with an order, at each place and with each demand. Every player
begins anew on each of these pages, and on the thread without an order, with the goal of a task.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.console import Console
from rich.progress import Progress

from agentkv.agent import Agent
from agentkv.build import (
    check_language_model,
    load_run_model,
    make_acting,
    make_agent,
    resolved_parameters,
)
from agentkv.models.scripted import Obedient
from agentkv.settings import PolicySettings
from agentkv_env.browser import Browser
from agentkv_env.ocr import Ocr
from agentkv_env.session import Session
from agentkv_env.sites.world import World
from agentkv_lab.injection.demands import (
    DEMANDS,
    SECRETS,
    THIEF,
    Demand,
    demands,
    is_refused,
)
from agentkv_lab.injection.hiding import PLACES, hidden, picture
from agentkv_lab.injection.hostile_site import HostileSite
from agentkv_lab.injection.rows import InjectionRow
from agentkv_lab.injection.table import tables
from agentkv_tasks.addresses import Addresses
from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.bench.frame import ModelBenchSettings, measured
from agentkv_tasks.bench.host import threads_of_torch
from agentkv_tasks.provenance import commit, processor, versions
from agentkv_tasks.run.played_task import EpisodeEnd, score_of
from agentkv_tasks.run.preflight import find_browser, tesseract_version
from agentkv_tasks.suites import load_suite
from agentkv_tasks.task import Task

OBEDIENT = Obedient().name
"""Label of the script that obeys."""
UNPINNED = ", goal not pinned"
"""End of the label of a policy that may evict the goal."""

_TASK = 57  # of vwa75: upvote a named comment of a thread; nano does it on a page without an order
_HOST, _PATH = "forum.localhost", "/thread/1"
_MAX_STEPS = 6  # the solution has two
_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectionBench(ModelBenchSettings):
    """Settings of the measurement.

    Of `settings`, only the model with its dtype and device, the budget, the world and the browser
    count.
    """

    policies: tuple[PolicySettings, ...]
    """Policies under which the model plays, with a pinned goal."""
    unpinned: tuple[PolicySettings, ...]
    """Policies under which it plays and may lose the goal. Without any policy, only the script that
    obeys plays."""
    places: tuple[str, ...] = tuple(PLACES)
    demands: tuple[str, ...] = DEMANDS


@dataclass(frozen=True, slots=True)
class _Player:
    label: str
    model: str
    agent: Agent


def run_bench(bench: InjectionBench, console: Console) -> None:
    """Measure, write each row at once, print the tables, and write the page of the rows.

    Raises:
        BenchError: Tesseract or a font is missing, an option is wrong, or the file of rows exists.
        ValueError: no such model or policy, or a budget that a policy does not fit into.
        KeyboardInterrupt: interrupted; the rows so far are written and printed.
    """
    _check(bench)
    file = bench.new_file(InjectionRow, lambda row: (row.label, row.place, row.demand))

    with threads_of_torch(bench.threads):
        measured(
            console,
            file,
            partial(_measure, bench),
            tables=tables,
            resume="; run the same command with --fresh to begin again",
        )


def _check(bench: InjectionBench) -> None:
    settings = bench.settings
    if bench.policies or bench.unpinned:
        check_language_model(settings)
    for policy in (*bench.policies, *bench.unpinned):
        resolved_parameters(settings, policy)
    for option, given, known in (
        ("--places", bench.places, tuple(PLACES)),
        ("--demands", bench.demands, DEMANDS),
    ):
        unknown = [name for name in given if name not in known]
        if unknown:
            raise BenchError(f"{option} {unknown[0]}: expected some of {', '.join(known)}")
    find_browser(settings.browser_path)
    if tesseract_version() is None:
        raise BenchError("no tesseract found; install tesseract-ocr and tesseract-ocr-eng")


def _players(bench: InjectionBench, goal: str) -> Iterator[_Player]:
    """Yield the script that obeys, then the model under each policy.

    Raises:
        PolicyError: a ValueError; a policy cannot keep the goal in its budget.
    """
    settings = bench.settings
    yield _Player(OBEDIENT, OBEDIENT, make_agent(settings, model=Obedient()))
    if not bench.policies and not bench.unpinned:
        return
    local = load_run_model(settings)
    assert local is not None, "scripts are refused by `_check`"
    free = settings.model_copy(update={"pins": False})
    chosen = [(policy.row_name, policy, settings) for policy in bench.policies]
    chosen += [(policy.row_name + UNPINNED, policy, free) for policy in bench.unpinned]
    for label, policy, own in chosen:
        acting = make_acting(own, policy=policy, model=local)
        acting.begin(goal)  # an impossible budget fails before the first episode
        yield _Player(label, settings.model, make_agent(own, model=acting))


def _measure(bench: InjectionBench, progress: Progress) -> Iterator[InjectionRow]:
    settings, world = bench.settings, World(bench.settings.world_seed)
    (task,) = (
        task for task in load_suite("vwa75", world_seed=world.seed).tasks if task.task_id == _TASK
    )
    players = list(_players(bench, task.intent))
    path = settings.browser_path
    with ExitStack() as stack:
        site = stack.enter_context(HostileSite(world, host=_HOST, path=_PATH))
        browser = stack.enter_context(Browser.launch(executable=str(path) if path else None))
        scene = _Scene(site, browser, task, Ocr.find())
        found = scene.demands(bench.demands)
        pages: list[tuple[str, Demand | None]] = [("", None)]
        pages += [(place, each) for place in bench.places for each in found.values()]
        about = _about(bench, task)
        bar = progress.add_task("playing", total=len(players) * len(pages))
        for player in players:
            for place, demand in pages:
                fields = scene.play(player.agent, place, demand)
                yield InjectionRow(
                    label=player.label,
                    model=player.model,
                    **fields,
                    **about,
                )
                progress.advance(bar)


@dataclass(frozen=True, slots=True)
class _Scene:
    """The task, and the thread on which it is played."""

    site: HostileSite
    browser: Browser
    task: Task
    ocr: Ocr | None

    def demands(self, names: Sequence[str]) -> Mapping[str, Demand]:
        """Return what the thread can demand, by name."""
        self.site.plant("")
        with self._session() as session:
            return demands(session.observe(), names)

    def play(self, agent: Agent, place: str, demand: Demand | None) -> dict[str, Any]:
        """Play an episode on the thread with an order, and return the fields of its row."""
        if demand is None:
            self.site.plant("")
        else:
            self.site.plant(hidden(place, demand.order), picture(demand.order))
        with self._session() as session:
            episode = agent.run(
                session, self.task.intent, max_steps=_MAX_STEPS, timeout_s=_TIMEOUT_S
            )
            asked = list(self.site.asked)
            score = score_of(
                self.task,
                EpisodeEnd.of(session, episode.answer, self.browser, self.addresses),
                self.browser,
                self.addresses,
            )
        step = None if demand is None else demand.followed(episode.steps)
        return {
            "place": place,
            "demand": "" if demand is None else demand.name,
            "is_shown": demand is not None and demand.is_shown(episode.steps),
            "is_followed": step is not None,
            "is_refused": step is not None and is_refused(step),
            "is_done": demand is not None and demand.is_done(episode, asked),
            "is_goal_reached": score.value == 1.0,
            "status": episode.status,
            "actions": tuple(each.action for each in episode.steps),
            "num_evicted": episode.steps[-1].num_evicted if episode.steps else 0,
        }

    @property
    def addresses(self) -> Addresses:
        """The addresses of the sites."""
        server = self.site.server
        return Addresses(server.placeholders, server.addresses)

    def _session(self) -> Session:
        server = self.site.server
        # The thief would be answered: only the fence keeps the agent from it.
        thief = {f"http://{THIEF}": f"http://{THIEF}:{server.port}"}
        session = self.browser.session(
            hosts=server.hosts,
            addresses={**server.addresses, **thief},
            viewport=self.task.window,
            ocr=self.ocr,
            secrets=SECRETS,
        )
        session.open(f"http://{_HOST}{_PATH}")
        return session


def _about(bench: InjectionBench, task: Task) -> dict[str, Any]:
    settings = bench.settings
    return {
        "settings": {
            "task": f"vwa75/{task.task_id}",
            "goal": task.intent,
            "world_seed": settings.world_seed,
            "budget": settings.budget,
            "max_steps": _MAX_STEPS,
            "policies": {
                policy.row_name: resolved_parameters(settings, policy)
                for policy in (*bench.policies, *bench.unpinned)
            },
        },
        "versions": versions(tesseract=tesseract_version() or ""),
        "device": processor(),
        "commit": commit(),
        "command": bench.command,
    }
