"""Complete runs with the shipped model, which one process holds for all workers."""

import json
import multiprocessing
import multiprocessing.connection
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agentkv.build import load_run_model
from agentkv.cache.cache import Cache
from agentkv.cache.hf.compat import cache_in
from agentkv.trace import read_trace
from agentkv_tasks.results import Row
from agentkv_tasks.run import episode_runner
from agentkv_tasks.run.command import prepare
from agentkv_tasks.run.display import failure_lines
from agentkv_tasks.run.episode_runner import EpisodeRunner
from agentkv_tasks.run.model_host import Host
from agentkv_tasks.run.remote import Connection
from agentkv_tasks.settings import RunSettings
from tests.tasks.runs import (
    NANO,
    SMALL,
    browsers_of,
    complete_rows,
    finish,
    model_of,
    refused,
    run,
    start,
    wait_for_rows,
    wait_for_steps,
    wait_until_gone,
    workers_of,
)

pytestmark = pytest.mark.browser

POLICIES = ("full", "window")
MOST_BYTES = 800_000
"""Bytes of a cache that only the policy without a budget needs."""


def untimed(row: Row) -> Row:
    """Return the row without times and memory."""
    return replace(
        row, seconds=0, prefill_s=0, decode_s=0, rss_peak_bytes=None, finished_at="", commit=""
    )


def maps_torch(pid: int) -> bool:
    try:
        return "libtorch_cpu" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


@pytest.mark.slow
def test_two_workers_share_a_model_and_get_the_results_of_one(tmp_path: Path) -> None:
    together, alone = tmp_path / "together", tmp_path / "alone"
    process = start(together, *NANO, "--workers", "2")
    wait_for_steps(together, 1)
    models = [pid for pid in workers_of(process.pid) if maps_torch(pid)]
    assert models == [model_of(process.pid)]
    finish(process)
    run(alone, *NANO, "--workers", "1")
    found = {row.key: untimed(row) for row in complete_rows(together)}
    assert found == {row.key: untimed(row) for row in complete_rows(alone)}
    assert len(found) == 4 and all(row.kv_peak_bytes for row in found.values())
    assert all(row.rss_peak_bytes for row in complete_rows(alone))


@pytest.mark.slow
def test_two_deterministic_runs_write_equal_rows_except_for_times(tmp_path: Path) -> None:
    def rows(out: Path) -> dict[str, dict[str, object]]:
        output = run(out, *NANO, "--deterministic", "--workers", "2")
        lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
        assert len(lines) == 4, output
        for line in lines:
            for name in ("seconds", "prefill_s", "decode_s", "finished_at"):
                assert line.pop(name)
        return {line["trace"]: line for line in lines}

    assert rows(tmp_path / "one") == rows(tmp_path / "other")


@pytest.mark.slow
def test_a_killed_run_leaves_no_model_behind(tmp_path: Path) -> None:
    process = start(tmp_path, *NANO, "--workers", "2")
    wait_for_rows(tmp_path, 1)
    family = workers_of(process.pid)
    assert model_of(process.pid) in family
    os.kill(process.pid, signal.SIGKILL)
    finish(process)
    wait_until_gone(family)


@pytest.mark.slow
def test_a_budget_that_is_too_small_ends_the_run_with_the_cause(tmp_path: Path) -> None:
    output = refused(tmp_path, *NANO, "--budget", "1KiB")
    assert "a budget of 1024 bytes is too small" in output and not complete_rows(tmp_path)


def test_a_run_says_at_the_start_under_which_policies_positions_end(tmp_path: Path) -> None:
    dropping = ({"name": "full", "last_pages": 2}, {"name": "full", "rebuild": True})
    policies = ("full", "int8", "window", *dropping)
    settings = RunSettings.read(
        tasks="vwa75", model="nano", policies=policies, out=tmp_path, ocr=False
    )
    run = prepare(settings)
    assert run.notices == ()  # nothing is degraded
    assert run.limits == (
        "full, int8: an episode ends with context_limit after 32,768 tokens, because the policy "
        "keeps every token",
    )


def test_an_episode_without_memory_has_its_own_status_and_the_run_goes_on(tmp_path: Path) -> None:
    settings = RunSettings.read(
        tasks=str(SMALL),
        model="nano",
        device="cpu",
        policies=POLICIES,
        budget=128,
        limit=1,
        max_steps=2,
        out=tmp_path,
        ocr=False,
    )
    plan = prepare(settings).plan
    model = load_run_model(settings)
    assert model is not None

    def fail(module: object, args: object, given: dict[str, object]) -> None:
        cache = cache_in(given)
        if isinstance(cache, Cache) and cache.nbytes > MOST_BYTES:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")

    def play(connection: Connection) -> list[Row]:
        with EpisodeRunner(plan, connection) as runner:
            return [runner.run(job, lambda step: None) for job in plan.jobs]

    host = Host(model, settings)
    ours, theirs = multiprocessing.Pipe()
    host.connect(ours)
    hook = model.model.register_forward_pre_hook(fail, with_kwargs=True)
    with ThreadPoolExecutor(1) as pool:
        playing = pool.submit(play, theirs)
        while not playing.done():
            for each in multiprocessing.connection.wait(host.connections, timeout=0.01):
                host.receive(each)  # type: ignore[arg-type]
            host.step()
    hook.remove()
    by_policy = {name: [row for row in playing.result() if row.policy == name] for name in POLICIES}
    for row in by_policy["full"]:
        assert row.status == "out_of_memory" and not row.success
        assert row.error.startswith("no memory was left for the reply: CUDA out of memory.")
        end = read_trace(tmp_path / row.trace).end
        assert end is not None and end["status"] == "out_of_memory"
    assert all(row.status != "out_of_memory" and row.steps for row in by_policy["window"])
    assert failure_lines(playing.result()) == ["full: 1 out_of_memory (counted as failures)"]


def test_a_worker_launches_another_browser_after_many_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episode_runner, "EPISODES_PER_BROWSER", 2)
    settings = RunSettings.read(
        tasks=str(SMALL),
        model="stop",
        policies=("full", "window"),
        limit=3,
        out=tmp_path,
        ocr=False,
    )
    plan = prepare(settings).plan

    others = set(browsers_of(os.getpid()))

    def play() -> list[set[int]]:
        with EpisodeRunner(plan, None) as runner:
            browsers = []
            for job in plan.jobs[:3]:
                assert runner.run(job, lambda step: None).status == "stopped"
                browsers.append(set(browsers_of(os.getpid())) - others)
            return browsers

    with ThreadPoolExecutor(1) as pool:
        browsers = pool.submit(play).result()
    assert all(len(each) == 1 for each in browsers)
    assert browsers[0] == browsers[1] != browsers[2]
