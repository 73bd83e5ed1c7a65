"""Hooks read the right values from a running model."""

import copy
import math

import pytest
import torch
from transformers import DynamicCache

import agentkv
from agentkv.cache.hf.residual_shift import mean_shift, watch_residual_shift


class Listener(agentkv.Cache):
    """A cache that writes down what it is told."""

    shift_window = 5

    def note_residual_shift(self, layer_idx, turn):
        self.heard_turns = [*getattr(self, "heard_turns", []), (layer_idx, turn)]

    def note_ids(self, ids):
        self.heard_ids = [*getattr(self, "heard_ids", []), ids]


def layers_of(model):
    return model.transformer.h if model.config.model_type == "gpt2" else model.model.layers


# ---- turns of the residual stream


def streams(model, ids, **more):
    """Per layer, (B, n, d) float64: the stream before and after attention, by plain hooks.

    After attention is what the norm in front of the MLP is given.
    """
    before, after, handles = {}, {}, []
    for i, layer in enumerate(layers_of(model)):
        name = "post_attention_layernorm"
        if model.config.model_type == "gpt2":
            name = "ln_2"
        elif model.config.model_type == "gemma3_text":
            name = "pre_feedforward_layernorm"
        for module, into in ((layer, before), (getattr(layer, name), after)):
            handles.append(
                module.register_forward_pre_hook(
                    lambda module, args, into=into, i=i: into.__setitem__(i, args[0].double())
                )
            )
    with torch.no_grad():
        model(ids, **more)
    for handle in handles:
        handle.remove()
    return before, after


def turn_by_hand(before, after):
    dot = sum(a * b for a, b in zip(before.tolist(), after.tolist(), strict=True))
    lengths = [math.sqrt(sum(a * a for a in x.tolist())) for x in (before, after)]
    return 1 - dot / (lengths[0] * lengths[1])


def test_every_layer_tells_how_far_it_turned_the_last_tokens(family, model_of, tokens):
    model, own = model_of(family), model_of(family)
    cache = Listener.for_model(model, policy="full")
    watch_residual_shift(model)
    ids = tokens(2, 16)
    with torch.no_grad():
        model(ids[:, :13], past_key_values=cache)
        model(ids[:, 13:], past_key_values=cache)
    before, after = streams(own, ids)
    num_layers = model.config.num_hidden_layers
    assert [i for i, _ in cache.heard_turns] == [*range(num_layers), *range(num_layers)]
    # 5 tokens of the first forward; the second has but 3
    for (i, turn), columns in zip(
        cache.heard_turns,
        [range(8, 13)] * num_layers + [range(13, 16)] * num_layers,
        strict=True,
    ):
        for row in range(2):
            each = [turn_by_hand(before[i][row, t], after[i][row, t]) for t in columns]
            assert float(turn[row]) == pytest.approx(sum(each) / len(each), abs=1e-5)
    assert all(turn.dtype == torch.float32 and turn.min() > 1e-3 for _, turn in cache.heard_turns)


def test_padding_shifts_nothing(family, model_of, tokens):
    model, own = model_of(family), model_of(family)
    cache = Listener.for_model(model, policy="full")
    watch_residual_shift(model)
    mask = torch.ones(3, 12, dtype=torch.long)
    mask[0, :9] = 0  # fewer real tokens than the window
    mask[1, 7:10] = 0  # a hole in the middle of it
    mask[2] = 0
    ids, positions = tokens(3, 12), (mask.cumsum(-1) - 1).clamp_min(0)
    with torch.no_grad():
        model(ids, attention_mask=mask, position_ids=positions, past_key_values=cache)
    rows = [(0, range(9, 12)), (1, (4, 5, 6, 10, 11))]
    if family in ("mistral-window", "gpt_oss", "gemma3"):
        rows.pop()  # a window counts the hole's columns, which the row alone does not have
    for row, columns in rows:
        real = mask[row].bool()
        before, after = streams(own, ids[row : row + 1, real])
        place = (mask[row].cumsum(-1) - 1).tolist()
        for i, turn in cache.heard_turns:
            each = [turn_by_hand(before[i][0, place[t]], after[i][0, place[t]]) for t in columns]
            assert float(turn[row]) == pytest.approx(sum(each) / len(each), abs=1e-4)
    assert all(turn[2].isnan() for _, turn in cache.heard_turns)


def test_only_a_cache_that_wants_them_hears_of_residual_shifts(llama, tokens):
    ids = tokens(1, 6)

    def count(cache):
        cache.heard_turns = []
        with torch.no_grad():
            llama(ids, past_key_values=cache)
        return len(cache.heard_turns)

    assert count(Listener.for_model(llama, policy="full")) == 0
    watch, again = watch_residual_shift(llama), watch_residual_shift(llama)
    assert count(Listener.for_model(llama, policy="full")) == 4
    deaf = Listener.for_model(llama, policy="full")
    deaf.shift_window = 0
    assert count(deaf) == 0
    with torch.no_grad():
        llama(ids, past_key_values=DynamicCache())
        llama(ids)
    twin = copy.deepcopy(llama)
    again.remove()
    watch.remove()
    assert count(Listener.for_model(llama, policy="full")) == 0
    hooks = [
        len(m._forward_hooks) + len(m._forward_pre_hooks) for m in llama.model.layers.modules()
    ]
    assert sum(hooks) == 0
    twins = Listener.for_model(twin, policy="full")
    twin(ids, past_key_values=twins)
    assert len(twins.heard_turns) == 4
    watch_residual_shift(twin).remove()


def test_a_turn_stays_on_the_device_of_its_layer():
    # attention answers from another device than the stream comes from
    turn = mean_shift(torch.ones(1, 6, 4), torch.ones(1, 6, 4, device="meta"), None, 3)
    assert (turn.device.type, tuple(turn.shape)) == ("meta", (1,))


# ---- token ids


def test_the_cache_hears_of_every_token_once(family, model, tokens):
    ids = tokens(2, 11)
    cache = Listener.for_model(model, policy="full")
    made = model.generate(ids, past_key_values=cache, max_new_tokens=5, do_sample=False)
    heard = torch.cat(cache.heard_ids, dim=1)
    assert heard.dtype == torch.int32 and torch.equal(heard, made[:, :-1].int())
    cache.heard_ids = []
    more = tokens(2, 3, seed=5).int()
    cache.feed(model, more)
    with torch.no_grad():
        model(inputs_embeds=model.get_input_embeddings()(more), past_key_values=cache)
        if family == "gpt2":
            model.transformer(more[:, :1], cache)  # arguments given by place
    expected = more.clone()
    more.zero_()
    assert torch.equal(cache.heard_ids[0], expected), "what was heard is not shared with the caller"
    assert cache.heard_ids[1] is None
    if family == "gpt2":
        assert torch.equal(cache.heard_ids[2], expected[:, :1])
    num_heard = len(cache.heard_ids)
    with pytest.raises(ValueError, match="holds 2 sequences and was given 1"), torch.no_grad():
        model(tokens(1, 2), past_key_values=cache)
    assert len(cache.heard_ids) == num_heard
