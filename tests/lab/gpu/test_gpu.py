"""`make gpu` on machines of any kind: what it plans, and how it runs real processes."""

import fcntl
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import typer.main

from agentkv_kernels import device as kernels_device
from agentkv_lab.gpu.__main__ import run_parts
from agentkv_lab.gpu.machine import DISTRIBUTIONS, Device, Machine
from agentkv_lab.gpu.parts import (
    OLDEST_CAPABILITY,
    SHAPES,
    TRANSFORMERS,
    TRITONS,
    GpuPart,
    Skip,
    marked_files,
    plan,
)
from agentkv_lab.gpu.results import folder_name, gather, page, unused
from agentkv_lab.gpu.run import PartOutcome, count_tests, environment, limit, run, run_all
from agentkv_tasks.bench.contenders import models as shapes
from agentkv_tasks.cli.app import cli

ROOT = Path(__file__).parents[3]
CARD = Device("NVIDIA L4", 24 << 30, 58, (8, 9), "13.0", "580.1")
WHOLE = Machine(
    versions={**dict.fromkeys(DISTRIBUTIONS, "1.0"), "triton": "3.7.1", "transformers": "5.23.0"},
    device=CARD,
    browser="/usr/bin/chromium",
    cores=8,
    python="3.11.7",
)
MODELS = ("nano", *SHAPES)
NAMES = [
    "tests",
    *(f"speed {model}" for model in MODELS),
    *(f"memory {model}" for model in MODELS),
    "tasks",
]


def planned(machine: Machine) -> tuple[list[GpuPart], list[Skip]]:
    return plan(machine, ROOT, Path("lab/results/gpu_x"), Path("runs/gpu_x"))


def without(*names: str, **versions: str) -> Machine:
    """The whole machine less some packages, with others in other versions."""
    kept = {name: found for name, found in WHOLE.versions.items() if name not in names}
    return replace(WHOLE, versions={**kept, **versions})


def python(code: str, *, name: str = "a part", **more: object) -> GpuPart:
    return GpuPart(name=name, arguments=("-S", "-c", code), weight=1, **more)  # type: ignore[arg-type]


def ran(part: GpuPart, folder: Path, *, limit_s: float = 60, grace_s: float = 8) -> PartOutcome:
    return run(part, limit_s=limit_s, root=folder, logs=folder, grace_s=grace_s)


# ---- the plan


def test_a_whole_machine_with_a_device_runs_everything() -> None:
    parts, skips = planned(WHOLE)
    assert [part.name for part in parts] == NAMES and skips == []


@pytest.mark.parametrize(
    ("machine", "skipped", "reason"),
    [
        (replace(WHOLE, browser=None), ["tasks"], "no browser"),
        (without("llguidance", "playwright"), ["tasks"], "not installed: llguidance, playwright"),
        (without("pytest"), ["tests"], "not installed: pytest"),
        (without("triton"), ["tests"], "not installed: triton"),
        (without(triton="3.5.1"), ["tests"], "Triton 3.5.1 is installed"),
        (replace(WHOLE, device=replace(CARD, capability=(7, 5))), ["tests"], "capability 7.5"),
        (without("pydantic"), NAMES[1:], "not installed: pydantic"),
        (without(transformers="4.51.3"), NAMES, "transformers 4.51.3 is installed, from 4.57"),
        (without(transformers="6.0.0"), NAMES, "to below 6 is needed"),
        (without("PIL"), ["tasks"], "not installed: pillow"),
    ],
)
def test_what_cannot_run_is_skipped_with_its_reason(
    machine: Machine, skipped: list[str], reason: str
) -> None:
    parts, skips = planned(machine)
    assert [skip.name for skip in skips] == skipped
    assert all(reason in skip.reason for skip in skips)
    assert [part.name for part in parts] == [name for name in NAMES if name not in skipped]


def test_without_a_device_the_interpreter_is_all() -> None:
    (part,), skips = planned(replace(WHOLE, device=None))
    assert part.name == "interpreter" and skips == []
    files = [argument for argument in part.arguments if argument.endswith(".py")]
    assert files and all((ROOT / file).exists() for file in files)
    parts, (skip,) = planned(replace(without("triton"), device=None))
    assert parts == [] and skip == Skip("interpreter", "not installed: triton")


def test_what_a_machine_must_have_is_what_the_rest_of_the_house_says() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (first, end), needed = TRANSFORMERS, project["dependencies"]
    assert f"transformers>={first[0]}.{first[1]},<{end[0]}" in needed
    extras = project["optional-dependencies"]
    named = " ".join([*needed, *extras["test"], *extras["gpu"]])
    assert [name for name in DISTRIBUTIONS.values() if name not in named] == []
    assert TRITONS == kernels_device.TRITONS
    assert OLDEST_CAPABILITY == kernels_device.OLDEST_CAPABILITY
    assert extras["gpu"] == [f"triton=={TRITONS[-1]}"]
    assert set(SHAPES) <= set(shapes.SHAPES)


def test_the_commands_are_ones_that_the_command_line_takes() -> None:
    parts, _ = planned(WHOLE)
    for part in parts[1:]:
        assert part.arguments[:2] == ("-m", "agentkv") and part.shown.startswith("agentkv ")
        command, rest = typer.main.get_command(cli), list(part.arguments[2:])
        while rest and hasattr(command, "resolve_command"):
            context = command.make_context("agentkv", rest, resilient_parsing=True)
            _, command, rest = command.resolve_command(context, rest)
        context = command.make_context("command", rest)
        assert context.params["device"] == "cuda"
        out = Path(context.params["out"])
        assert part.out in (out, out / "results.jsonl")


def test_the_files_with_tests_for_a_device_are_found() -> None:
    assert "tests/kernels/test_triton_interpreted.py" in marked_files(ROOT)


# ---- time


def test_what_a_part_leaves_over_goes_to_those_after_it() -> None:
    parts = [replace(python("", name=str(weight)), weight=weight) for weight in (1, 2, 1)]
    assert limit(parts[0], parts[1:], 100) == 25
    assert limit(parts[1], parts[2:], 99) == 66  # the first took one second of its 25
    assert limit(parts[2], [], 33) == 33


def test_a_part_whose_time_is_over_is_asked_to_end_and_keeps_what_it_has(tmp_path: Path) -> None:
    code = (
        "import time, pathlib\n"
        "try:\n"
        "    print('begun', flush=True); time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        "    pathlib.Path('rows').write_text('half'); print('interrupted')\n"
    )
    outcome = ran(python(code), tmp_path, limit_s=31, grace_s=30)
    assert outcome.ending == "out of time"
    assert outcome.log.read_text() in ("begun\ninterrupted\n", "")
    assert (tmp_path / "rows").exists() == bool(outcome.log.read_text())


def test_nothing_that_a_part_started_outlives_it(tmp_path: Path) -> None:
    deaf = (
        "import fcntl, signal, time, sys; signal.signal(signal.SIGINT, signal.SIG_IGN);"
        "lock = open('lock', 'w'); fcntl.flock(lock, fcntl.LOCK_EX);"
        "print('held', flush=True); time.sleep(40); lock.write('lived on')"
    )
    code = (
        f"import subprocess, sys; command = [sys.executable, '-S', '-c', {deaf!r}]\n"
        "child = subprocess.Popen(command, stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
    )
    # the part passes as soon as its child holds the lock, or hangs for all of its two seconds
    for more, ending in (("", "passed"), ("child.wait()\n", "out of time")):
        outcome = ran(python(code + more), tmp_path, limit_s=2.5, grace_s=0.5)
        assert outcome.ending in (ending, "out of time")  # a machine may be too slow to pass
        with (tmp_path / "lock").open("a+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # waits for whoever still holds it
            lock.seek(0)
            assert lock.read() == ""


# ---- endings


def test_a_part_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    parts = [
        python("print('one')", name="one"),
        python("import sys; print('no memory'); sys.exit(3)", name="two"),
        python("raise SystemExit", name="three"),
    ]
    begun: list[str] = []
    outcomes = list(
        run_all(
            parts,
            root=tmp_path,
            logs=tmp_path / "logs",
            ends_at=time.monotonic() + 300,
            begin=lambda part, limit_s: begun.append(part.name),
        )
    )
    assert [outcome.ending for outcome in outcomes] == ["passed", "failed", "passed"]
    assert begun == ["one", "two", "three"]
    assert outcomes[1].detail == "no memory"
    assert outcomes[0].log.read_text() == "one\n"


VERBOSE = """\
tests/kernels/test_x.py::test_a[one token] PASSED [ 25%]
tests/kernels/test_x.py::test_a[rows that are not there, and sinks] FAILED [ 50%]
tests/kernels/test_x.py::test_b SKIPPED (no CUDA device) [ 75%]
SKIPPED [1] tests/kernels/test_x.py:5: no CUDA device
FAILED tests/kernels/test_x.py::test_a[rows that are not there, and sinks] - AssertionError
tests/kernels/test_x.py::test_c"""


def test_verdicts_of_tests_are_counted_also_where_the_output_was_cut_off() -> None:
    assert count_tests(VERBOSE.splitlines()) == {"failed": 1, "passed": 1, "skipped": 1}


def test_verdicts_are_counted_where_several_processes_run_the_tests(tmp_path: Path) -> None:
    (tmp_path / "test_three.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('name', ['a b', 'c', 'd'])\n"
        "def test_it(name): assert name != 'c'\n"
    )
    part = GpuPart(
        name="tests",
        arguments=("-m", "pytest", "-v", "-n", "2", "-p", "no:cacheprovider", "test_three.py"),
        weight=1,
        is_test=True,
    )
    outcome = ran(part, tmp_path)
    assert outcome.ending == "failed" and outcome.counts == {"passed": 2, "failed": 1}


def test_a_part_of_tests_is_judged_by_its_verdicts(tmp_path: Path) -> None:
    outcome = ran(python(f"print({VERBOSE!r}); raise SystemExit(1)", is_test=True), tmp_path)
    assert outcome.ending == "failed" and outcome.detail == "1 failed, 1 passed, 1 skipped"
    assert [line.split()[0] for line in outcome.notable] == ["SKIPPED", "FAILED"]
    # nothing that passed is nothing that was shown
    empty = ran(python("", is_test=True), tmp_path)
    assert (empty.ending, empty.detail) == ("failed", "no test ran")


def test_parts_run_from_the_source_tree_before_all_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/wheels")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    found = environment(tmp_path)
    places = [str(tmp_path / room) for room in ("", "env", "kernels", "tasks", "lab")]
    assert found["PYTHONPATH"].split(":") == [*places, "/wheels"]
    assert "TRITON_INTERPRET" not in found and found["HF_HUB_OFFLINE"] == "1"


# ---- results


def test_results_are_named_by_device_and_date(tmp_path: Path) -> None:
    name = folder_name("NVIDIA GeForce RTX 4090 (24 GB)", "2026-11-23")
    assert name == "gpu_nvidia-geforce-rtx-4090-24-gb_2026-11-23"
    assert unused(tmp_path, name) == tmp_path / name
    (tmp_path / name).mkdir()
    (tmp_path / f"{name}-2").mkdir()
    assert unused(tmp_path, name) == tmp_path / f"{name}-3"


def test_the_page_says_what_ran_what_failed_and_what_was_skipped(tmp_path: Path) -> None:
    part = python("", name="tests", is_test=True)
    failed = "FAILED tests/x.py::test_a - AssertionError"
    outcomes = [
        PartOutcome(
            part, "failed", 130, 41.6, tmp_path / "tests.log", "1 failed, 40 passed", {}, [failed]
        ),
        PartOutcome(planned(WHOLE)[0][1], "passed", 60, 30.2, tmp_path / "speed-nano.log"),
    ]
    said = page(
        without(triton="3.5.1"),
        outcomes,
        [Skip("tasks", "no browser")],
        date="2026-11-23",
        commit="abc",
        processor="a processor",
        total_s=720,
    )
    assert said.startswith("# NVIDIA L4, 2026-11-23: `make gpu`\n")
    assert "| tests | failed | 42 | 130 | 1 failed, 40 passed |" in said
    assert "`speed-nano.jsonl` | `agentkv bench speed --model nano" in said
    assert "* tasks: no browser" in said and failed in said
    assert "run in plain torch, without kernels: Triton 3.5.1" in said
    assert "compute capability 8.9, 58 multiprocessors, 24.0 GiB; driver 580.1, CUDA 13.0" in said


def test_rows_that_were_written_elsewhere_are_kept_with_the_others(tmp_path: Path) -> None:
    folder = tmp_path / "gpu"
    folder.mkdir()
    (tmp_path / "results.jsonl").write_text("{}\n")
    (folder / "speed.jsonl").write_text("1\n")
    parts = [
        python("", out=Path("results.jsonl"), kept_as="vwa75.jsonl"),
        python("", out=Path("gpu/speed.jsonl"), kept_as="speed.jsonl"),
        python("", out=Path("gpu/never.jsonl"), kept_as="never.jsonl"),
    ]
    outcomes = [PartOutcome(part, "passed", 1, 1, tmp_path / "log") for part in parts]
    gather(outcomes, tmp_path, folder)
    found = {path.name: path.read_text() for path in folder.iterdir()}
    assert found == {"vwa75.jsonl": "{}\n", "speed.jsonl": "1\n"}


@pytest.mark.parametrize(
    ("codes", "status"), [(["", ""], 0), (["raise SystemExit(1)", ""], 1), ([], 1)]
)
def test_the_exit_status_is_that_of_all_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], codes: list[str], status: int
) -> None:
    folder = tmp_path / "gpu"
    parts = [python(code, name=f"part {i}") for i, code in enumerate(codes)]
    skips = [Skip("tasks", "no browser")]
    found = run_parts(WHOLE, parts, skips, folder=folder, began=time.monotonic(), total_s=300)
    said = capsys.readouterr().out
    assert found == status and "skipped: tasks: no browser" in said
    assert (folder / "README.md").exists() == bool(codes)
    assert all(f"part {i}: at most" in said for i in range(len(codes)))


def test_without_a_device_a_person_is_told_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = replace(WHOLE, device=None, no_device="torch 2.13.0+cpu is built without CUDA")
    at = {"folder": tmp_path, "began": time.monotonic(), "total_s": 300.0}
    assert run_parts(machine, [python("")], [], **at) == 0  # type: ignore[arg-type]
    assert "no CUDA device: torch 2.13.0+cpu is built without CUDA" in capsys.readouterr().out
    assert not (tmp_path / "README.md").exists()


def test_it_starts_where_nothing_is_installed() -> None:
    # -S: without what is installed beside Python
    command = [sys.executable, "-S", "-m", "agentkv_lab.gpu"]
    where = {"cwd": ROOT, "env": {"PYTHONPATH": f"{ROOT}/lab:{ROOT}/tasks"}}
    asked = subprocess.run([*command, "--help"], capture_output=True, text=True, **where)  # type: ignore[call-overload]
    assert asked.returncode == 0 and "--seconds" in asked.stdout, asked.stderr
    done = subprocess.run(command, capture_output=True, text=True, **where)  # type: ignore[call-overload]
    assert done.returncode == 1, done.stderr
    assert "no CUDA device: torch is not installed" in done.stdout
    assert "skipped: interpreter: not installed: pytest, triton" in done.stdout
