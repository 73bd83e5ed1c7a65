"""Rows of `agentkv bench speed`."""

import json
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import pytest

from agentkv_tasks.bench.contenders import models as shapes_module
from agentkv_tasks.bench.contenders import prepare as ready_module
from agentkv_tasks.bench.contenders.models import SHAPES

LAYERS, HEADS, DIM, FLOAT = 2, 2, 16, 4
"""The tiny shape."""

Entries = list[dict[str, Any]]
Measure = Callable[..., tuple[Entries, str]]


@pytest.mark.slow
def test_every_cache_has_a_row_at_every_length_and_batch(measure: Measure) -> None:
    rows, said = measure("full", "conf-kv-int8", "ada-snapkv", lengths=(40, 150), batches=(1, 3))
    labels = ["transformers", "full", "conf-kv-int8", "ada-snapkv"]
    expected = [(batch, seen, label) for batch in (1, 3) for seen in (40, 150) for label in labels]
    assert [(row["batch"], row["seen"], row["label"]) for row in rows] == expected
    for row in rows:
        kept = 64 if row["label"] in labels[2:] and row["seen"] == 150 else row["seen"]
        assert row["kept_rows"] == kept
        assert row["num_tokens"] == 3 and len(row["round_p50_ms"]) == row["num_rounds"] == 2
        assert 0 < row["p20_ms"] <= row["p50_ms"] <= row["p80_ms"]
        assert set(row["split_ms"]) == {"attention", "bookkeeping", "compaction", "model"}
        # something was charged to the kernels, wherever the cache calls them
        assert row["split_parts_ms"]["attention"] > 0
        keeping = row["split_ms"]["bookkeeping"] + row["split_ms"]["compaction"]
        assert 0 < row["keeping_share"] == pytest.approx(keeping / sum(row["split_ms"].values()))
        assert row["checked"]["logits"] < 1e-4
        assert row["command"] and row["device"] and row["versions"]["torch"] == version("torch")
        if row["label"] == "transformers":
            full = 2 * LAYERS * HEADS * DIM * FLOAT * row["seen"] * row["batch"]
            assert row["live_bytes"] == full and row["peak_bytes"] is None
            assert (row["attention"], row["ratio"]) == ("sdpa", 1.0)
        else:
            assert row["checked"]["attention"] < 1e-5
            assert row["attention"] in ("numba", "torch")
            assert row["peak_bytes"] >= row["live_bytes"] > 0
    lines = said.rstrip().splitlines()
    assert max(map(len, lines[:-2])) <= 80 and "…" not in "".join(lines)
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


@pytest.mark.slow
def test_a_model_with_sinks_windows_and_experts_is_timed_against_eager_attention(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = {**SHAPES["tiny"][1], "num_local_experts": 4, "sliding_window": 24}
    shapes = {**SHAPES, "tiny-oss": (SHAPES["gpt-oss-20b"][0], tiny)}
    for module in (shapes_module, ready_module):
        monkeypatch.setattr(module, "SHAPES", shapes)
    rows, said = measure("full", "conf-kv", "ada-snapkv", shape="tiny-oss", against=("quantized",))
    found = {row["label"]: row for row in rows}
    assert found["transformers"]["attention"] == "eager" and "DynamicCache, eager" in said
    assert found["transformers"]["split_parts_ms"]["attention"] > 0
    assert all(row["checked"]["logits"] < 1e-4 for row in rows)
    assert "quantized-fp8: left out" in said  # it knows no windows


@pytest.mark.slow
def test_ratios_are_those_of_the_same_rounds(measure: Measure) -> None:
    rows, _ = measure("window", num_rounds=3)
    base, ours = (row["round_p50_ms"] for row in rows)
    ratios = sorted(b / a for a, b in zip(base, ours, strict=True))
    assert rows[1]["ratio"] == pytest.approx(ratios[1])
    assert (rows[1]["ratio_least"], rows[1]["ratio_most"]) == pytest.approx((ratios[0], ratios[2]))


@pytest.mark.slow
def test_rows_of_quantised_caches_say_how_far_they_were_from_the_original(
    measure: Measure,
) -> None:
    rows, said = measure("int8", "nf4", against=("quantized", "kvpress"), num_split_rounds=0)
    found = {row["label"]: row for row in rows}
    assert 0 < found["int8"]["checked"]["quantised"] < 0.03
    assert 0.03 < found["nf4"]["checked"]["quantised"] < 0.25
    assert not found["int8"]["split_ms"] and found["int8"]["keeping_share"] is None
    for name in ("quantized-fp8", "quantized-quanto", "quantized-hqq", "kvpress"):
        assert any(label.startswith(name) for label in found) or f"{name}: left out" in said


def test_every_step_has_its_parts(measure: Measure) -> None:
    rows, _ = measure("h2o", "conf-kv")
    for row in rows:
        parts = row["split_parts_ms"]
        assert parts["attention"] > 0 and parts["model"] > 0 and parts["bookkeeping"] > 0
        assert ("compaction" in parts) == (row["label"] != "transformers")
