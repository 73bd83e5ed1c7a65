"""A row of a padded batch is the row alone, in whatever turn the padding comes."""

import inspect

import pytest
import torch

from agentkv.cache.hf.compat import CACHE
from tests.agentkv.cache.caches_in_use import feed_packed

CLOSE = {"atol": 2e-4, "rtol": 2e-4}
# per turn: columns, and how many of them are padding in front, by row
TURNS = [(20, (7, 0, 3)), (9, (0, 4, 2)), (1, (0, 0, 0)), (1, (0, 0, 0)), (6, (0, 5, 0))]
POLICIES = ["full", "window", "conf-kv"]


def conversation(tokens):
    """Per turn ids (3, n) and which of them are real."""
    turns = []
    for seed, (count, padding) in enumerate(TURNS):
        real = torch.ones(3, count, dtype=torch.long)
        for row, missing in enumerate(padding):
            real[row, :missing] = 0
        turns.append((tokens(3, count, seed=seed) * real, real))
    return turns


def alone(cache_for, model, policy, budget, turns, row):
    """The logits after each turn of one row by itself, and its cache."""
    cache = cache_for(model, policy=policy, budget=budget)
    return [
        cache.feed(model, ids[row : row + 1, real[row].bool()])[0] for ids, real in turns
    ], cache


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.sample("values")
def test_each_sequence_that_feed_reads_is_the_sequence_alone(
    family, model, cache_for, tokens, policy
):
    budget = None if policy == "full" else 24
    turns = conversation(tokens)
    together = cache_for(model, policy=policy, budget=budget)
    mask, found = torch.zeros(3, 0, dtype=torch.long), []
    for ids, real in turns:
        mask = torch.cat([mask, real], dim=1)
        # a turn without padding needs no mask, whatever the earlier ones had
        found.append(together.feed(model, ids, None if real.all() else mask))
    for row in range(3):
        expected, cache = alone(cache_for, model, policy, budget, turns, row)
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine[row], theirs, **CLOSE)
        for layer in range(len(cache.layers)):
            assert torch.equal(together.kept(layer)[row][0], cache.kept(layer)[0][0])
    together.check()


@torch.no_grad()
def test_so_is_each_sequence_of_a_forward_by_hand(family, model, cache_for, tokens):
    turns = conversation(tokens)
    together = cache_for(model, policy="full")
    embed = model.get_input_embeddings()
    mask, found = torch.zeros(3, 0, dtype=torch.long), []
    for number, (ids, real) in enumerate(turns):
        mask = torch.cat([mask, real], dim=1)
        given = {"inputs_embeds": embed(ids)} if number == 1 else {"input_ids": ids}
        logits = model(**given, attention_mask=mask, past_key_values=together).logits
        found.append(logits[:, -1])
    for row in range(3):
        expected, _ = alone(cache_for, model, "full", None, turns, row)
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine[row], theirs, **CLOSE)


@torch.no_grad()
def test_positions_that_were_given_are_used(model_of, cache_for, tokens):
    model = model_of("gpt2")
    ids, places = tokens(1, 8), torch.arange(3, 11)[None]
    cache, positions = (cache_for(model, policy="full") for _ in range(2))
    mask = torch.ones_like(ids)
    shifted = model(ids, attention_mask=mask, position_ids=places, past_key_values=cache).logits
    plain = model(ids, attention_mask=mask, past_key_values=positions).logits
    assert (shifted - plain).abs().max() > 1e-2


@torch.no_grad()
def test_a_decoder_that_is_called_by_place_counts_its_real_tokens_too(model_of, cache_for, tokens):
    model = model_of("gpt2")
    together, apart = (cache_for(model, policy="full") for _ in range(2))
    ids, mask = tokens(2, 9), torch.ones(2, 9, dtype=torch.long)
    mask[0, :4] = 0
    given = {"input_ids": ids, CACHE: together, "attention_mask": mask}
    # transformers' versions have these arguments in different places
    names = list(inspect.signature(model.transformer.forward).parameters)
    last = names.index("attention_mask")
    hidden = model.transformer(*map(given.get, names[: last + 1])).last_hidden_state
    own = model.transformer(ids[:1, 4:], apart).last_hidden_state
    torch.testing.assert_close(hidden[0, -1], own[0, -1], **CLOSE)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.sample("values")
def test_generate_decodes_each_padded_sequence_as_the_sequence_alone(
    family, model, cache_for, tokens, policy
):
    budget = None if policy == "full" else 24
    settings = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    ids = tokens(3, 20)
    mask = torch.ones_like(ids)
    mask[0, :7], mask[2, :3] = 0, 0
    cache = cache_for(model, policy=policy, budget=budget)
    made = model.generate(ids, attention_mask=mask, past_key_values=cache, **settings)
    # the second turn: its padding stands between the turns
    new, real = tokens(3, 6, seed=4), torch.ones(3, 6, dtype=torch.long)
    real[1, :5] = 0
    mask = torch.cat([mask, torch.ones(3, 4, dtype=torch.long), real], dim=1)
    ids = torch.cat([made, new], dim=1)
    again = model.generate(ids, attention_mask=mask, past_key_values=cache, **settings)
    for row in range(3):
        own = cache_for(model, policy=policy, budget=budget)
        first = ids[row : row + 1, :20][:, mask[row, :20].bool()]
        reply = model.generate(first, past_key_values=own, **settings)
        assert torch.equal(reply[0, -4:], made[row, -4:])
        more = torch.cat([reply, new[row : row + 1, real[row].bool()]], dim=1)
        reply = model.generate(more, past_key_values=own, **settings)
        assert torch.equal(reply[0, -4:], again[row, -4:])


def test_a_shared_forward_takes_batches_that_were_padded(model_of, cache_for, tokens):
    model = model_of("gpt2")
    caches, apart = ([cache_for(model, policy="full") for _ in range(2)] for _ in range(2))
    ids, mask = tokens(2, 9), torch.ones(2, 9, dtype=torch.long)
    mask[0, :4] = 0
    for each in (caches, apart):
        each[0].feed(model, ids, mask)
        each[1].feed(model, tokens(1, 5))
    new = [tokens(2, 3, seed=1), tokens(1, 3, seed=2)]
    fed = feed_packed(model, caches, new)
    for found, cache, tokens_of in zip(fed.logits.split([2, 1]), apart, new, strict=True):
        torch.testing.assert_close(found, cache.feed(model, tokens_of), **CLOSE)
