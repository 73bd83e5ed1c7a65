"""Files of a run are private and complete, and write errors take one line."""

import json
import os
import resource
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from agentkv.files import WriteError, append_line, json_line, make_folder, write_atomic
from agentkv.trace import TraceWriter, read_trace
from agentkv_env.masking import Secrets
from tests.agentkv.agent.test_trace import STEP
from tests.agentkv.test_cli import SMALL, call


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Limit every file to `size` bytes, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_line_that_does_not_fit_the_disk_leaves_earlier_lines_intact(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append_line(path, b"first\n")
    with (
        file_size_limit(8),
        pytest.raises(WriteError, match="written: File too large; .*space"),
    ):
        append_line(path, b"second\n")
    assert path.read_bytes() == b"first\n"
    append_line(path, b"third\n")
    assert path.read_bytes() == b"first\nthird\n"


def test_a_file_that_does_not_fit_the_disk_leaves_the_old_file_intact(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_atomic(path, "old")
    with file_size_limit(8), pytest.raises(WriteError, match=r"report\.html"):
        write_atomic(path, "new and longer")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["report.html"]


def test_a_trace_that_does_not_fit_the_disk_keeps_its_complete_steps(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    with TraceWriter(path, head={"goal": "g"}) as trace:
        trace.step(STEP)
        with (
            file_size_limit(path.stat().st_size + 9),
            pytest.raises(WriteError, match=r"one\.jsonl"),
        ):
            trace.step(replace(STEP, index=1))
    assert read_trace(path).steps == (STEP,)


def test_a_late_secret_is_masked_in_earlier_lines(tmp_path: Path) -> None:
    path, secrets = tmp_path / "one.jsonl", Secrets()
    head = {"goal": "say hunter22", "key": "hunter22", "task": {"category": "form"}}
    with TraceWriter(path, head=head, secrets=secrets) as trace:
        trace.step(replace(STEP, reply="hunter22"))
        secrets.add("hunter22")
        secrets.add("form")
        trace.step(replace(STEP, index=1))
    trace_read = read_trace(path)
    assert trace_read.head == {"goal": "say ***", "key": "hunter22", "task": {"category": "form"}}
    assert [step.reply for step in trace_read.steps] == ["***", STEP.reply]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and os.listdir(tmp_path) == ["one.jsonl"]


@pytest.mark.parametrize("umask", [0, 0o077, 0o777])
def test_files_and_folders_are_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        make_folder(tmp_path / "a" / "b")
        append_line(tmp_path / "a" / "b" / "rows", b"x\n")
        write_atomic(tmp_path / "a" / "page", "x")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a").rglob("*")}
    assert modes == {"b": 0o700, "rows": 0o600, "page": 0o600}


def test_a_lone_surrogate_is_written_as_the_replacement_character() -> None:
    line = json_line({"answer": "half \ud83d, whole \U0001f511"})
    assert "\U0001f511" in line.decode()
    assert json.loads(line)["answer"] == "half \ufffd, whole \U0001f511"


PLACES: dict[str, Callable[[Path], Path]] = {
    "a file": lambda folder: folder / "taken",
    "below a file": lambda folder: folder / "taken" / "deep",
    "no place": lambda folder: Path("/proc/agentkv"),
    "read only": lambda folder: Path("/proc/sys/kernel"),
}
COMMANDS = {
    "run": ("run", "--tasks", str(SMALL), "--model", "stop"),
    "report": ("report", "ROWS", "ROWS2"),
    "needle": ("bench", "needle", "--needles", "1", "--lengths", "64"),
    "memory": ("bench", "memory", "--seen", "8"),
    "speed": ("bench", "speed", "--seen", "8"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("command", COMMANDS)
def test_an_unwritable_path_is_rejected_in_one_line(
    tmp_path: Path, command: str, place: str
) -> None:
    (tmp_path / "taken").write_text("mine")
    out = PLACES[place](tmp_path)
    if COMMANDS[command][0] == "bench" and place == "a file":
        out = tmp_path  # bench expects a file here, so a folder is the obstacle
    words = list(COMMANDS[command])
    for number, name in enumerate(("ROWS", "ROWS2")):
        if name in words:
            folder = tmp_path / name
            folder.mkdir()
            row = {
                **{"suite": "small", "world_seed": number, "task_id": 0, "category": "form"},
                **{"policy": "full", "policy_parameters": {}, "model": "nano", "seed": 0},
                **{"status": "stopped", "success": True, "score": 1.0, "schema": 1},
            }
            (folder / "results.jsonl").write_text(json.dumps(row) + "\n")
            words[words.index(name)] = str(folder)
    result = call(*words, "--out", str(out))
    lines = result.output.strip().splitlines()
    assert result.exit_code in (1, 2) and isinstance(result.exception, SystemExit), result.output
    assert len(lines) == 1 and str(out) in lines[0], lines
    assert (tmp_path / "taken").read_text() == "mine"
