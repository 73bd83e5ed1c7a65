"""Parts of a run on a Ray cluster that need no Ray: its checks, and the runner of a node."""

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from agentkv.settings import SettingsError
from agentkv.trace import read_trace
from agentkv_tasks.own_sites.site_file import read_site_file
from agentkv_tasks.run import command
from agentkv_tasks.run.cluster.connect import ClusterError
from agentkv_tasks.run.cluster.driver import refuse_one_machine
from agentkv_tasks.run.cluster.events import Event, NodeFinished, Started
from agentkv_tasks.run.cluster.node_runner import NodeRunner
from agentkv_tasks.run.plan import Plan, trace_path
from agentkv_tasks.settings import RunSettings
from tests.tasks.runs import SMALL


def plan_in(out: Path, **more: object) -> Plan:
    settings = RunSettings.model_validate(
        {
            **{"tasks": str(SMALL), "model": "solution", "policies": ("full",), "out": out},
            **{"workers": 1, "ocr": False, "screenshots": False, **more},
        }
    )
    return command.prepare(settings).plan


def test_a_run_on_ray_without_ray_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    settings = RunSettings(tasks=str(SMALL), model="stop", out=tmp_path / "out", executor="ray")
    with pytest.raises(ClusterError, match=r"pip install 'agentkv-web\[ray\]'"):
        command.prepare(settings)
    assert not (tmp_path / "out").exists()


def test_an_address_of_a_cluster_needs_the_executor_ray() -> None:
    with pytest.raises(SettingsError, match="ray_address needs executor ray"):
        RunSettings.read(tasks=str(SMALL), model="stop", ray_address="auto")


def test_sites_that_nothing_resets_and_numbered_devices_are_refused_on_several_nodes(
    tmp_path: Path,
) -> None:
    plan = plan_in(tmp_path)
    refuse_one_machine(plan)
    with pytest.raises(ClusterError, match="nothing resets SHOP"):
        refuse_one_machine(replace(plan, unreset=("SHOP",)))
    with pytest.raises(ClusterError, match="write cuda"):
        settings = plan.settings.model_copy(update={"device": "cuda:1"})
        refuse_one_machine(replace(plan, settings=settings))


def test_sites_of_which_there_is_one_are_refused_on_several_nodes(tmp_path: Path) -> None:
    plan, path = plan_in(tmp_path), tmp_path / "mine.toml"

    def refuse(site: str) -> None:
        path.write_text(f'tasks = "tasks.json"\n[sites.wiki]\n{site}\n')
        refuse_one_machine(replace(plan, suite=replace(plan.suite, sites=read_site_file(path))))

    refuse('address = "http://127.0.0.1:{port}"\nstart = ["serve", "{port}"]')
    refuse('address = "http://example.org"\nread_only = true')
    for one in ("", 'read_only = true\nstart = ["serve"]', 'reset = { get = "/reset" }'):
        with pytest.raises(
            ClusterError, match=r"wiki of mine\.toml: a fixed address serves only one"
        ):
            refuse(f'address = "http://127.0.0.1:8123"\n{one}')


@pytest.mark.browser
def test_the_runner_of_a_node_reports_rows_with_their_traces_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    plan = plan_in(tmp_path / "out")
    runner = NodeRunner("here", 1)
    facts = runner.check(plan)
    assert facts.problem == "" and facts.versions["playwright"]
    runner.begin(replace(plan, jobs=()))
    folder = runner.folder
    assert folder is not None and folder.is_dir()
    first, second = plan.jobs[:2]
    runner.add([(first, ())])
    events = wait_for(runner, NodeFinished)
    runner.add([(second, ())])  # the runner waits for more while it has nothing to play
    events += wait_for(runner, NodeFinished)
    assert [event.key for event in events if isinstance(event, Started)] == [first.key, second.key]
    for job, event in zip((first, second), events_of(events), strict=True):
        assert event.row.key == job.key and event.row.success
        (name,) = event.files
        assert tmp_path / "out" / name == trace_path(tmp_path / "out", job.stem)
        (tmp_path / "trace.jsonl").write_bytes(event.files[name])
        assert len(read_trace(tmp_path / "trace.jsonl").steps) == event.row.steps
    assert not list(folder.glob("traces/*.jsonl"))
    assert list(runner.end(at_once=False)) == ["worker-0.log"]
    assert not folder.exists()


def events_of(events: list[Event]) -> list[NodeFinished]:
    return [event for event in events if isinstance(event, NodeFinished)]


def wait_for(runner: NodeRunner, kind: type[Event]) -> list[Event]:
    found: list[Event] = []
    end = time.monotonic() + 120
    while not any(isinstance(event, kind) for event in found):
        assert time.monotonic() < end, f"no {kind.__name__} came"
        found += runner.events()
    return found
