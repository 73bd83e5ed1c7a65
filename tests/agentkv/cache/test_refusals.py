"""The cache refuses misuse with a reason, and a refusal changes nothing."""

import pytest
import torch
from transformers import BertConfig, BertModel, DynamicCache

import agentkv
from agentkv.cache.hf.compat import cache_in


def test_gpt2_past_its_positions_is_refused_before_any_work(model_of, cache_for, tokens):
    model = model_of("gpt2")
    cache = cache_for(model, policy="window", budget=20)
    with pytest.raises(ValueError, match="gpt2 has learned 160 positions"):
        cache.feed(model, tokens(1, 161))
    assert cache.seen == 0
    cache.feed(model, tokens(1, 158))
    kept = cache.kept(0)[0][0].tolist()
    for refused in (lambda: cache.feed(model, tokens(1, 3)),
                    lambda: model(tokens(1, 3), past_key_values=cache)):  # fmt: skip
        with pytest.raises(ValueError, match="158 tokens were seen and 3 more"):
            refused()
        assert cache.seen == 158 and cache.kept(0)[0][0].tolist() == kept
    cache.feed(model, tokens(1, 2))  # the last two positions
    with pytest.raises(ValueError, match="positions"):
        model.generate(tokens(1, 150), max_new_tokens=40, do_sample=False,
                       past_key_values=cache_for(model, policy="full"))  # fmt: skip


def test_another_model_or_batch_is_refused_and_changes_nothing(model_of, cache_for, tokens):
    model, other = model_of("llama"), model_of("llama")
    agentkv.attach(other)
    cache = cache_for(model, policy="window", budget=20)
    cache.feed(model, tokens(2, 30))
    before = cache.nbytes, cache.seen, [cache.kept(i)[1][0].tolist() for i in range(4)]
    with torch.no_grad():
        with pytest.raises(ValueError, match="another model"):
            other(tokens(2, 3), past_key_values=cache)
        with pytest.raises(ValueError, match="holds 2 sequences and was given 3"):
            model(tokens(3, 3), past_key_values=cache)
        with pytest.raises(ValueError, match="holds 2 sequences and was given 1"):
            cache.feed(model, tokens(1, 3))
        with pytest.raises(ValueError, match="another model"):
            cache.feed(model_of("qwen3"), tokens(2, 3))
        with pytest.raises(ValueError, match="attach"):
            unattached = model_of("llama")
            empty = cache_for(model, policy="full")
            unattached(tokens(1, 3), past_key_values=empty)
    with pytest.raises(ValueError, match="logits of 1 sequences"):
        conf = cache_for(model, policy="conf-kv", budget=20)
        conf.feed(model, tokens(2, 5))
        conf.apply_gate(torch.zeros(1, 96))
    cache.check()
    assert before == (cache.nbytes, cache.seen, [cache.kept(i)[1][0].tolist() for i in range(4)])


def test_an_unsupported_family_is_refused_by_name():
    bert = BertModel(BertConfig(hidden_size=16, num_attention_heads=2, num_hidden_layers=1,
                                intermediate_size=16, vocab_size=20))  # fmt: skip
    with pytest.raises(ValueError, match="this bert model is not supported: BertModel has"):
        agentkv.attach(bert)
    with pytest.raises(ValueError, match="this bert"):
        agentkv.Cache.for_model(bert, policy="full")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy": "wndow", "budget": 9}, "unknown policy 'wndow'; did you mean 'window'?"),
        ({"policy": "full", "budget": 9}, "keeps every entry"),
        ({"policy": "window", "budget": 0}, "at least 1"),
        ({"policy": "window", "budget": "64 parsecs"}, "neither a number of tokens"),
        ({"policy": "window", "budget": "1KB"}, "is too small: window needs at least 1"),
        ({"policy": "full", "budget": "1MB"}, "keeps every entry"),
        ({"policy": "streaming", "budget": 3}, "4 sinks"),
        ({"policy": "window", "budget": 9, "prefill": "some"}, "prefill must be"),
        ({"policy": "window", "budget": 9, "chunk": 0}, "chunk must be"),
    ],
)
def test_a_cache_that_cannot_be_says_why(llama, cache_for, settings, message):
    with pytest.raises(ValueError, match=message):
        cache_for(llama, **settings)


def test_attention_weights_that_nobody_computes_are_refused_before_any_work(
    family, model, cache_for, tokens
):
    cache, ids = cache_for(model, policy="full"), tokens(1, 6)
    cache.feed(model, ids)
    for more in ({"past_key_values": cache}, {}, {"past_key_values": DynamicCache()}):
        with pytest.raises(ValueError, match="output_attentions.*eager"), torch.no_grad():
            model(ids, output_attentions=True, **more)
        if len(more) != 1 or cache_in(more) is cache:
            with pytest.raises(ValueError, match="output_attentions.*eager"):
                model.generate(ids, output_attentions=True, return_dict_in_generate=True,
                               max_new_tokens=2, **more)  # fmt: skip
    assert cache.seen == 6
    cache.check()
    with torch.no_grad():
        model(ids, output_attentions=False, past_key_values=cache)
        model.set_attn_implementation("eager")
        assert len(model(ids, output_attentions=True).attentions) == len(cache.layers)
