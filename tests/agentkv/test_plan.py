"""Tests for `agentkv plan`: what it says against what caches and weights then take."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

import agentkv
from agentkv.cache.hf.families import describe
from agentkv.models.find import ModelError
from agentkv.plan import memory_of, plan_cache, plan_caches, plan_model
from agentkv.policies.entries import PolicyError
from agentkv.policies.recall import LookBack, Unsure
from agentkv_tasks.cli.app import cli
from agentkv_tasks.settings import RunSettings
from tests.agentkv.cache.every_family import tiny

NUM_TOKENS, CHUNK, BUDGET = 900, 32, 320
POLICIES = ("full", "int8", "int4", "window", "streaming-int8", "lookback", "lookback-int8", "h2o")
POLICIES += ("conf-kv-int8", "pyramidkv", "arkv", "tova")

SIZES: dict[str, int] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def save(model: Any, folder: Path) -> Path:
    """Write a model folder with a tokenizer of no words."""
    model.save_pretrained(folder)
    Tokenizer(BPE()).save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        **SIZES,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def gemma() -> Gemma3ForCausalLM:
    """A model whose first layers see a window of 100 tokens."""
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        **SIZES,
        head_dim=8,
        sliding_window=100,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
    )
    return Gemma3ForCausalLM(config).eval()


@torch.no_grad()
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("family", ["llama", "gemma"])
def test_a_cache_takes_what_was_planned(
    request: pytest.FixtureRequest, tmp_path: Path, family: str, policy: str
) -> None:
    model = request.getfixturevalue(family)
    settings = RunSettings.read(
        model=str(save(model, tmp_path)), policies=(policy,), budget=BUDGET, chunk=CHUNK
    )
    [plan] = plan_caches(settings, plan_model(settings), num_tokens=NUM_TOKENS, memory=1 << 30)
    budget = None if policy in ("full", "int8", "int4") else BUDGET
    cache = agentkv.Cache.for_model(
        model, policy=policy, budget=budget, dtype="bfloat16", chunk=CHUNK
    )
    cache.feed(model, torch.randint(64, (1, NUM_TOKENS)))
    # A plan allows for a block of 64 unused entries in each table, which matters here alone.
    unused = 3 * 2 * 64 * 200
    assert cache.nbytes <= plan.resting_nbytes <= 1.3 * cache.nbytes + unused
    assert cache.peak_nbytes <= 1.05 * plan.peak_nbytes <= 1.4 * cache.peak_nbytes + unused
    assert plan.keeps_all == (budget is None)
    if policy.startswith("lookback"):
        assert plan.cold_nbytes <= cache.cold_nbytes <= 1.3 * plan.cold_nbytes + unused
        cold = cache.cold_nbytes + cache.index_nbytes
        assert cold <= plan.most_cold_nbytes <= 2 * cold + unused
    else:
        assert plan.cold_nbytes == plan.most_cold_nbytes == cache.cold_nbytes == 0


@torch.no_grad()
@pytest.mark.parametrize("format", ["int4", "dense"])
def test_a_bounded_cold_tier_takes_no_more_than_was_planned(
    llama: LlamaForCausalLM, format: str
) -> None:
    policy = agentkv.policy("lookback-int4", cold=300, format=format)
    shape = describe(llama)
    for num_tokens in (BUDGET + 100, NUM_TOKENS):
        plan = plan_cache(policy, BUDGET, shape, num_tokens=num_tokens, chunk=CHUNK)
        cache = agentkv.Cache.for_model(llama, policy=policy, budget=BUDGET, chunk=CHUNK)
        cache.feed(llama, torch.randint(64, (1, num_tokens)))
        held = [layer.cold.storage.counts for layer in cache.cache_layers if layer.cold]
        assert cache.cold_nbytes + cache.index_nbytes <= plan.most_cold_nbytes
        if num_tokens == NUM_TOKENS:
            assert 0.8 * plan.cold_nbytes < cache.cold_nbytes <= plan.cold_nbytes
            assert all(250 < count <= 300 for counts in held for count in counts)
        else:
            assert plan.cold_nbytes <= cache.cold_nbytes
    unbounded = plan_cache(
        agentkv.policy("lookback-int4", format=format),
        BUDGET,
        shape,
        num_tokens=NUM_TOKENS,
        chunk=CHUNK,
    )
    assert unbounded.cold_nbytes * 300 == plan.cold_nbytes * (NUM_TOKENS - unbounded.num_entries)


@torch.no_grad()
@pytest.mark.parametrize("name", ["conf-kv", "conf-kv-int8", "pyramidkv"])
def test_what_is_cold_below_the_budget_is_planned(llama: LlamaForCausalLM, name: str) -> None:
    options = {} if name == "pyramidkv" else {"threshold": 0.0}
    recall = LookBack(Unsure(0.0), format="dense")
    policy = replace(agentkv.policy(name, **options), recall=recall)
    for num_tokens in (100, 300, 320):
        plan = plan_cache(policy, BUDGET, describe(llama), num_tokens=num_tokens, chunk=CHUNK)
        cache = agentkv.Cache.for_model(llama, policy=policy, budget=BUDGET, chunk=CHUNK)
        cache.feed(llama, torch.randint(64, (1, num_tokens)))
        assert cache.cold_nbytes + cache.index_nbytes <= plan.most_cold_nbytes
    assert name == "pyramidkv" or cache.cold_nbytes


@torch.no_grad()
@pytest.mark.parametrize("policy", ["int8", "window"])
def test_keys_that_layers_share_are_counted_once(tmp_path: Path, policy: str) -> None:
    model = tiny("gemma3n_text")
    folder = str(save(model, tmp_path))
    settings = RunSettings.read(model=folder, policies=(policy,), budget=BUDGET, chunk=CHUNK)
    [plan] = plan_caches(settings, plan_model(settings), num_tokens=NUM_TOKENS, memory=1 << 30)
    budget = None if policy == "int8" else BUDGET
    cache = agentkv.Cache.for_model(
        model, policy=policy, budget=budget, dtype="bfloat16", chunk=CHUNK
    )
    cache.feed(model, torch.randint(64, (1, NUM_TOKENS)))
    unused = 2 * 2 * 64 * 200
    assert cache.nbytes <= plan.resting_nbytes <= 1.3 * cache.nbytes + unused
    assert cache.peak_nbytes <= 1.05 * plan.peak_nbytes <= 1.4 * cache.peak_nbytes + unused
    output = CliRunner().invoke(cli, ["plan", folder]).output
    assert (
        "3 of 5 layers attend to the keys and values of 2 others, which are stored once" in output
    )


@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16"])
def test_weights_are_counted_in_the_dtype_that_is_loaded(
    llama: LlamaForCausalLM, tmp_path: Path, dtype: str
) -> None:
    folder = save(llama, tmp_path)
    settings = RunSettings.read(model=str(folder), dtype=dtype, device="cpu")
    expected = sum(part.numel() for part in llama.parameters())
    assert plan_model(settings).weights_nbytes == expected * (2 if dtype == "bfloat16" else 4)


@pytest.mark.parametrize("policy", ["full", "int4", "window", "lookback-int8"])
def test_what_fits_is_the_most_that_fits(
    llama: LlamaForCausalLM, tmp_path: Path, policy: str
) -> None:
    folder, memory = str(save(llama, tmp_path)), 800_000 if policy == "lookback-int8" else 200_000

    def peak(budget: int | None, num_tokens: int) -> int:
        settings = RunSettings.read(
            model=folder, policies=(policy,), budget=budget, chunk=CHUNK, device="cpu"
        )
        [plan] = plan_caches(settings, plan_model(settings), num_tokens=num_tokens, memory=memory)
        return plan_model(settings).weights_nbytes + plan.peak_nbytes + plan.cold_nbytes

    settings = RunSettings.read(
        model=folder, policies=(policy,), budget=BUDGET, chunk=CHUNK, device="cpu"
    )
    [plan] = plan_caches(settings, plan_model(settings), num_tokens=5000, memory=memory)
    if plan.keeps_all:
        assert peak(None, plan.most) <= memory < peak(None, plan.most + 1)
    else:
        assert peak(plan.most, 5000) <= memory < peak(plan.most + 1, 5000)
    [none] = plan_caches(settings, plan_model(settings), num_tokens=5000, memory=1000)
    assert none.most == 0


def test_a_budget_below_what_a_policy_needs_is_not_offered(tmp_path: Path) -> None:
    settings = RunSettings.read(model="nano", policies=("streaming-int8",), budget=512)
    model = plan_model(settings)
    [plan] = plan_caches(settings, model, num_tokens=200, memory=8 << 30)
    assert plan.most == 256  # its sinks, though fewer tokens come


def test_weights_beside_those_that_are_loaded_do_not_count(
    llama: LlamaForCausalLM, tmp_path: Path
) -> None:
    settings = RunSettings.read(model=str(save(llama, tmp_path)))
    before = plan_model(settings)
    (tmp_path / "consolidated.safetensors").write_bytes(
        (tmp_path / "model.safetensors").read_bytes()
    )
    assert plan_model(settings) == before


def test_a_wrong_model_memory_or_budget_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="unknown model 'nanno'"):
        plan_model(RunSettings.read(model="nanno"))
    with pytest.raises(PolicyError, match="such as 24GiB; found '25%'"):
        memory_of("cpu", "25%")
    settings = RunSettings.read(model="nano", policies=("streaming-int8",), budget=100)
    with pytest.raises(PolicyError, match="256 sinks"):
        plan_caches(settings, plan_model(settings), num_tokens=100, memory=1 << 30)


def test_the_memory_of_the_machine_is_the_default() -> None:
    assert memory_of("cpu", "1.5GiB") == 3 << 29
    assert memory_of("cpu") > 1 << 28


def test_the_command_prints_a_table_that_fits_80_columns() -> None:
    result = CliRunner().invoke(
        cli, ["plan", "nano", "--tokens", "30000", "--memory", "64MiB", "--device", "cpu"]
    )
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[0] == "nano: weights 24.0 MiB in float32, 32,768 positions"
    assert lines[1].endswith("dense entries in bfloat16, sizes in MiB:")
    assert not any(unit in line for line in lines[2:6] for unit in ("KiB", "MiB", "GiB"))
    assert [line.split()[0] for line in lines[3:6]] == ["full", "int4", "lookback-int8"]
    assert lines[3].rstrip().endswith("tokens") and "budget" in lines[5]


def test_the_command_says_what_happens_beyond_the_positions_of_the_model() -> None:
    given = ["plan", "nano", "--policies", "full,window,lookback-int8", "--device", "cpu"]
    lines = CliRunner().invoke(cli, [*given, "--tokens", "40000"]).output.splitlines()
    first = lines.index("40,000 tokens are more than the 32,768 positions of the model:")
    assert lines[first + 1] == (
        "  full: ends after 32,768 tokens, because the policy keeps every token"
    )
    assert lines[first + 2] == "  window, lookback-int8: goes on, with positions numbered anew"
    assert "positions of the model" not in CliRunner().invoke(cli, given).output


def test_on_a_cpu_cold_entries_count_in_all_and_in_what_fits(
    llama: LlamaForCausalLM, tmp_path: Path
) -> None:
    settings = RunSettings.read(
        model=str(save(llama, tmp_path)), policies=("lookback",), budget=BUDGET, device="cpu"
    )
    model = plan_model(settings)
    (plan,) = plan_caches(settings, model, num_tokens=2000, memory=1 << 30)
    assert plan.cold_nbytes > 0
    needed = model.weights_nbytes + plan.peak_nbytes + plan.cold_nbytes
    (fits,) = plan_caches(settings, model, num_tokens=2000, memory=needed)
    (lacks,) = plan_caches(settings, model, num_tokens=2000, memory=needed - plan.cold_nbytes // 2)
    assert lacks.most < BUDGET <= fits.most


def test_the_command_names_a_wrong_option_in_one_line() -> None:
    result = CliRunner().invoke(cli, ["plan", "--dtype", "float8"])
    assert result.exit_code == 2
    assert "dtype" in result.output and len(result.output.splitlines()) == 1
