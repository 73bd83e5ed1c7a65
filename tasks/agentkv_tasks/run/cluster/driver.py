"""Spread the episodes of a plan over the nodes of a Ray cluster and write their rows.

The driver owns the results file, the traces and the display, as the scheduler does in a local run.
Every node plays episodes with a scheduler of its own, which limits, kills, replaces and plays again
what happens there. A node that is lost costs its current episodes: each counts as an attempt that
failed, and is played again on another node within the limit of `--retries`.
"""

import contextlib
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from agentkv.files import WriteError, make_folder, write_atomic
from agentkv.settings import SCRIPTED
from agentkv_tasks.provenance import commit, versions
from agentkv_tasks.results import DECISIVE, Attempt, Row
from agentkv_tasks.run.attempts import remove_attempts, remove_traces
from agentkv_tasks.run.checkpoints import remove_checkpoint
from agentkv_tasks.run.cluster.connect import ClusterError, connection
from agentkv_tasks.run.cluster.events import (
    Event,
    Facts,
    NodeFailed,
    NodeFinished,
    NodeStepped,
    Retried,
    Started,
)
from agentkv_tasks.run.cluster.node_runner import NodeRunner
from agentkv_tasks.run.episode_runner import blank_row
from agentkv_tasks.run.model_process import CannotStart
from agentkv_tasks.run.plan import Job, Plan
from agentkv_tasks.run.scheduler import Display, Rows, RunError
from agentkv_tasks.run.worker import Stepped

START_S = 180.0
"""Seconds that an actor may take to start on its node."""
_END_S = 60.0
"""Seconds that the processes of a node may take to end."""
_MAX_REPLACEMENTS = 2
"""Runners that may replace the first one at a place, one after another."""
_THREADS = 3
"""Calls that a runner serves at a time: jobs come while it waits for events."""


@dataclass(frozen=True, slots=True)
class _NodePlace:
    """A node, or one GPU of a node."""

    node_id: str
    label: str
    """Name of the place in messages and in the folder of logs."""
    has_gpu: bool
    num_runners: int
    """Places on the node."""


@dataclass
class _Current:
    """An episode that a node has begun."""

    started: float = field(default_factory=time.monotonic)
    last: Stepped | None = None


@dataclass(eq=False)
class _Runner:
    """The runner at a place, and what it was given."""

    place: _NodePlace
    actor: Any
    pending: Any
    """Reference to the answer of the call in progress: the facts first, then events."""
    asked: float = field(default_factory=time.monotonic)
    is_ready: bool = False
    jobs: dict[str, Job] = field(default_factory=dict)
    """Jobs that it has not finished, by key."""
    current: dict[str, _Current] = field(default_factory=dict)
    """Those that it has begun, by key."""
    replacements: int = 0


class Cluster:
    """The nodes of a Ray cluster, checked and ready for a plan."""

    def __init__(self, plan: Plan) -> None:
        import ray

        self._ray = ray
        self._plan = replace(plan, jobs=())
        self.notices: list[str] = []
        """Differences between the nodes that the user should know."""
        self.played: Counter[str] = Counter()
        """Episodes that each node has finished, by its label."""
        self._runners: list[_Runner] = []
        self._lost = ""
        """Why the last runner was lost."""
        self._waiting: deque[Job] = deque()
        self._attempts: dict[str, tuple[Attempt, ...]] = {}
        """Failed attempts at the episodes that lost their node or are played again, by key."""

    @property
    def labels(self) -> list[str]:
        """Names of the nodes, or of the GPUs of nodes that have several."""
        return [runner.place.label for runner in self._runners]

    def start(self) -> None:
        """Start a runner at every place, and check that all can play the plan.

        Raises:
            ClusterError: a node cannot play it, or differs; the message names the node.
        """
        self._runners = [self._started(place) for place in self._places()]
        if not self._runners:
            raise ClusterError("the Ray cluster has no node that is alive")
        commits = {commit()}
        for runner in self._runners:
            try:
                facts: Facts = self._ray.get(runner.pending, timeout=START_S)
            except self._ray.exceptions.GetTimeoutError:
                raise ClusterError(_not_started(runner.place)) from None
            except self._ray.exceptions.RayError as error:
                raise ClusterError(
                    f"{runner.place.label}: agentkv cannot be started there, with the Python that "
                    f"runs Ray: {_cause(error)}"
                ) from None
            self._check(runner.place, facts)
            commits.add(facts.commit)
        if len(commits) > 1:
            found = ", ".join(sorted(each or "unknown" for each in commits))
            self.notices.append(f"the nodes run several commits of agentkv: {found}")
        for runner in self._runners:
            self._begin(runner)

    def run_jobs(self, plan: Plan, results: Rows, display: Display, *, jobs: Sequence[Job]) -> None:
        """Run `jobs`, a part of the plan, and append a row for each.

        Raises:
            CannotStart: the model, a policy, the browser or a port is unavailable on a node.
            RunError: workers or a model's process die repeatedly on a node, or no node is left.
            WriteError: a row, a trace or a screenshot could not be written; all rows before are
                complete, and the episode has none.
        """
        self._plan, self._results, self._display = plan, results, display
        self._waiting = deque(jobs)
        while self._waiting or any(runner.jobs for runner in self._runners):
            if not self._runners:
                raise RunError(f"no node is left to play episodes: {self._lost}")
            self._supply()
            pending = {runner.pending: runner for runner in self._runners}
            done, _ = self._ray.wait(list(pending), num_returns=1, timeout=0.5)
            for reference in done:
                self._receive(pending[reference])
            for runner in list(self._runners):
                if not runner.is_ready and time.monotonic() - runner.asked > START_S:
                    self._replace(runner, _not_started(runner.place))
            display.tick()

    def end(self, *, at_once: bool) -> None:
        """End the runners with all their processes, and keep their logs."""
        ends = [
            (runner, runner.actor.end.remote(at_once=at_once))
            for runner in self._runners
            if runner.is_ready
        ]
        for runner, reference in ends:
            with contextlib.suppress(self._ray.exceptions.RayError, WriteError):
                self._keep_logs(runner.place, self._ray.get(reference, timeout=_END_S))
        for runner in self._runners:
            self._ray.kill(runner.actor)
        self._runners.clear()

    def _places(self) -> list[_NodePlace]:
        settings = self._plan.settings
        wants_gpu = settings.model not in SCRIPTED and settings.device in ("auto", "cuda")
        nodes = sorted(
            (node for node in self._ray.nodes() if node["Alive"]), key=lambda node: node["NodeID"]
        )
        hosts = [node["NodeManagerHostname"] for node in nodes]
        found = []
        for node, host in zip(nodes, hosts, strict=True):
            name = host if hosts.count(host) == 1 else f"{host}-{node['NodeID'][:8]}"
            gpus = int(node["Resources"].get("GPU", 0)) if wants_gpu else 0
            for number in range(max(1, gpus)):
                label = f"{name}-gpu-{number}" if gpus > 1 else name
                found.append(_NodePlace(node["NodeID"], label, gpus > 0, max(1, gpus)))
        return found

    def _started(self, place: _NodePlace, replacements: int = 0) -> _Runner:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        actor_class = self._ray.remote(NodeRunner).options(
            num_cpus=0,
            num_gpus=int(place.has_gpu),
            max_concurrency=_THREADS,
            scheduling_strategy=NodeAffinitySchedulingStrategy(place.node_id, soft=False),
        )
        actor = actor_class.remote(place.label, place.num_runners)
        # a call's arguments stay out of the records that Ray keeps of actors
        return _Runner(place, actor, actor.check.remote(self._plan), replacements=replacements)

    def _check(self, place: _NodePlace, facts: Facts) -> None:
        here = versions()
        different = [
            f"{name} is {facts.versions.get(name, 'missing')} there and "
            f"{here.get(name, 'missing')} here"
            for name in DECISIVE
            if facts.versions.get(name) != here.get(name)
        ]
        if different:
            raise ClusterError(
                f"{place.label}: {'; '.join(different)}; install the same versions on all nodes"
            )
        if facts.problem:
            raise ClusterError(f"{place.label}: {facts.problem}")

    def _begin(self, runner: _Runner) -> None:
        runner.actor.begin.remote(self._plan)
        runner.is_ready = True
        runner.pending = runner.actor.events.remote()

    def _supply(self) -> None:
        """Give every runner as many jobs as it has workers, and then one more to each."""
        workers = self._plan.settings.workers
        ready = [runner for runner in self._runners if runner.is_ready]
        given: dict[_Runner, list[tuple[Job, tuple[Attempt, ...]]]] = {}
        while self._waiting and ready:
            runner = min(ready, key=lambda each: len(each.jobs))
            if len(runner.jobs) > workers:
                break
            job = self._waiting.popleft()
            runner.jobs[job.key] = job
            given.setdefault(runner, []).append((job, self._attempts.get(job.key, ())))
        for runner, jobs in given.items():
            runner.actor.add.remote(jobs)

    def _receive(self, runner: _Runner) -> None:
        """Handle the answer to a call, or the loss of the runner."""
        try:
            answer = self._ray.get(runner.pending)
        except self._ray.exceptions.RayError as error:
            self._replace(runner, f"the node {runner.place.label} was lost: {_cause(error)}")
            return
        if isinstance(answer, Facts):
            self._check(runner.place, answer)
            self._begin(runner)
            return
        runner.pending = runner.actor.events.remote()
        for event in answer:
            self._handle(runner, event)

    def _handle(self, runner: _Runner, event: Event) -> None:
        match event:
            case Started():
                job = runner.jobs[event.key]
                if event.key not in self._attempts:  # a killed run may have left some
                    remove_attempts(self._plan.settings.out, job.stem)
                remove_checkpoint(self._plan.settings.out, job.stem)  # of a run on this machine
                runner.current[event.key] = _Current()
                self._display.started(job)
            case NodeStepped():
                if event.key in runner.current:
                    runner.current[event.key].last = event.step
                    self._display.stepped(runner.jobs[event.key], event.step)
            case Retried():
                runner.current.pop(event.key, None)
                # its trace comes with the row, unless the node is lost before
                self._attempts[event.key] = (
                    *self._attempts.get(event.key, ()),
                    _attempt(event.row),
                )
                self._display.retried(runner.jobs[event.key], event.row)
            case NodeFinished():
                job = runner.jobs.pop(event.row.key)
                runner.current.pop(event.row.key, None)
                self._attempts.pop(event.row.key, None)
                self._write_files(job, event.files)
                self._results.append(event.row)
                self.played[runner.place.label] += 1
                self._display.finished(job, event.row)
            case NodeFailed():
                message = f"{runner.place.label}: {event.message}"
                kinds = {kind.__name__: kind for kind in (CannotStart, WriteError)}
                raise kinds.get(event.kind, RunError)(message)

    def _write_files(self, job: Job, files: Mapping[str, bytes]) -> None:
        """Write the traces and screenshots of an episode; the row follows them."""
        out = self._plan.settings.out
        remove_traces(out, job.stem)  # a killed run may have left some
        for name in sorted(files, key=lambda name: (name.endswith(".jsonl"), name)):
            make_folder((out / name).parent)
            write_atomic(out / name, files[name])

    def _replace(self, runner: _Runner, cause: str) -> None:
        """Record the current episodes of a lost runner as failed, and start another one."""
        self._lost = cause
        self._runners.remove(runner)
        self._ray.kill(runner.actor)
        for key, job in runner.jobs.items():
            if (current := runner.current.get(key)) is None:
                self._waiting.append(job)  # nothing of it was lost
            else:
                self._record_loss(job, current, cause)
        alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        if runner.place.node_id in alive and runner.replacements < _MAX_REPLACEMENTS:
            self._runners.append(self._started(runner.place, runner.replacements + 1))

    def _record_loss(self, job: Job, current: _Current, cause: str) -> None:
        last = current.last
        row = replace(
            blank_row(self._plan, job),
            error=cause,
            steps=last.num_steps if last else 0,
            kv_peak_bytes=(last.cache_peak_bytes or None) if last else None,
            seconds=round(time.monotonic() - current.started, 3),
            finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
            versions=versions(),
            commit=commit(),
        )
        earlier = self._attempts.get(job.key, ())
        if len(earlier) < self._plan.settings.retries:
            self._attempts[job.key] = (*earlier, _attempt(row))
            self._waiting.append(job)
            self._display.retried(job, row)
            return
        self._attempts.pop(job.key, None)
        self._write_files(job, {})
        row = replace(row, attempts=earlier)
        self._results.append(row)
        self._display.finished(job, row)

    def _keep_logs(self, place: _NodePlace, logs: Mapping[str, bytes]) -> None:
        folder = self._plan.settings.out / "logs" / place.label
        make_folder(folder)
        for name, content in logs.items():
            write_atomic(folder / name, content)


@contextlib.contextmanager
def cluster_for(plan: Plan, address: str | None) -> Iterator[Cluster]:
    """Connect to a Ray cluster, start runners on its nodes, and end them afterwards.

    Args:
        address: see `connection`.

    Raises:
        ClusterError: the cluster does not answer, a node cannot play the plan, or the sites of the
            plan need one machine.
    """
    refuse_one_machine(plan)
    with connection(address):
        cluster = Cluster(plan)
        try:
            cluster.start()
            yield cluster
        except BaseException:
            cluster.end(at_once=True)
            raise
        cluster.end(at_once=False)


def refuse_one_machine(plan: Plan) -> None:
    """Refuse a plan that several machines cannot share.

    Raises:
        ClusterError: a site is at a fixed address, or nothing resets one.
    """
    own = plan.suite.sites
    fixed = [
        name
        for name, site in ({} if own is None else own.sites).items()
        if site.is_exclusive or site.runs_once
    ]
    if own is not None and fixed:
        raise ClusterError(
            f"--executor ray: {', '.join(fixed)} of {own.path.name}: a fixed address serves only "
            "one episode at a time; put {port} into the address to start a site for each worker, "
            "set read_only = true if no task changes the site, or run without --executor ray"
        )
    if plan.unreset:
        raise ClusterError(
            f"--executor ray: nothing resets {', '.join(plan.unreset)} between episodes, and "
            "several nodes would play there at the same time; run without --executor ray"
        )
    if ":" in plan.settings.device:
        raise ClusterError(
            f"--device {plan.settings.device}: Ray gives every runner a GPU of its own; write cuda"
        )


def _attempt(row: Row) -> Attempt:
    return Attempt(status=row.status, error=row.error, steps=row.steps, seconds=row.seconds)


def _not_started(place: _NodePlace) -> str:
    what = "its GPU is taken, or it" if place.has_gpu else "it"
    return f"{place.label}: no runner started in {START_S:.0f} s: {what} is overloaded or gone"


def _cause(error: Exception) -> str:
    """Return the line that says what happened: the last one of a traceback, otherwise the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return lines[-1 if "Traceback" in str(error) else 0][:300]
