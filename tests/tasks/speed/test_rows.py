"""Rows of `agentkv bench speed`."""

import json
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import pytest

from agentkv.cache.hf.forward import COMPILED
from agentkv_kernels.device import preferring
from agentkv_tasks.bench.contenders import models as shapes_module
from agentkv_tasks.bench.contenders import prepare as ready_module
from agentkv_tasks.bench.contenders.models import SHAPES

LAYERS, HEADS, DIM, FLOAT = 2, 2, 16, 4
"""The tiny shape."""

Entries = list[dict[str, Any]]
Measure = Callable[..., tuple[Entries, str]]


@pytest.mark.slow
def test_every_cache_has_a_row_at_every_length_and_batch(measure: Measure) -> None:
    rows, said = measure("full", "conf-kv-int8", lengths=(40, 150), batches=(1, 3))
    labels = ["transformers", "full", "conf-kv-int8"]
    expected = [(batch, seen, label) for batch in (1, 3) for seen in (40, 150) for label in labels]
    assert [(row["batch"], row["seen"], row["label"]) for row in rows] == expected
    for row in rows:
        kept = 64 if row["label"] in labels[2:] and row["seen"] == 150 else row["seen"]
        assert row["kept_rows"] == kept
        assert row["num_tokens"] == 3 and len(row["round_p50_ms"]) == row["num_rounds"] == 2
        assert 0 < row["p20_ms"] <= row["p50_ms"] <= row["p80_ms"] <= row["p99_ms"]
        if row["decoding"] == COMPILED:
            assert set(row["split_ms"]) == {"step", "python", "compaction"}
            assert row["split_parts_ms"]["step"] > 0 and row["keeping_share"] is None
        else:
            split = row["split_ms"]
            assert set(split) == {"attention", "bookkeeping", "compaction", "model"}
            # something was charged to the kernels, wherever the cache calls them
            assert row["split_parts_ms"]["attention"] > 0
            keeping = split["bookkeeping"] + split["compaction"]
            assert 0 < row["keeping_share"] == pytest.approx(keeping / sum(split.values()))
        assert row["checked"]["logits"] < 1e-4
        assert row["command"] and row["device"] and row["versions"]["torch"] == version("torch")
        if row["label"] == "transformers":
            full = 2 * LAYERS * HEADS * DIM * FLOAT * row["seen"] * row["batch"]
            assert row["live_bytes"] == full and row["peak_bytes"] is None
            assert (row["attention"], row["ratio"]) == ("sdpa", 1.0)
            assert row["decoding"] == "transformers"
        else:
            assert row["checked"]["attention"] < 1e-5
            assert (row["decoding"] == COMPILED) == ("step" in row["checked"])
            assert row["attention"] in ("numba", "torch")
            assert row["peak_bytes"] >= row["live_bytes"] > 0
    lines = said.rstrip().splitlines()
    assert max(map(len, lines[:-3])) <= 80 and "…" not in "".join(lines)
    short = json.loads(lines[-1])
    assert [each["label"] for each in short["rows"]] == [row["label"] for row in rows]
    assert all(f"batch {batch}" in said for batch in (1, 3)) and "tiny (random weights)" in said
    heads = [line.split() for line in lines if line.split()[:2] == ["seen", "cache"]]
    assert ["seen", "cache", "1", "3"] in heads  # tokens a second by batch


@pytest.mark.slow
def test_a_static_cache_is_timed_with_room_for_what_is_read(measure: Measure) -> None:
    rows, said = measure("full", lengths=(40, 150), batches=(2,), against=("static",))
    found = {(row["label"], row["seen"]): row for row in rows}
    for seen in (40, 150):
        row = found["static", seen]
        room = seen + 2 + 3  # and the steps that warm up and that are timed
        counters = 8 * LAYERS  # each layer counts what it has read
        assert row["live_bytes"] == 2 * LAYERS * 2 * HEADS * DIM * FLOAT * room + counters
        assert row["kept_rows"] == seen and row["checked"]["logits"] < 1e-4
        assert row["attention"] == "sdpa" and row["split_parts_ms"]["attention"] > 0
    assert "static" in said


@pytest.mark.exhaustive
def test_a_model_with_sinks_windows_and_experts_is_timed_against_eager_attention(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = {**SHAPES["tiny"][1], "num_local_experts": 4, "sliding_window": 24}
    shapes = {**SHAPES, "tiny-oss": (SHAPES["gpt-oss-20b"][0], tiny)}
    for module in (shapes_module, ready_module):
        monkeypatch.setattr(module, "SHAPES", shapes)
    rows, said = measure("full", "conf-kv", "ada-snapkv", shape="tiny-oss", against=("quantized",))
    found = {row["label"]: row for row in rows}
    assert found["transformers"]["attention"] == "eager"
    assert "DynamicCache, eager" in " ".join(said.split())  # wherever the line was wrapped
    assert found["transformers"]["split_parts_ms"]["attention"] > 0
    assert all(row["checked"]["logits"] < 1e-4 for row in rows)
    assert "transformers fp8: left out" in said  # it knows no windows


@pytest.mark.exhaustive
def test_ratios_are_those_of_the_same_rounds(measure: Measure) -> None:
    rows, _ = measure("window", num_rounds=3)
    base, ours = (row["round_p50_ms"] for row in rows)
    ratios = sorted(b / a for a, b in zip(base, ours, strict=True))
    assert rows[1]["ratio"] == pytest.approx(ratios[1])
    assert (rows[1]["ratio_least"], rows[1]["ratio_most"]) == pytest.approx((ratios[0], ratios[2]))


@pytest.mark.exhaustive
def test_rows_of_quantised_caches_say_how_far_they_were_from_the_original(
    measure: Measure,
) -> None:
    rows, said = measure("int8", "nf4", against=("quantized", "kvpress"), num_split_rounds=0)
    found = {row["label"]: row for row in rows}
    assert 0 < found["int8"]["checked"]["quantised"] < 0.03
    assert 0.03 < found["nf4"]["checked"]["quantised"] < 0.25
    assert not found["int8"]["split_ms"] and found["int8"]["keeping_share"] is None
    for name in ("transformers fp8", "quanto int4", "quanto int8", "hqq int8", "kvpress-snapkv"):
        assert name in found or f"{name}: left out" in said


@pytest.mark.exhaustive
def test_a_step_has_the_parts_of_the_way_that_was_timed(
    measure: Measure,
) -> None:
    pytest.importorskip("numba")
    rows, said = measure("h2o", "conf-kv")
    assert [row["decoding"] for row in rows] == ["transformers", COMPILED, COMPILED]
    assert rows[0]["split_ms"].keys() == {"attention", "bookkeeping", "compaction", "model"}
    assert rows[0]["split_parts_ms"].keys() == {"attention", "bookkeeping", "model"}
    for row in rows[1:]:
        assert row["split_ms"].keys() == {"step", "python", "compaction"}
        assert all(ms > 0 for ms in row["split_ms"].values())
    assert f"Steps of agentkv: {COMPILED}." in " ".join(said.split())
    with preferring("torch"):
        rows, said = measure("h2o", "conf-kv", fresh=True)
    for row in rows[1:]:
        assert row["decoding"].startswith("transformers: ")
        assert row["split_parts_ms"].keys() == {"attention", "bookkeeping", "compaction", "model"}
        assert row["checked"].keys() == {"logits", "most_logits", "quantised", "attention"}


def test_every_round_reads_a_page_if_asked_to(measure: Measure) -> None:
    rows, said = measure("window", num_page=20, num_split_rounds=0)
    assert [row["num_page"] for row in rows] == [20, 20]
    assert rows[0]["page_ratio"] == 1.0 and rows[0]["page_ms"] > 0
    assert rows[1]["page_ratio"] > 0 and rows[1]["page_ms"] > 0
    assert "page: ms to read 20 tokens" in " ".join(said.split())
    assert "looks:" not in said  # nothing looked back


def test_rows_say_which_share_of_the_timed_tokens_looked_back(measure: Measure) -> None:
    rows, said = measure("window", "lookback-int8", num_split_rounds=0)
    assert [row["look_share"] for row in rows[:2]] == [None, None]
    # a model with random weights is unsure of every token
    assert rows[2]["look_share"] == 1.0 and rows[2]["cold_bytes"] > 0 == rows[1]["cold_bytes"]
    assert "looks: share of the timed tokens that looked back" in " ".join(said.split())
    assert all(row["page_ms"] is None and row["page_ratio"] is None for row in rows)
    assert "tokens after those seen" not in " ".join(said.split())  # no page was read


def test_entries_are_stored_in_the_dtype_that_was_asked_for(measure: Measure) -> None:
    whole, _ = measure("full", num_split_rounds=0)
    half, _ = measure("full", num_split_rounds=0, cache_dtype="bfloat16", fresh=True)
    assert [row["settings"]["cache_dtype"] for row in (*whole, *half)] == [
        *("model", "model"),
        *("bfloat16", "bfloat16"),
    ]
    # positions take as much as before
    saved = whole[1]["live_bytes"] - half[1]["live_bytes"]
    assert saved >= 2 * LAYERS * HEADS * DIM * 150 * (FLOAT - 2)
    assert half[0]["live_bytes"] == whole[0]["live_bytes"]
    # more than float32 rounds, and less than half a hundredth
    assert whole[1]["checked"]["logits"] < 1e-4 < half[1]["checked"]["logits"] < 0.05
