"""Plan of a run: its episodes in order, and the settings that workers need."""

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentkv.build import resolved_parameters
from agentkv.models.adapter import digest_of
from agentkv.models.find import default_cache_dtype
from agentkv.settings import SCRIPTED, PolicySettings
from agentkv_env.masking import Secrets
from agentkv_tasks.evaluate import Judge
from agentkv_tasks.results import key_of
from agentkv_tasks.settings import RunSettings
from agentkv_tasks.suites import Suite
from agentkv_tasks.task import Task


@dataclass(frozen=True, slots=True)
class Job:
    """An episode to run."""

    task: Task
    policy: PolicySettings
    policy_parameters: Mapping[str, Any]
    seed: int
    key: str
    stem: str
    """File name of its trace without suffix; `agentkv replay` takes it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A run. It is sent to other processes, so it holds only values."""

    settings: RunSettings
    suite: Suite
    jobs: tuple[Job, ...]
    sites: Mapping[str, str]
    """Placeholder to origin of sites that run elsewhere; the embedded world serves the others."""
    threads: int
    """Threads of torch in the process that holds the model."""
    weights: str = ""
    """Digest of the model's weights (`weights_digest`); empty for scripts."""
    cache_dtype: str = ""
    """Dtype in which caches store dense entries; empty for scripts. `auto` is resolved, so that
    every row says what its bytes hold."""
    unreset: tuple[str, ...] = ()
    """Sites that nothing resets between episodes (`unreset_sites`)."""
    judge: Judge | None = None
    """Judge model that scores what texts and addresses cannot decide."""

    @property
    def row_settings(self) -> dict[str, Any]:
        """Settings that affect outcomes but are not part of a row's key.

        Only rows with equal settings can be compared.
        """
        return {
            **self.settings.in_rows,
            "suite_digest": self.suite.digest,
            "cache_dtype": self.cache_dtype,
            "weights": self.weights,
            "sites": Secrets().mask_within(self.sites),
            "unreset": list(self.unreset),
            "judge": "" if self.judge is None else Secrets().mask(str(self.judge)),
        }


def make_plan(
    settings: RunSettings,
    suite: Suite,
    tasks: Sequence[Task],
    *,
    sites: Mapping[str, str],
    threads: int,
    unreset: tuple[str, ...] = (),
    judge: Judge | None = None,
) -> Plan:
    """Plan all episodes of a run, which plays some tasks of a suite or all.

    The policies take turns on each task. Drift in the course of a run then affects all policies
    alike, and an interrupted run is still paired.

    Raises:
        ValueError: a policy, a parameter or the budget cannot be used.
    """
    jobs: list[Job] = []
    parameters = {
        policy.row_name: resolved_parameters(settings, policy) for policy in settings.policies
    }
    for number, task in enumerate(tasks):
        first = number % len(settings.policies)
        turns = settings.policies[first:] + settings.policies[:first]
        for seed in settings.seeds:
            jobs += [_job(settings, suite, task, p, parameters[p.row_name], seed) for p in turns]
    weights = cache_dtype = ""
    if settings.model not in SCRIPTED:
        weights, cache_dtype = (
            digest_of(settings),
            settings.cache_dtype,
        )
        if cache_dtype == "auto":
            cache_dtype = default_cache_dtype(settings.model)
    return Plan(
        settings,
        suite,
        tuple(jobs),
        sites,
        threads,
        weights,
        cache_dtype,
        unreset,
        judge,
    )


def _job(
    settings: RunSettings,
    suite: Suite,
    task: Task,
    policy: PolicySettings,
    parameters: Mapping[str, Any],
    seed: int,
) -> Job:
    key = key_of(
        suite=suite.name,
        world_seed=suite.world_seed,
        task_id=task.task_id,
        policy=policy.row_name,
        policy_parameters=parameters,
        model=settings.model,
        seed=seed,
    )
    label = re.sub(r"[^A-Za-z0-9-]+", "_", policy.row_name)
    stem = f"{task.task_id:03}-{label}-{seed}-{zlib.crc32(key.encode()):08x}"
    return Job(task, policy, parameters, seed, key, stem)


def trace_path(out: Path, stem: str) -> Path:
    """Return the path of an episode's trace. A folder of the same name holds its screenshots."""
    return out / "traces" / f"{stem}.jsonl"


def default_threads(workers: int, cpus: int) -> int:
    """Return the number of torch threads that leaves each worker's browser a core (our choice).

    Torch's threads wait for each other, so they slow down sharply if the cores are oversubscribed.
    """
    return max(1, cpus - workers)


def total(jobs: Sequence[Job]) -> dict[str, int]:
    """Count the episodes of each policy."""
    counts: dict[str, int] = {}
    for job in jobs:
        counts[job.policy.row_name] = counts.get(job.policy.row_name, 0) + 1
    return counts
