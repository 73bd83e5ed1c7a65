"""Every policy: the bytes are those of the arithmetic, held at rest, and bounded on the way."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import agentkv
from agentkv.cache.storage.sizes import resting_bytes
from tests.agentkv.cache.policies_under_test import BOUNDED, CASES, PROMPT, PUBLISHED
from tests.sampling import sampled

HEADS, WIDTH, QUERY_HEADS = 2, 8, 4
# of a row and head: bytes of its codes, of its scales, of its block id; of a block's scales
CODED = {
    "int8": (WIDTH, 0, 4, WIDTH),
    "int8-max": (WIDTH, 0, 4, 2 * WIDTH),
    "fp8": (WIDTH, 1, 0, 0),
    "int4": (WIDTH // 2, 2, 0, 0),
    "nf4": (WIDTH // 2, 2, 0, 0),
}


def run(model, cache, ids, num_decoded):
    logits = cache.feed(model, ids)
    for _ in range(num_decoded):
        with torch.no_grad():
            logits = model(logits.argmax(-1, keepdim=True), past_key_values=cache).logits[:, -1]
        cache.apply_gate(logits)
        cache.check()


def rooms(table):
    """Entries there is memory for, in all lanes together."""
    return table.tensors[0].shape[0] // table.fields[0].heads


@torch.no_grad()
@pytest.mark.parametrize("name", sampled(CASES, every=6))
def test_bytes_are_those_of_the_entries_their_capacity_and_what_is_known_of_them(
    llama, cache_for, tokens, name
):
    case = CASES[name]
    cache = cache_for(llama, policy=case.make(), budget=case.budget)
    run(llama, cache, tokens(2, PROMPT), 5)
    heads = HEADS if case.heads == "shared" else 1
    total = 0
    for layer, store in enumerate(cache.cache_layers):
        about, dense, *coded = [
            table for name, table in store.storage.tables.items() if "queries" not in name
        ]
        num_rows = sum(len(head) for row in cache.kept(layer) for head in row) // heads
        num_segments = 2 * HEADS // heads
        assert num_rows <= rooms(about) <= num_rows + 64 * num_segments
        total += rooms(about) * (4 + case.tracked + 4 * heads * case.norms)
        total += rooms(dense) * 2 * heads * WIDTH * 4
        num_coded = 0
        if coded:
            codes, scales, block_id, block = CODED[case.format]
            num_coded = sum(store.storage.num_quantized)
            total += rooms(coded[0]) * (2 * heads * (codes + scales) + block_id)
            assert num_coded <= rooms(coded[0]) <= num_coded + 64 * num_segments
            if block:
                total += rooms(coded[1]) * 2 * heads * block
        assert num_rows - num_coded <= rooms(dense) <= num_rows - num_coded + 64 * num_segments
        windows = [table for name, table in store.storage.tables.items() if "queries" in name]
        assert len(windows) == (case.phases if case.window else 0)
        for window in windows:
            # one phase may have had fewer tokens than its window has room for
            assert 2 * case.window <= rooms(window) * case.phases
            assert rooms(window) <= 2 * (case.window + 16)
            total += rooms(window) * (QUERY_HEADS * WIDTH * 4 + 4)
    assert cache.nbytes == total
    assert (case.format is None) == (
        not any(sum(s.storage.num_quantized) for s in cache.cache_layers)
    )


@torch.no_grad()
@pytest.mark.parametrize("name", sampled(BOUNDED, every=8, first=2))
def test_what_goes_gives_its_memory_back(llama, cache_for, tokens, name):
    case = CASES[name]
    cache = cache_for(llama, policy=case.make(), budget=case.budget, prefill="whole")
    full = cache_for(llama, policy="full", prefill="whole")
    ids = tokens(1, 600)
    cache.feed(llama, ids)
    full.feed(llama, ids)
    tables = [table for layer in cache.cache_layers for table in layer.storage.tables.values()]
    held = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for table in tables
        for tensor in table.tensors
    }
    assert cache.nbytes == sum(held.values()) < full.nbytes / 2
    fitted = case.make().fitted(case.budget)
    assert cache.nbytes <= resting_bytes(fitted, cache.geometry, 1)
    # layers evict one after another: the last was whole when the others had shrunk
    assert full.nbytes / 4 < cache.peak_nbytes < full.nbytes * 0.75


@pytest.mark.parametrize(
    "name", sampled((name for name in BOUNDED if name in PUBLISHED), every=4, first=1)
)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.sample("values")
def test_a_budget_in_bytes_holds_at_rest_and_is_used(llama, cache_for, tokens, name, batch):
    case = CASES[name]
    cache = cache_for(llama, policy=case.make(), budget="300KiB")
    ids = tokens(batch, 700 if batch == 1 else 350)
    run(llama, cache, ids, 2)
    assert cache.nbytes <= 300 * 1024
    for num_tokens in (30, 1, 60):
        with torch.no_grad():
            llama(ids[:, :num_tokens], past_key_values=cache)
        cache.check()
        assert cache.nbytes <= 300 * 1024
    larger = case.make().fitted(cache.fitted.gate.ceiling + 1)
    assert resting_bytes(larger, cache.geometry, batch) > 300 * 1024


@torch.no_grad()
@pytest.mark.parametrize(
    "name",
    sampled(["window", "h2o", "ada-snapkv", "arkv", "edie-tada", "conf-kv-l"], every=3, first=2),
)
def test_a_budget_in_bytes_is_shared_anew_when_sequences_come_and_go(
    llama, cache_for, tokens, tmp_path, name
):
    budget, case = 600 * 1024, CASES[name]
    cache = cache_for(llama, policy=case.make(), budget="600KiB")

    def is_kept(batch):
        cache.check()
        fresh = cache_for(llama, policy=case.make(), budget="600KiB")
        fresh.feed(llama, tokens(batch, 20))
        assert cache.fitted.gate.ceiling == fresh.fitted.gate.ceiling
        return cache.nbytes <= budget

    def goes_on(batch, seed):
        for count in (60, 1, 1):
            llama(tokens(batch, count, seed=seed), past_key_values=cache)
            assert is_kept(batch)

    cache.feed(llama, tokens(2, 700))
    used, peak = cache.nbytes, cache.peak_nbytes
    cache.batch_repeat_interleave(3)
    # at once, and before anything is copied
    assert is_kept(6) and cache.peak_nbytes <= max(peak, budget * 1.5)
    goes_on(6, 1)
    cache.save(tmp_path / "cache")
    assert agentkv.Cache.load(tmp_path / "cache", llama).fitted == cache.fitted
    cache.batch_select_indices(torch.tensor([5]))
    assert is_kept(1) and cache.nbytes < used / 2
    goes_on(1, 2)
    cache.feed(llama, tokens(1, 900, seed=3))
    assert is_kept(1) and cache.nbytes > used / 2, "what the others had is used"
    cache.reorder_cache(torch.tensor([0, 0]))
    assert is_kept(2)
    goes_on(2, 4)


def test_sequences_that_a_budget_in_bytes_cannot_hold_are_refused_before_anything_changes(
    llama, cache_for, tokens
):
    cache = cache_for(llama, policy=CASES["ada-snapkv"].make(), budget="200KiB")
    cache.feed(llama, tokens(1, 300))
    kept = [heads.tolist() for heads in cache.kept(2)[0]]
    with pytest.raises(agentkv.PolicyError, match="too small: .* for this model and a batch of 50"):
        cache.batch_repeat_interleave(50)
    assert cache.batch_size == 1 and [heads.tolist() for heads in cache.kept(2)[0]] == kept
    cache.check()
    cache.feed(llama, tokens(1, 30))
    assert cache.nbytes <= 200 * 1024


WITH_INTERVAL = [
    name
    for name, case in PUBLISHED.items()
    if "interval" in case.make().parameters or not case.is_bounded
]


@pytest.mark.parametrize("name", sampled(WITH_INTERVAL, every=4))
def test_a_budget_in_bytes_is_refused_where_it_cannot_hold(llama, cache_for, tokens, name):
    parameters = CASES[name].make().parameters
    if CASES[name].is_bounded:
        parameters = {**parameters, "interval": 3}
    policy = agentkv.policy(name, **parameters)
    with pytest.raises(agentkv.PolicyError, match="bytes|leave the budget out"):
        cache_for(llama, policy=policy, budget="300KiB").feed(llama, tokens(1, 5))


@torch.no_grad()
@pytest.mark.parametrize("name", sampled(BOUNDED, every=8, first=3))
def test_chunks_bound_the_peak(llama, cache_for, tokens, name):
    case = CASES[name]
    cache = cache_for(llama, policy=case.make(), budget=case.budget, chunk=100)
    cache.feed(llama, tokens(1, 1000))
    fitted = case.make().fitted(case.budget)
    rest = resting_bytes(fitted, cache.geometry, 1)
    # one layer has a chunk more than at rest, and at the last moment room for a block in each lane,
    # or a field twice
    row = HEADS * (4 + case.tracked + 2 * WIDTH * 4 + 4 * case.norms)
    assert cache.peak_nbytes <= rest + (100 + 2 * 64) * row


@torch.no_grad()
def test_a_prompt_of_8k_tokens_never_holds_more_than_the_budget_and_a_chunk(cache_for, tokens):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=96, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, max_position_embeddings=10_000,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    cache = cache_for(model, policy="conf-kv-int8", budget=512, chunk=512)
    ids, most = tokens(1, 8 * 1024), []
    # what the layer hands on is computed once it holds the chunk, and before rows go
    model.model.layers[0].self_attn.o_proj.register_forward_pre_hook(
        lambda *_: most.append(cache.cache_layers[0].storage.counts[0])
    )
    cache.feed(model, ids)
    lanes = cache.cache_layers[0].storage
    assert cache.seen == 8 * 1024 and len(most) == 16
    assert max(most) <= 512 + 512
    dense, coded, block, about = 2 * 8 * 4, 2 * 8 + 4, 2 * 8, 4 + 4
    recent = 256 + 63
    rest = (512 - recent) * coded + 2 * -(-512 // 64) * block + recent * dense + 512 * about
    chunk = 512 * (dense + about)
    room = 64 * (dense + coded + about)
    # keys or values are there twice while rows that went give their memory back
    twice = (512 + 64) * 8 * 4
    assert cache.nbytes <= rest + room
    assert cache.peak_nbytes <= rest + chunk + room + twice
    assert lanes.num_quantized[0] >= 64
    assert cache.peak_nbytes < 8 * 1024 * dense / 5
