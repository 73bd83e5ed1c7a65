"""Every policy under transformers' own `generate`, beams included."""

import pytest
import torch
from transformers import LogitsProcessor

import agentkv
from tests.agentkv.cache.policies_under_test import CASES, PROMPT, PUBLISHED
from tests.sampling import sampled

CLOSE = {"atol": 2e-4, "rtol": 2e-4}


@pytest.mark.parametrize(
    "name", sampled([*PUBLISHED, "ada-by-confidence", "along-keys"], every=6, first=1)
)
def test_generate_is_the_loop_by_hand(llama, cache_for, tokens, name):
    case, ids = CASES[name], tokens(2, PROMPT)
    ids[0, :7] = 0
    mask = (ids != 0).long()
    cache = cache_for(llama, policy=case.make(), budget=case.budget)
    settings = {"max_new_tokens": 8, "do_sample": False, "attention_mask": mask}
    gate = cache.gate()
    made = llama.generate(ids, past_key_values=cache, logits_processor=[gate], **settings)
    by_hand = cache_for(llama, policy=case.make(), budget=case.budget)
    new, gate = ids, by_hand.gate()
    places = (mask.cumsum(-1) - 1).clamp_min(0)
    for step in range(8):
        with torch.no_grad():
            logits = llama(
                new, past_key_values=by_hand, attention_mask=mask, position_ids=places
            ).logits[:, -1]
        gate(None, logits)
        new = logits.argmax(-1, keepdim=True)
        mask = torch.cat([mask, torch.ones(2, 1, dtype=torch.long)], dim=1)
        places = mask.sum(-1, keepdim=True) - 1
        assert torch.equal(made[:, PROMPT + step], new[:, 0])
    cache.check()
    assert cache.nbytes == by_hand.nbytes
    for layer in range(4):
        for mine, theirs in zip(cache.kept(layer), by_hand.kept(layer), strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


@torch.no_grad()
@pytest.mark.parametrize(
    "name", sampled([n for n in PUBLISHED if n != "edie-tada"], every=8, first=2)
)
def test_the_best_beam_is_worth_what_it_is_worth_alone(llama, cache_for, tokens, name):
    case, ids = CASES[name], tokens(1, PROMPT)
    cache = cache_for(llama, policy=case.make(), budget=case.budget)
    # without its gate a policy goes by the most it allows, here and below
    made = llama.generate(
        ids, past_key_values=cache, num_beams=3, max_new_tokens=6, do_sample=False,
        length_penalty=0.0, output_scores=True, return_dict_in_generate=True,
    )  # fmt: skip
    cache.check()
    assert cache.batch_size == 3
    alone = cache_for(llama, policy=case.make(), budget=case.budget)
    logits, worth = llama(ids, past_key_values=alone).logits[:, -1], 0.0
    for token in made.sequences[0, PROMPT:]:
        worth += float(logits.log_softmax(-1)[0, token])
        logits = llama(token.view(1, 1), past_key_values=alone).logits[:, -1]
    assert worth == pytest.approx(float(made.sequences_scores[0]), abs=CLOSE["atol"] * 6)


@pytest.mark.parametrize("name", ["window", "ada-snapkv", "arkv", "conf-kv-int8"])
def test_generates_own_chunks_are_those_of_feed(llama, cache_for, tokens, name):
    case, ids = CASES[name], tokens(1, 400)
    cache = cache_for(llama, policy=case.make(), budget=case.budget)
    settings = {"max_new_tokens": 1, "do_sample": False, "prefill_chunk_size": 100}
    llama.generate(ids, past_key_values=cache, **settings)
    cache.check()
    by_hand = cache_for(llama, policy=case.make(), budget=case.budget)
    with torch.no_grad():
        for piece in ids.split(100, dim=1):
            llama(piece, past_key_values=by_hand)
    assert cache.peak_nbytes == by_hand.peak_nbytes
    for layer in range(4):
        for mine, theirs in zip(cache.kept(layer)[0], by_hand.kept(layer)[0], strict=True):
            assert torch.equal(mine, theirs)


class Banned(LogitsProcessor):
    """A person's own processor in front of the gate."""

    def __call__(self, input_ids, scores):
        scores = scores.clone()
        scores[:, :40] = -torch.inf
        return scores


PROCESSED = {
    "penalty": {"repetition_penalty": 5.0},
    "banned": {"bad_words_ids": [[token] for token in range(40)]},
    "both, sampled": {
        "repetition_penalty": 5.0, "bad_words_ids": [[7], [8]], "do_sample": True,
        "temperature": 0.2, "top_k": 5,
    },
    "own before": {"own": True},
    "returned twice": {"repetition_penalty": 5.0, "do_sample": True, "num_return_sequences": 2},
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("settings", PROCESSED.values(), ids=list(PROCESSED))
def test_the_gate_sees_what_the_model_said_and_not_what_generate_made_of_it(
    llama, cache_for, tokens, settings
):
    settings = dict(settings)
    ids, policy = tokens(2, PROMPT), agentkv.policy("conf-kv", threshold=0.2, protected=4)
    cache, by_hand = (cache_for(llama, policy=policy, budget=24) for _ in range(2))
    own = [Banned()] if settings.pop("own", False) else []
    torch.manual_seed(0)
    made = llama.generate(
        ids, past_key_values=cache, logits_processor=[*own, cache.gate()],
        **{"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False} | settings,
    )  # fmt: skip
    ids = ids.repeat_interleave(settings.get("num_return_sequences", 1), dim=0)
    for new in torch.cat([ids, made[:, PROMPT:-1]], dim=1).split([PROMPT, *[1] * 11], dim=1):
        logits = llama(new, past_key_values=by_hand).logits[:, -1]
        by_hand.apply_gate(logits)
    assert cache.confidences == pytest.approx(by_hand.confidences, abs=1e-4)
    for layer in range(4):
        for mine, theirs in zip(cache.kept(layer), by_hand.kept(layer), strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


@torch.no_grad()
def test_the_gate_of_beams_sees_what_the_model_said(llama, cache_for, tokens):
    ids, heard = tokens(1, PROMPT), []
    cache = cache_for(llama, policy="conf-kv", budget=24)
    plain = cache_for(llama, policy="conf-kv", budget=24)
    expected = plain.policy.gate.confidence
    llama.register_forward_hook(
        lambda module, args, output: heard.append(expected(output.logits[:, -1]).tolist())
    )
    seen = []
    gate = cache.gate()

    class Watching(LogitsProcessor):
        def __call__(self, input_ids, scores):
            scores = gate(input_ids, scores)
            seen.append(list(cache.confidences))
            return scores

    llama.generate(
        ids, past_key_values=cache, num_beams=3, max_new_tokens=6, do_sample=False,
        repetition_penalty=5.0, logits_processor=[Watching()],
    )  # fmt: skip
    assert len(seen) == 6 and len(seen[0]) == 3
    for mine, theirs in zip(seen, heard, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-5)


@torch.no_grad()
def test_a_gate_needs_the_logits_of_the_cache_it_was_made_for(llama, cache_for, tokens):
    cache, other = (cache_for(llama, policy="conf-kv", budget=24) for _ in range(2))
    gate, ids = cache.gate(), tokens(1, 40)
    logits = llama(ids, past_key_values=cache).logits[:, -1]
    llama(tokens(1, 40, seed=1), past_key_values=other)
    with pytest.raises(ValueError, match="logits of 2 sequences, the cache holds 1"):
        gate(None, logits.repeat(2, 1))
    gate(None, logits)
    expected = cache.policy.gate.confidence(logits).tolist()
    assert cache.confidences == pytest.approx(expected)
    # without a forward in between, what it is given is all there is
    gate(None, logits * 3)
    assert cache.confidences != pytest.approx(expected)
