from dataclasses import replace
from pathlib import Path

import pytest

from agentkv.trace import Episode, Step, TraceError, TraceWriter, read_trace
from agentkv_env.masking import Secrets

STEP = Step(
    index=0,
    url="http://shop.localhost/",
    observation="link Bläue [3]\nline two",
    note="",
    reply="link Bläue\n```click [3]```",
    action="click [3]",
    error="",
    num_tokens_in=100,
    num_tokens_out=9,
    seen_tokens=109,
    cache_bytes=4000,
    cache_peak_bytes=5000,
    prefill_s=0.1,
    decode_s=0.2,
    seconds=0.5,
)
STEPS = (STEP, replace(STEP, index=1, action="", cache_bytes=2000, cache_peak_bytes=6000))
EPISODE = Episode("stopped", "42", STEPS, seconds=1.0)


def write(path: Path) -> None:
    with TraceWriter(path, head={"goal": "g", "policy": "full"}) as trace:
        for step in STEPS:
            trace.step(step)
        trace.end(EPISODE)


def test_a_trace_reads_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "traces" / "one.jsonl"
    write(path)
    trace = read_trace(path)
    assert trace.head == {"goal": "g", "policy": "full"}
    assert trace.steps == STEPS
    assert trace.end is not None and trace.end["status"] == "stopped"


@pytest.mark.parametrize("num_lost", [1, 10, 200])
def test_a_truncated_trace_keeps_every_complete_step(tmp_path: Path, num_lost: int) -> None:
    path = tmp_path / "one.jsonl"
    write(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: -len(whole.splitlines()[-1]) - num_lost])
    trace = read_trace(path)
    assert trace.end is None
    assert trace.steps == (STEPS if num_lost == 1 else STEPS[:1])


def test_a_trace_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    write(path)
    with pytest.raises(FileExistsError):
        write(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "does not begin with the head"),
        ('{"schema": 99, "kind": "head"}\n', "schema 1"),
        ('{"schema": 1, "kind": "step"}\n', "does not begin with the head"),
        ('{"schema": 1, "kind": "head"}\n{"broken\n{"schema": 1, "kind": "end"}\n', "line 2"),
    ],
)
def test_a_file_that_is_not_a_trace_is_rejected(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text(text)
    with pytest.raises(TraceError, match=message):
        read_trace(path)


def test_an_episode_sums_its_steps() -> None:
    assert (EPISODE.num_tokens_in, EPISODE.num_tokens_out) == (200, 18)
    assert EPISODE.num_parse_failures == 1
    assert (EPISODE.kv_peak_bytes, EPISODE.kv_mean_bytes) == (6000, 3000)


def test_an_episode_without_steps_has_no_bytes() -> None:
    empty = Episode("timeout", "", (), seconds=0.0, error="late")
    assert (empty.kv_peak_bytes, empty.kv_mean_bytes) == (0, 0)


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        '{"schema": ' + "9" * 5000 + "}",
        '{"schema": 1, "kind": "step"}',
        '{"schema": 1, "kind": "step", "index": "first"}',
    ],
    ids=lambda line: line[:40],
)
def test_a_hostile_line_is_a_trace_error(tmp_path: Path, line: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"schema": 1, "kind": "head"}\n{"schema": 1}\n' + line + "\n")
    with pytest.raises(TraceError, match=r"trace\.jsonl"):
        read_trace(path)


@pytest.mark.parametrize(
    ("action", "observation", "element"),
    [
        ("click [3]", "link Nine [30]\nlink Bl\u00e4ue [3]\nline two", "link Bl\u00e4ue"),
        (
            "type [12] [blue] [1]",
            "[12] textbox 'Search' value: old @1,2,30,40",
            "textbox 'Search' value: old",
        ),
        (
            "click [8]",
            "row 1042 | Al | [7] Ship\nrow 1043 | Ada; [9] Mail | [8] Ship | [10] Hold",
            "Ship (row 1043 | Ada)",
        ),
        ("click [7]", "row [7] Ada | Core", "Ada (row | Core)"),
        (
            "type [5] [2] [0]",
            "row Tea | [5] textbox \"the boys' | tea\" value: 1 | [6] checkbox 'Gift' checked",
            'textbox "the boys\' | tea" value: 1 (row Tea)',
        ),
        ("click [4]", "[4] row R10 | Oslo | Bergen", "row R10 | Oslo | Bergen"),
        ("click [3]", "same: 20 lines", ""),
        ("tab_focus [3]", "link Bl\u00e4ue [3]", ""),
        ("stop [[3]]", "link Bl\u00e4ue [3]", ""),
        ("", "link Bl\u00e4ue [3]", ""),
    ],
)
def test_a_step_names_the_element_that_its_action_is_on(
    action: str, observation: str, element: str
) -> None:
    assert replace(STEP, action=action, observation=observation).element == element


def test_a_trace_goes_on_behind_the_steps_that_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write(path)
    with TraceWriter(path, head={"other": 1}, num_kept=1) as trace:
        trace.step(replace(STEP, index=1, reply="another"))
    read = read_trace(path)
    assert [step.reply for step in read.steps] == [STEP.reply, "another"]
    assert read.end is None and read.head == {"goal": "g", "policy": "full"}


def test_late_secrets_are_masked_in_the_steps_that_were_kept(tmp_path: Path) -> None:
    path, secrets = tmp_path / "trace.jsonl", Secrets()
    write(path)
    with TraceWriter(path, head={}, secrets=secrets, num_kept=2) as trace:
        secrets.add("line two")
        trace.step(replace(STEP, index=2))
    assert "line two" not in path.read_text() and len(read_trace(path).steps) == 3
