"""Episodes to record: solutions of tasks, and the successful episodes of a run."""

from dataclasses import dataclass
from pathlib import Path

from agentkv.dialog.prompt import Thoughts
from agentkv.models.model import Model
from agentkv.models.scripted import Solution
from agentkv.recordings import RecordingError, require_training_seed
from agentkv_env.masking import MASK
from agentkv_tasks.addresses import Addresses
from agentkv_tasks.miniwob import script_for
from agentkv_tasks.miniwob.script import Script
from agentkv_tasks.own_sites.site_file import SiteFile
from agentkv_tasks.results import Row, read_rows, trace_of
from agentkv_tasks.run.replay import Recorded, shows_ids_first
from agentkv_tasks.suites import SUITES, Suite, is_official, load_suite
from agentkv_tasks.task import Task, parse_tasks


@dataclass(frozen=True, slots=True)
class Episode:
    """An episode to play and record."""

    key: str
    task: Task
    replies: Recorded | None = None
    """Replies of a run's episode; None: the task's solution."""
    thoughts: Thoughts = "named"

    def model(self, addresses: Addresses) -> Model:
        """Return the model that plays it."""
        if self.replies is not None:
            return self.replies
        if play := script_for(self.task):
            return Script(play)
        return Solution([addresses.fill(line) for line in self.task.solution])


@dataclass(frozen=True, slots=True)
class Source:
    """Episodes that are played on the same sites."""

    suite: str
    world_seed: int | None
    """Seed of the embedded world; None for sites of the user's own."""
    sites: SiteFile | None
    episodes: tuple[Episode, ...]


def solutions(name: str, *, first: int, worlds: int, limit: int | None) -> list[Source]:
    """Return the solutions of a suite, of a JSON file or of a file of sites.

    Args:
        first: seed of the first embedded world. Sites of one's own have no worlds.
        worlds: number of worlds, with seeds in a row.
        limit: number of tasks of each world, from the first; None: all.

    Raises:
        RecordingError: a ValueError; the suite or the world measures models, or no task has a
            solution.
        ValueError: as of `load_suite`.
    """
    _require_open(name)
    if not has_own_sites(name):
        require_training_seed(first, f"{name} would be recorded in")
    found = []
    for seed in range(first, first + worlds):
        suite = load_suite(name, world_seed=seed)
        world = None if suite.sites is not None else seed
        tasks = [task for task in suite.tasks if task.solution or script_for(task)][:limit]
        if not tasks:
            raise RecordingError(
                f"{name}: no task has a solution to record; write `solution` into the tasks, or "
                "record the successes of a run with --from"
            )
        key = f"{suite.name}/{'' if world is None else world}"
        episodes = tuple(Episode(f"solution {key}/{task.task_id}", task) for task in tasks)
        found.append(Source(suite.name, world, suite.sites, episodes))
        if world is None:
            break
    return found


def successes(run: Path, *, sites_file: str | None = None, limit: int | None) -> list[Source]:
    """Return the successful episodes of a run on embedded sites or on those of a file.

    Args:
        sites_file: the file of the user's own sites that the run was played on; None: embedded
            sites.
        limit: number of episodes, from the first; None: all.

    Raises:
        RecordingError: a ValueError; there are none, they are of a suite or a world that measures
            models, or they were played on other sites than those of `sites_file`.
        ResultsError: a ValueError; the folder holds no rows.
        ValueError: as of `load_suite`.
    """
    own = None if sites_file is None else load_suite(sites_file, world_seed=0)
    rows = [row for row in read_rows(run / "results.jsonl") if row.success]
    by_world: dict[tuple[str, int | None], list[Episode]] = {}
    num_without = 0
    for row in rows[:limit]:
        _require_open(row.suite)
        found = _of_run(row, run, own)
        if own is None:
            require_training_seed(row.world_seed, f"{run} was played in")
        num_without += found is None
        if found is not None:
            world = row.suite, row.world_seed if own is None else None
            by_world.setdefault(world, []).append(found)
    if not by_world:
        missing = f"; {num_without} have no trace, or one with masked secrets" * bool(num_without)
        raise RecordingError(
            f"{run}: no successful episode to record among {len(rows)} successes{missing}; give "
            "the folder (--out) of a run with some"
        )
    sites = None if own is None else own.sites
    return [Source(*world, sites, tuple(found)) for world, found in by_world.items()]


def _of_run(row: Row, run: Path, own: Suite | None) -> Episode | None:
    """Return a run's episode; None if its trace is missing or does not hold what was typed."""
    trace = trace_of(row, run)
    if trace is None or not trace.steps:
        return None
    has_own_sites = bool(trace.head.get("has_own_sites"))
    if has_own_sites != (own is not None):
        raise RecordingError(
            f"{run} was played on sites of a file; give it as well: --tasks SITES.toml"
            if has_own_sites
            else f"{run} was played on embedded sites, so --tasks has no place here"
        )
    if any(MASK in step.reply for step in trace.steps):
        return None
    (task,) = parse_tasks([trace.head["task"]], source=str(run / row.trace))
    if own is not None and task not in own.tasks:
        raise RecordingError(
            f"{run}: task {task.task_id} is another one in the file of sites now, so its episodes "
            "cannot be played again; record those of a new run"
        )
    is_chat = any(shows_ids_first(step.observation) for step in trace.steps)
    return Episode(row.key, task, Recorded(trace.steps), "free" if is_chat else "named")


def _require_open(name: str) -> None:
    """Refuse suites that measure models. Raises RecordingError."""
    if (name in SUITES and SUITES[name].is_held_out) or is_official(name):
        known = ", ".join(each for each, suite in SUITES.items() if not suite.is_held_out)
        raise RecordingError(
            f"{name} measures what models were not trained on; suites to record: {known}"
        )


def has_own_sites(name: str) -> bool:
    """Return whether tasks are those of a file of the user's own sites."""
    return Path(name).suffix == ".toml" and name not in SUITES
