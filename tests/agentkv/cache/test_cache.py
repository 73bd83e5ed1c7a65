"""The cache keeps its promises on bytes, budgets and precision."""

import gc

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import agentkv
from agentkv.cache.storage.sizes import EntrySize


@torch.no_grad()
def run(model, cache, ids, num_decoded, start=None):
    """Feed ids, then decode; the gate after each."""
    logits, gate = cache.feed(model, ids), cache.gate()
    for _ in range(num_decoded):
        token = logits.argmax(-1, keepdim=True)
        logits = model(token, past_key_values=cache).logits[:, -1]
        gate(None, logits)
        cache.check()
    return logits


def tensors_alive():
    """Bytes of every tensor storage Python can reach."""
    gc.collect()
    found = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor):  # isinstance wakes deprecated modules
            storage = thing.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


def test_bytes_are_those_of_the_arithmetic(llama, cache_for, tokens):
    cache = cache_for(llama, policy=agentkv.policy("conf-kv-int8", recent=40), budget=150)
    run(llama, cache, tokens(2, 200), 70)
    width, total = 2 * 8, 0  # heads times head size
    for layer in cache.cache_layers:
        storage = layer.storage
        metadata, dense, codes, scales = storage.tables.values()
        for segment in range(2):
            # a position and a mass; keys and values in float32; codes and block id; exponents
            capacities = [table.extents[segment][2] for table in (metadata, dense, codes)]
            total += capacities[0] * (4 + 4) + capacities[1] * 2 * width * 4
            total += capacities[2] * (2 * width + 4) + scales.counts[segment] * 2 * width
            assert storage.num_quantized[segment] > 0
            for table, capacity in zip((metadata, dense, codes), capacities, strict=True):
                assert capacity - table.counts[segment] <= 64
    assert cache.nbytes == total


def test_eviction_gives_memory_back(llama, cache_for, tokens):
    baseline = tensors_alive()
    cache = cache_for(llama, policy="window", budget=30)
    cache.prefill = "whole"
    cache.feed(llama, tokens(1, 900))
    held = tensors_alive() - baseline
    assert cache.nbytes <= held <= cache.nbytes + 20_000  # the ids themselves, and small change
    size = EntrySize.of(cache.cache_layers[0].storage.layout)
    assert cache.nbytes <= 4 * size.segment(num_dense=30, num_quantized=0)
    # layers evict one after another, so only one of four was ever whole
    assert cache.peak_nbytes < 1000 * 2 * 16 * 4 * 1.5


def test_chunks_bound_the_peak(llama, cache_for, tokens):
    ids = tokens(1, 1500)
    peaks = {}
    for prefill in ("whole", "chunked"):
        cache = cache_for(llama, policy="streaming", budget=64, prefill=prefill, chunk=100)
        cache.feed(llama, ids)
        assert cache.seen == 1500
        peaks[prefill] = cache.peak_nbytes
    assert peaks["chunked"] < peaks["whole"] / 2


def test_kept_entries_are_the_budget_exactly(llama, cache_for, tokens):
    ids = tokens(2, 300)
    for policy, expected in [
        (agentkv.policy("window"), list(range(260, 300))),
        (agentkv.policy("streaming"), [0, 1, 2, 3, *range(264, 300)]),
        (agentkv.policy("streaming", sinks=0), list(range(260, 300))),
    ]:
        cache = cache_for(llama, policy=policy, budget=40, chunk=77)
        cache.feed(llama, ids)
        for layer in range(4):
            assert [[h.tolist() for h in row] for row in cache.kept(layer)] == [[expected] * 2] * 2
    for threshold, kept in ((2.0, 40), (-1.0, 20)):  # never sure, always sure
        policy = agentkv.policy("conf-kv", threshold=threshold)
        cache = cache_for(llama, policy=policy, budget=40)
        run(llama, cache, ids, 30)
        assert {len(head) for i in range(4) for row in cache.kept(i) for head in row} == {kept}


def test_recency_alone_keeps_a_window(llama, cache_for, tokens):
    policy = agentkv.policy("conf-kv", mass_weight=0.0, threshold=2.0)
    cache = cache_for(llama, policy=policy, budget=40)
    run(llama, cache, tokens(1, 90), 25)
    assert cache.kept(2)[0][0].tolist() == list(range(75, 115))


def test_attention_keeps_entries_a_window_would_lose(llama, cache_for, tokens):
    policy = agentkv.policy("conf-kv", mass_weight=1.0, threshold=2.0)
    cache = cache_for(llama, policy=policy, budget=40)
    run(llama, cache, tokens(1, 200), 25)
    assert any(int(cache.kept(layer)[0][0][0]) < 150 for layer in range(4))
    assert len({tuple(cache.kept(layer)[0][0].tolist()) for layer in range(4)}) > 1


def test_sequences_have_budgets_of_their_own(llama, cache_for, tokens):
    cache = cache_for(llama, policy=agentkv.policy("conf-kv", threshold=0.5), budget=40)
    cache.feed(llama, tokens(2, 100))
    logits = torch.zeros(2, 96)
    logits[1, 5] = 50.0  # the second sequence is sure
    cache.apply_gate(logits)
    assert cache.confidences[0] < 0.5 < cache.confidences[1]
    for layer in range(4):
        assert [len(row[0]) for row in cache.kept(layer)] == [40, 20]
    cache.check()
    with torch.no_grad():
        llama(tokens(2, 9, seed=3), past_key_values=cache)
    assert [len(row[0]) for row in cache.kept(0)] == [40, 29]


@torch.no_grad()
def test_entries_in_8_bits_are_attended_for_as_long_as_they_live(
    llama, model_of, judge, kept_of, cache_for, tokens
):
    policy = agentkv.policy("conf-kv-int8", threshold=2.0, recent=8, protected=8)
    cache = cache_for(llama, policy=policy, budget=160)
    reference, blind = judge("llama"), judge("llama")
    ids = tokens(1, 200)
    kept, num_checked = None, 0
    start = 0
    for num_tokens in [150, *[1] * 50]:
        new = ids[:, start : start + num_tokens]
        coded = [layer.storage.num_quantized[0] if start else 0 for layer in cache.cache_layers]
        found = llama(new, past_key_values=cache).logits[:, -1]
        expected = reference.logits(new, kept)[:, -1]
        without = None if kept is None else [
            [row[0][n:]] for row, n in zip(kept, coded, strict=True)
        ]  # fmt: skip
        ignorant = blind.logits(new, without)[:, -1]
        if start > 152:
            assert min(coded) >= 64
            assert (found - expected).norm() < 0.1 * (ignorant - expected).norm()
            num_checked += 1
        cache.apply_gate(found)
        kept = kept_of(cache)
        start += num_tokens
    assert num_checked > 40


def test_a_gate_is_not_needed_to_stay_within_the_loose_budget(llama, cache_for, tokens):
    cache = cache_for(llama, policy="conf-kv", budget=50)
    llama.generate(tokens(1, 120), past_key_values=cache, max_new_tokens=20, do_sample=False)
    assert {len(cache.kept(i)[0][0]) for i in range(4)} == {50}


def test_sliding_layers_hold_their_window_and_full_layers_their_budget(model_of, cache_for, tokens):
    model = model_of("gpt_oss")
    cache = cache_for(model, policy="window", budget=30)
    run(model, cache, tokens(1, 80), 10)
    kept = [cache.kept(i)[0][0].tolist() for i in range(4)]
    assert kept[0] == kept[2] == list(range(79, 90))  # the 12th is the next token itself
    assert kept[1] == kept[3] == list(range(60, 90))


def test_a_model_of_windows_alone_is_bounded_by_both(model_of, cache_for, tokens):
    model = model_of("mistral-window")
    for budget, expected in ((10, 10), (100, 23)):
        cache = cache_for(model, policy="streaming", budget=budget)
        run(model, cache, tokens(1, 80), 5)
        assert len(cache.kept(1)[0][0]) == expected


def test_sequences_can_be_repeated_and_selected(llama, cache_for, tokens):
    cache = cache_for(llama, policy="conf-kv-int8", budget=200)
    cache.feed(llama, tokens(2, 150))
    cache.batch_repeat_interleave(2)
    assert cache.batch_size == 4
    cache.batch_select_indices(torch.tensor([0, 3]))
    cache.check()
    ids = tokens(2, 4, seed=9)
    fresh = cache_for(llama, policy="conf-kv-int8", budget=200)
    fresh.feed(llama, tokens(2, 150))
    torch.testing.assert_close(cache.feed(llama, ids), fresh.feed(llama, ids))


def test_a_reset_cache_is_empty_and_can_serve_another_batch(llama, cache_for, tokens):
    cache = cache_for(llama, policy="window", budget=20)
    cache.feed(llama, tokens(1, 30))
    peak = cache.peak_nbytes
    cache.reset()
    assert cache.seen == cache.nbytes == 0 and cache.peak_nbytes == peak
    cache.feed(llama, tokens(3, 30))
    cache.check()


def test_half_precision_models_keep_their_dtype(tokens, cache_for):
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2)  # fmt: skip
    model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    cache = cache_for(model, policy=agentkv.policy("conf-kv-int8", recent=8), budget=150)
    logits = run(model, cache, tokens(1, 180), 12)
    assert logits.dtype == torch.bfloat16 and logits.isfinite().all()
    lanes = cache.cache_layers[0].storage
    assert lanes.num_quantized[0] >= 64 and lanes.parts()[1].keys.dtype == torch.bfloat16


def test_generates_own_prefill_chunks_bound_the_peak_too(llama, cache_for, tokens):
    ids, peaks = tokens(1, 1200), []
    for chunking in ({}, {"prefill_chunk_size": 100}):
        cache = cache_for(llama, policy="window", budget=64)
        llama.generate(ids, past_key_values=cache, max_new_tokens=3, do_sample=False, **chunking)
        cache.check()
        assert cache.kept(0)[0][0].tolist() == list(range(1138, 1202))
        peaks.append(cache.peak_nbytes)
    assert peaks[1] < peaks[0] / 2


def test_a_sequence_of_padding_alone_holds_nothing_until_its_first_token(llama, cache_for, tokens):
    cache = cache_for(llama, policy="conf-kv", budget=64)
    ids, mask = tokens(2, 40), torch.ones(2, 40, dtype=torch.long)
    mask[0, :30] = 0
    assert cache.feed(llama, ids[:, :30], mask[:, :30]).isfinite().all()
    assert [len(row[0]) for row in cache.kept(0)] == [0, 30]
    logits = cache.feed(llama, ids[:, 30:], mask)
    cache.check()
    assert [len(row[0]) for row in cache.kept(0)] == [10, 40]
    alone = cache_for(llama, policy="conf-kv", budget=64)
    torch.testing.assert_close(alone.feed(llama, ids[:1, 30:]), logits[:1], atol=1e-4, rtol=1e-4)
