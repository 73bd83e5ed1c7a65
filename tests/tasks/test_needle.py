"""`agentkv bench needle` with tiny random weights, from the command line: they find nothing."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from agentkv.models.find import NANO
from agentkv_tasks.bench.needle.maps import heat_maps
from agentkv_tasks.bench.needle.rows import NeedleRow
from agentkv_tasks.bench.needle.table import compared
from agentkv_tasks.cli.app import cli

Entries = list[dict[str, Any]]
Call = Callable[..., Result]

POSITIONS = 1200
TIMES = ("read_seconds", "reply_seconds", "finished_at", "command")
ROW_BYTES = 2 * 2 * 2 * 8 * 2
"""Keys and values of a token in all layers and heads, 16 bits."""


def _save_model(folder: Path, *, seed: int) -> Path:
    tokenizer = AutoTokenizer.from_pretrained(NANO)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=POSITIONS,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _save_model(tmp_path_factory.mktemp("models") / "tiny", seed=0)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "rows" / "needle.jsonl"


def bench(*flags: str, **changes: object) -> Result:
    """`agentkv bench needle` with two needles of two lengths, and what is given instead."""
    values: dict[str, object] = {
        "policies": "full,window",
        "lengths": "300,700",
        "depths": "0,100",
        "needles": 2,
        "budget": None if "entries" in changes else 64,
        "chunk": 96,
        "device": "cpu",
        **changes,
    }
    values = {name: value for name, value in values.items() if value is not None}
    arguments = [part for name, value in values.items() for part in (f"--{name}", str(value))]
    return CliRunner().invoke(cli, ["bench", "needle", *flags, *arguments])


@pytest.fixture
def call(model: Path, out: Path) -> Call:
    def run(*flags: str, **changes: object) -> Result:
        return bench(*flags, **{"model": model, "out": out, **changes})

    return run


@pytest.fixture(scope="module")
def measurement(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, str]:
    """What `bench` printed and wrote."""
    out = tmp_path_factory.mktemp("rows") / "needle.jsonl"
    return bench(model=model, out=out), out.read_text()


@pytest.fixture
def measured(measurement: tuple[Result, str], out: Path) -> Entries:
    """The rows of that measurement, which lie at `out`."""
    out.parent.mkdir()
    out.write_text(measurement[1])
    return _rows(out)


def _rows(out: Path) -> Entries:
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_random_weights_find_nothing_and_rows_say_what_that_took(
    measurement: tuple[Result, str], measured: Entries
) -> None:
    result = measurement[0]
    assert result.exit_code == 0, result.output
    rows = {(row["length"], row["depth"], row["label"]): row for row in measured}
    assert list(rows) == [
        (length, depth, label)
        for length in (300, 700)
        for depth in (0, 100)
        for label in ("full", "window")
    ]
    for (length, depth, label), row in rows.items():
        assert row["num_found"] == 0 and row["share"] == 0 and row["found"] == [False, False]
        assert row["interval"] == pytest.approx([0, 0.6576], abs=1e-4)
        assert len(row["values"]) == len(row["answers"]) == row["num_needles"] == 2
        assert length - 40 < row["mean_tokens"] <= length
        assert row["end_bytes"] <= row["peak_bytes"]
        assert row["pages_sha256"] == rows[length, depth, "full"]["pages_sha256"]
        if label == "full":
            assert row["kept_rows"] >= row["mean_tokens"] > row["kept_rows"] - 96
            assert row["end_bytes"] >= row["mean_tokens"] * ROW_BYTES
        else:
            assert row["kept_rows"] == 64
            assert row["peak_bytes"] < rows[length, depth, "full"]["peak_bytes"]
        assert row["parameters"]["budget"] == (None if label == "full" else 64)
        assert row["settings"]["decoding"] == "constrained" and row["settings"]["chunk"] == 96
        assert row["command"] and row["device"] and row["versions"]["torch"] and row["weights"]
    # the page is not held as a whole: a window's peak is that of its chunks
    windows = [row["peak_bytes"] for row in rows.values() if row["label"] == "window"]
    assert max(windows) < 1.1 * min(windows)
    lines = result.output.rstrip().splitlines()
    assert all(len(line) <= 80 for line in lines[:-3]) and "…" not in result.output
    short = json.loads(lines[-1])
    assert short["bench"] == "needle" and len(short["rows"]) == 8


def test_what_is_there_is_not_measured_again(call: Call, out: Path, measured: Entries) -> None:
    lines = out.read_text().splitlines(keepends=True)
    # as if the run had been killed while its last row was written
    out.write_text("".join(lines[:-1]) + lines[-1][:50])
    result = call(depths="50,100", policies="window,full,int8")
    assert result.exit_code == 0, result.output
    after = _rows(out)
    assert after[:7] == measured[:7]
    assert [(row["length"], row["depth"], row["label"]) for row in after[7:]] == [
        (300, 50, "window"),
        (300, 50, "full"),
        (300, 50, "int8"),
        (300, 100, "int8"),
        (700, 50, "window"),
        (700, 50, "full"),
        (700, 50, "int8"),
        (700, 100, "window"),
        (700, 100, "int8"),
    ]
    assert after[14]["pages_sha256"] == measured[7]["pages_sha256"]


def test_a_fresh_run_overwrites_and_free_replies_count_alike(
    call: Call, out: Path, measured: Entries
) -> None:
    result = call("--fresh", lengths=300, depths=0, decoding="free", against="window")
    assert result.exit_code == 0, result.output
    assert [row["settings"]["decoding"] for row in _rows(out)] == ["free", "free"]
    assert [row["num_found"] for row in _rows(out)] == [0, 0]


@pytest.mark.parametrize(
    "changes",
    [
        {"policies": "full,lookback-int8", "question": "both"},
        {"kind": "several", "facts": 4, "asked": 3},
        {"kind": "chain", "hops": 1, "decoding": "free"},
    ],
)
def test_equal_commands_write_equal_rows_but_for_times(
    call: Call, out: Path, tmp_path: Path, changes: dict[str, object]
) -> None:
    some = {"lengths": 300, "depths": 50, "needles": 1, "entries": 128, **changes}
    again = tmp_path / "again.jsonl"
    for path in (out, again):
        result = call(**some, out=path)
        assert result.exit_code == 0, result.output
    first, second = ([_without_times(row) for row in _rows(path)] for path in (out, again))
    assert first and first == second


def _without_times(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in TIMES}


def test_nano_finds_a_needle_of_a_short_page_with_constrained_and_with_free_replies(
    call: Call, out: Path, tmp_path: Path
) -> None:
    some = {"model": "nano", "policies": "full", "lengths": 200, "depths": 50}
    free = tmp_path / "free.jsonl"
    assert call(**some).exit_code == call(**some, decoding="free", out=free).exit_code == 0
    for path in (out, free):
        (row,) = _rows(path)
        assert row["num_found"] == 2 and row["values_share"] == 1
        assert [[answer] for answer in row["answers"]] == row["values"]


def test_rows_say_kind_and_numbers_and_the_table_how_many_values_were_listed(
    call: Call, out: Path
) -> None:
    some = {"lengths": "300,400", "depths": 100, "kind": "several", "facts": 5, "asked": 2}
    several = call(**some)
    assert several.exit_code == 0, several.output
    rows = _rows(out)
    assert len(rows) == 4
    for row in rows:
        assert row["kind"] == "several" and row["kind_parameters"] == {"facts": 5, "asked": 2}
        assert all(len(values) == 2 for values in row["values"])
        assert 0 <= row["share"] <= row["values_share"] <= 1
    said = " ".join(several.output.split())
    assert "the codes of 2 of 5 names" in said and "values: percentage" in said
    assert all(len(line) <= 80 for line in several.output.splitlines()[:-3])
    chain = call("--fresh", lengths=300, depths=100, needles=1, kind="chain", hops=3)
    assert chain.exit_code == 0, chain.output
    assert "a code behind 3 hops" in " ".join(chain.output.split())
    assert {row["kind_parameters"]["hops"] for row in _rows(out)} == {3}


def test_entries_give_every_policy_the_bytes_of_a_window_and_so_does_a_budget_in_bytes(
    call: Call, out: Path, tmp_path: Path
) -> None:
    some = {"lengths": 400, "depths": 0, "needles": 1, "policies": "full,window,lookback-int8"}
    assert call(**some, entries=128).exit_code == 0
    rows = {row["label"]: row for row in _rows(out)}
    budget = rows["window"]["parameters"]["budget"]
    num_bytes = int(budget.removesuffix("B"))
    assert rows["full"]["parameters"]["budget"] is None
    assert 128 * ROW_BYTES <= num_bytes < 2 * 128 * ROW_BYTES
    assert rows["window"]["kept_rows"] == 128
    for label in ("window", "lookback-int8"):
        assert rows[label]["parameters"]["budget"] == budget
        assert rows[label]["end_bytes"] <= num_bytes
    assert rows["lookback-int8"]["cold_bytes"] > 0 == rows["window"]["cold_bytes"]
    in_bytes = tmp_path / "bytes.jsonl"
    assert call(**some, budget=budget, out=in_bytes).exit_code == 0
    assert [_without_times(row) for row in _rows(in_bytes)] == [
        _without_times(row) for row in _rows(out)
    ]


def test_quick_measures_fewer_places_and_what_is_given_wins(
    call: Call, out: Path, tmp_path: Path
) -> None:
    chosen = {"lengths": None, "depths": None, "needles": None}
    too_long = call("--quick", **chosen)
    assert too_long.exit_code == 2 and "--lengths 2048" in too_long.output
    assert call("--quick", **{**chosen, "lengths": 300, "needles": 1}).exit_code == 0
    assert {(row["length"], row["depth"], row["num_needles"]) for row in _rows(out)} == {
        (300, 0, 1),
        (300, 50, 1),
        (300, 100, 1),
    }


def test_both_places_of_the_question_have_rows_in_one_file_tables_and_maps(
    call: Call, out: Path, measured: Entries
) -> None:
    result = call(question="both")
    assert result.exit_code == 0, result.output
    after = _rows(out)[8:]
    assert _rows(out)[:8] == measured and {row["question"] for row in measured} == {"before"}
    assert [(row["question"], row["length"], row["depth"], row["label"]) for row in after] == [
        ("after", row["length"], row["depth"], row["label"]) for row in measured
    ]
    assert [row["values"] for row in after] == [row["values"] for row in measured]
    assert not {row["pages_sha256"] for row in after} & {row["pages_sha256"] for row in measured}
    said = " ".join(result.output.split())
    first, second = said.index("question before the page"), said.index("question after the page")
    assert first < second
    # lines of all lengths together follow, and maps show each policy by depth and length
    lines = [line.split() for line in result.output.splitlines()]
    found = [line for line in lines if line[:2] == ["all", "window"] and "0/8" in line]
    compared_with_full = [
        line for line in lines if line[:2] == ["all", "window"] and line[2][-1] in "KM"
    ]
    assert len(found) == len(compared_with_full) == 2
    rows = [NeedleRow(**row) for row in _rows(out)]
    titles = [re.findall(r"<text[^>]*>([^<]*)<", svg)[0] for svg in heat_maps(rows).svgs]
    assert titles == [
        f"{label}, question {question} the page"
        for question in ("before", "after")
        for label in ("full", "window")
    ]
    first = heat_maps([_with(row, [True, False]) for row in rows]).svgs[0]
    assert "in % at 300, 700 tokens; depth 0 %: 50, 50; depth 100 %: 50, 50" in first
    there = {(0, 300), (100, 700)}
    gaps = heat_maps([row for row in rows if (row.depth, row.length) in there]).svgs[0]
    assert "in % at 300, 700 tokens; depth 0 %: 0, –; depth 100 %: –, 0" in gaps


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "chain"}, "kind were 'one', now 'chain'"),
        ({"kind": "several"}, "kind were 'one', now 'several'"),
        ({"needles": 3}, "num_needles were 2, now 3"),
        ({"seed": 1}, "seed were 0, now 1"),
        ({"budget": 48}, "parameters of window were"),
        ({"decoding": "free"}, "settings were"),
    ],
)
def test_rows_that_could_not_be_compared_are_not_mixed(
    call: Call, out: Path, measured: Entries, changes: dict[str, object], message: str
) -> None:
    result = call(**changes)
    assert result.exit_code == 2 and message in " ".join(result.output.split()), result.output
    assert "--fresh" in result.output and _rows(out) == measured


def test_rows_of_other_weights_are_not_mixed_though_the_model_is_where_it_was(
    out: Path, call: Call, tmp_path: Path
) -> None:
    folder = tmp_path / "trained"
    some = {"lengths": 300, "depths": 0, "needles": 1, "model": folder}
    _save_model(folder, seed=1)
    assert call(**some).exit_code == 0
    _save_model(folder, seed=2)
    result = call(**some)
    assert result.exit_code == 2 and "weights were" in result.output, result.output


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model": "solution"},
            "is a script; give nano, smollm2, smollm2-web, a folder, a GGUF file or a hub id",
        ),
        ({"model": "nowhere"}, "unknown model 'nowhere'"),
        ({"policies": "full,gatd"}, "unknown policy 'gatd'; known: "),
        ({"policies": "full,snapkv", "budget": 16}, "16"),
        ({"question": "within"}, "'within' is not one of 'before', 'after'"),
        ({"against": "int8"}, "--against int8 is not among --policies full,window"),
        ({"lengths": "300,1100"}, "give at most 1088"),
        ({"lengths": "0"}, "--lengths must be 1 or more; found 0"),
        ({"lengths": "40,700"}, "--lengths 40: a question and"),
        ({"lengths": "long"}, "expected whole numbers, separated by commas"),
        ({"depths": "0,101"}, "--depths must be percentages, 0 to 100; found 0, 101"),
        ({"needles": 0}, "--needles"),
        ({"seed": 1_000_000}, "give 0 to 999999"),
        ({"decoding": "loose"}, "decoding"),
        ({"kind": "two"}, "'two' is not one of 'one', 'several', 'chain'"),
        ({"kind": "several", "facts": 25}, "--facts 25: expected 2 to 24"),
        ({"kind": "several", "asked": 9}, "--asked 9: expected 1 to 8, the number of --facts"),
        ({"kind": "chain", "hops": 0}, "--hops 0: expected 1 to 16"),
        ({"kind": "chain", "asked": 2}, "--asked belongs to --kind several; found --kind chain"),
        ({"hops": 2}, "--hops belongs to --kind chain; found --kind one"),
        ({"kind": "several", "facts": 24, "lengths": "700,300"}, "--lengths 300: a question and"),
        ({"kind": "chain", "hops": 16, "lengths": 300}, "--lengths 300: a question and"),
        ({"kind": "several", "lengths": 1080}, "give at most 1056"),
        ({"entries": 64, "budget": 64}, "give --entries or --budget; both set the budget"),
        ({"entries": 4, "policies": "full,snapkv"}, "a budget of 9248 bytes is too small: snapkv"),
        ({"entries": 0}, "--entries"),
    ],
)
def test_a_mistake_is_answered_before_anything_is_read(
    call: Call, out: Path, changes: dict[str, object], message: str
) -> None:
    result = call(**changes)
    assert result.exit_code == 2, result.output
    assert message in result.output and "Traceback" not in result.output
    assert not out.exists()


def test_a_file_of_something_else_is_left_alone(call: Call, out: Path) -> None:
    out.parent.mkdir()
    out.write_text("mine\n")
    result = call()
    assert result.exit_code == 2 and "line 1 is not a row of" in result.output
    assert out.read_text() == "mine\n"


def test_policies_are_compared_on_the_needles_both_were_given(measured: Entries) -> None:
    first, other, second, *_ = (NeedleRow(**row) for row in measured)
    full = [_with(first, [True, False]), _with(second, [True, True])]
    window = [_with(other, [True, True])]
    pairs = compared(full, window)
    assert (pairs.both, pairs.only_first, pairs.only_second, pairs.neither) == (1, 0, 1, 0)


def _with(row: NeedleRow, found: list[bool]) -> NeedleRow:
    changes = {"found": found, "num_found": sum(found), "share": sum(found) / len(found)}
    return NeedleRow(**{**json.loads(row.to_json()), **changes})


def test_help_fits_80_columns() -> None:
    said = CliRunner().invoke(cli, ["bench", "needle", "--help"]).output
    assert "--depths" in said and all(len(line) <= 80 for line in said.splitlines())
