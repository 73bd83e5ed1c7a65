"""The folder for `model.generate(..., custom_generate=...)`."""

import pytest
import torch
from transformers import DynamicCache

from agentkv.hub import FOLDER

OPTIONS = {"max_new_tokens": 12, "do_sample": False}


def generate(model, ids, **options):
    return model.generate(
        ids, custom_generate=str(FOLDER), trust_remote_code=True, **OPTIONS, **options
    )


@pytest.mark.parametrize("policy", ["lookback-int8", "window", "full"])
def test_text_is_that_of_a_cache_passed_by_hand(llama, cache_for, tokens, policy):
    ids, budget = tokens(1, 150), None if policy == "full" else 64
    cache = cache_for(llama, policy=policy, budget=budget)
    expected = llama.generate(
        ids, past_key_values=cache, logits_processor=[cache.gate()], **OPTIONS
    )
    made = generate(llama, ids, policy=policy, budget=budget, return_dict_in_generate=True)
    assert torch.equal(made.sequences, expected)
    found = made.past_key_values
    assert (found.policy.name, found.seen, found.nbytes) == (policy, cache.seen, cache.nbytes)


def test_other_arguments_reach_generate(llama, tokens):
    ids, seen = tokens(1, 80), []

    def note(input_ids, scores):
        seen.append(input_ids.shape[1])
        return scores

    made = generate(
        llama, ids, cache_dtype="bfloat16", logits_processor=[note], return_dict_in_generate=True
    )
    assert seen == list(range(80, 92))
    assert made.past_key_values.dtype == torch.bfloat16


def test_a_cache_goes_on_and_another_kind_is_refused(llama, cache_for, tokens):
    ids = tokens(1, 60)
    cache = cache_for(llama, policy="window", budget=48)
    first = generate(llama, ids, past_key_values=cache)
    second = generate(llama, first, past_key_values=cache)
    assert second.shape[1] == 60 + 24
    assert cache.seen == 60 + 24 - 1
    with pytest.raises(ValueError, match="is a DynamicCache; give an agentkv.Cache"):
        generate(llama, ids, past_key_values=DynamicCache())
    with pytest.raises(ValueError, match="leave out policy, budget"):
        generate(llama, ids, past_key_values=cache, policy="window", budget=48)
