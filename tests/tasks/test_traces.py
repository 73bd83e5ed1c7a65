"""`agentkv bench traces` replays the requests of agents whose hosts prune."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.bench.traces.measure import GROUP, TraceBench, run_bench
from agentkv_tasks.bench.traces.rows import TraceRow
from agentkv_tasks.bench.traces.table import sums
from agentkv_tasks.bench.traces.trace import MADE, NOTE, TraceRequest, made, read_trace
from agentkv_tasks.settings import RunSettings

EDITED = {("keep", "rolling 3"), ("keep", "dated 4")}
"""Ways and sessions of five made ones in which a host edits what the session holds."""


def bench(tmp_path: Path, **given: object) -> list[TraceRow]:
    settings: dict[str, object] = {
        "settings": RunSettings.read(policies=("full",)),
        "edits": ("exact", "keep"),
        "num_sessions": 5,
        "num_turns": 9,
        "num_words": 8,
        "num_reply": 3,
        "seed": 1,
        "out": tmp_path / "rows.jsonl",
        **given,
    }
    asked = TraceBench(**settings)  # type: ignore[arg-type]
    run_bench(asked, Console(quiet=True))
    return [TraceRow(**json.loads(line)) for line in asked.out.read_text().splitlines()]


def test_a_server_that_follows_edits_reads_less(tmp_path: Path) -> None:
    rows = bench(tmp_path)
    found = sums(rows)
    assert {*found} == {*MADE, "pruned", "whole"}
    for name, ways in found.items():
        exact, keep = ways["full", "exact"], ways["full", "keep"]
        assert exact.num_requests == keep.num_requests > 0
        assert keep.num_read <= exact.num_read <= exact.num_prompt
        if name in ("rolling", "dated"):
            assert keep.num_read < keep.num_prefix_read
    for name in ("num_requests", "num_prompt", "num_read"):
        parts, whole = (
            sum(getattr(found[kind]["full", "keep"], name) for kind in kinds)
            for kinds in (("pruned", "whole"), MADE)
        )
        assert parts == whole
    for row in rows:
        assert len(row.how) == len(row.num_read) == len(row.first_token_s) > 0
        assert "edited" not in row.how or row.edits == "keep"
        assert "edited" in row.how or (row.edits, row.session) not in EDITED


def test_a_run_that_was_stopped_continues_with_the_group_that_is_missing(tmp_path: Path) -> None:
    asked = {"edits": ("keep",), "num_sessions": GROUP + 1, "num_turns": 2, "num_words": 2}
    first = bench(tmp_path, **asked)
    assert {row.group for row in first} == {0, 1}
    path = tmp_path / "rows.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if '"group": 0,' in line))
    again = bench(tmp_path, **asked)
    assert [row.session for row in again] == [row.session for row in first]
    for before, after in zip(first, again, strict=True):
        # times of another measurement differ
        assert (before.first_token_s == after.first_token_s) == (before.group == 0)
        assert before.num_read == after.num_read
    assert bench(tmp_path, **asked) == again
    with pytest.raises(BenchError, match="settings were .* give another --out, or --fresh"):
        bench(tmp_path, **{**asked, "num_reply": 2})


def test_requests_of_a_file_are_replayed_with_the_servers_own_replies(tmp_path: Path) -> None:
    def user(text: str) -> dict[str, str]:
        return {"role": "user", "content": text}

    first = [user("Where is the boat?")]
    second = [*first, {"role": "assistant", "content": "At berth 4."}, user("And the kayak?")]
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        "".join(
            json.dumps({"session": "a", "messages": messages, "reply": reply}) + "\n"
            for messages, reply in ((first, "At berth 4."), (second, "At berth 5."))
        )
    )
    (row,) = bench(tmp_path, trace=trace, edits=("removals",))
    assert (row.kind, row.source, row.session) == ("file", "trace.jsonl", "a")
    assert row.how == ["new", "continued"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has no requests"),
        ("{", "line 1 is no request of a trace"),
        ('{"session": "a"}', "KeyError: 'messages'"),
        ('{"session": "a", "messages": [3], "reply": ""}', "line 1"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, text: str | None, told: str) -> None:
    path = tmp_path / "trace.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BenchError, match=told):
        read_trace(path)


@given(st.integers(0, 9))
def test_made_requests_continue_one_another(seed: int) -> None:
    requests = list(made(range(5), seed=seed, num_turns=20, num_words=5))
    assert requests == list(made(range(5), seed=seed, num_turns=20, num_words=5))
    latest: dict[str, TraceRequest] = {}
    for request in requests:
        before, contents = latest.get(request.session), [m["content"] for m in request.messages]
        if before is not None:
            # the reply, and a further output
            assert contents[-2] == before.reply and contents[-1].startswith("Output")
        if request.kind in ("noted", "rolling"):
            whole = [c for c in contents if c.startswith("Output")]
            assert len(whole) <= 13 and (len(contents) < 28 or NOTE in contents)
        latest[request.session] = request
