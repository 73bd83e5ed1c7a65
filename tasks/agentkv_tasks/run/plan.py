"""What a run will do: its episodes in order, and all that a worker has to know."""

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentkv.build import SCRIPTED, resolved_parameters
from agentkv.config import PolicySettings, RunSettings
from agentkv.masking import Secrets
from agentkv.models.find import weights_digest
from agentkv_tasks.evaluate import Scoring
from agentkv_tasks.results import key_of
from agentkv_tasks.suites import Suite
from agentkv_tasks.task import Task


@dataclass(frozen=True, slots=True)
class Job:
    """One episode to be run."""

    task: Task
    policy: PolicySettings
    policy_parameters: Mapping[str, Any]
    seed: int
    key: str
    stem: str
    """Name of its trace, without ending; also what `agentkv replay` takes."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole run. Travels to the workers, so it holds values only."""

    settings: RunSettings
    suite: Suite
    jobs: tuple[Job, ...]
    sites: Mapping[str, str]
    """Placeholder -> origin, for sites that stand elsewhere; the embedded world serves the rest."""
    scoring: Scoring
    step_timeout_s: float
    threads: int
    """Of torch, in the process that holds the model."""
    weights: str = ""
    """What tells the model's weights from others (`weights_digest`); empty for scripts."""

    @property
    def row_settings(self) -> dict[str, Any]:
        """What decides outcomes and is not in a row's key: equal in all rows that are compared."""
        chosen = self.settings
        return {
            "suite_digest": self.suite.digest,
            "scoring": self.scoring,
            "decoding": chosen.decoding,
            "temperature": chosen.temperature,
            "deterministic": chosen.deterministic,
            "max_new_tokens": chosen.max_new_tokens,
            "observation_tokens": chosen.observation_tokens,
            "observations": chosen.observations,
            "strict": chosen.strict,
            "max_steps": chosen.max_steps,
            "max_parse_failures": chosen.max_parse_failures,
            "max_repeats": chosen.max_repeats,
            "timeout_s": chosen.timeout_s,
            "prefill": chosen.prefill,
            "chunk": chosen.chunk,
            "dtype": chosen.dtype,
            "weights": self.weights,
            "ocr": chosen.ocr,
            "sites": Secrets().mask_within(self.sites),
        }


def make_plan(
    settings: RunSettings,
    suite: Suite,
    *,
    sites: Mapping[str, str],
    scoring: Scoring,
    step_timeout_s: float,
    threads: int,
) -> Plan:
    """All episodes of a run, ordered so that the policies take turns on each task: what changes in
    the course of a run then touches all of them alike, and a run cut short is still paired."""
    jobs: list[Job] = []
    parameters = {
        policy.row_name: resolved_parameters(settings, policy) for policy in settings.policies
    }
    for number, task in enumerate(suite.tasks[: settings.limit]):
        first = number % len(settings.policies)
        turns = settings.policies[first:] + settings.policies[:first]
        for seed in settings.seeds:
            jobs += [_job(settings, suite, task, p, parameters[p.row_name], seed) for p in turns]
    weights = "" if settings.model in SCRIPTED else weights_digest(settings.model)
    return Plan(settings, suite, tuple(jobs), sites, scoring, step_timeout_s, threads, weights)


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
    """Where an episode's trace is; its pictures are in the folder of the same name beside it."""
    return out / "traces" / f"{stem}.jsonl"


def default_threads(workers: int, cpus: int) -> int:
    """Threads of torch that leave each worker's browser a core: threads that wait for one another
    crawl on a machine with more work than cores (our choice)."""
    return max(1, cpus - workers)


def total(jobs: Sequence[Job]) -> dict[str, int]:
    """Number of episodes per policy."""
    counts: dict[str, int] = {}
    for job in jobs:
        counts[job.policy.row_name] = counts.get(job.policy.row_name, 0) + 1
    return counts
