"""Tokens in the middle of a stream are replaced; what follows them stays."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import agentkv
from agentkv.cache.misuse import Misuse
from tests.agentkv.cache.conftest import VOCAB, fresh

CLOSE = {"atol": 2e-4, "rtol": 2e-4}
NEXT = 6
"""Tokens that are read after a replacement."""


@pytest.fixture(scope="module")
def model():
    return fresh("llama")


@pytest.fixture(scope="module")
def plain():
    """The same weights, for the reference."""
    return fresh("llama")


def full_cache(model, stream):
    cache = agentkv.Cache.for_model(model, policy="full")
    cache.feed(model, torch.tensor([stream]))
    return cache


def random_ids(count, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, (count,), generator=generator).tolist()


@torch.no_grad()
def masked_logits(model, stream, span, new, next_ids, *, moved=0):
    """Logits of the tokens after a replacement, from one forward over all tokens, old and new.

    New tokens see what precedes the span; those after it see the old ones; the next ones see all
    but the old ones.

    Args:
        moved: positions by which old and later tokens are moved.
    """
    old, added, coming = len(stream), len(new), len(next_ids)
    places = torch.arange(old + added + coming)
    is_old = (places >= span.start) & (places < span.stop)
    is_new = (places >= old) & (places < old + added)
    is_next = places >= old + added
    sees = places[:, None] >= places[None]
    sees &= ~(is_new[:, None] & (places[None] >= span.start) & ~is_new[None])
    sees &= ~(is_next[:, None] & is_old[None])
    positions = torch.cat(
        [
            places[: span.start],
            places[span.start : old] + moved,
            torch.arange(span.start, span.start + added),
            torch.arange(old + moved, old + moved + coming),
        ]
    )
    mask = torch.zeros(sees.shape).masked_fill(~sees, torch.finfo(torch.float32).min)
    ids = torch.tensor([[*stream, *new, *next_ids]])
    output = model(ids, attention_mask=mask[None, None], position_ids=positions[None])
    return output.logits[0, -coming:]


@torch.no_grad()
def read(cache, model, ids):
    """Logits of further tokens."""
    return model(torch.tensor([ids]), past_key_values=cache).logits[0]


@settings(max_examples=25)
@given(data=st.data())
def test_next_tokens_read_what_a_mask_would_show_them(model, plain, data):
    stream = random_ids(data.draw(st.integers(2, 40), "tokens"), 1)
    start = data.draw(st.integers(0, len(stream) - 1), "start")
    span = range(start, data.draw(st.integers(start + 1, len(stream)), "stop"))
    new = random_ids(data.draw(st.integers(0, len(span)), "new"), 2)
    cache, next_ids = full_cache(model, stream), random_ids(NEXT, 3)
    cache.replace(model, span, new)
    cache.check()
    assert cache.seen == len(stream)
    wanted = [*stream[: span.start], *new, *stream[span.start + len(new) :]]
    assert cache.ids.tolist() == [wanted]
    found = read(cache, model, next_ids)
    assert torch.allclose(found, masked_logits(plain, stream, span, new, next_ids), **CLOSE)
    kept = [*range(span.start + len(new)), *range(span.stop, len(stream) + NEXT)]
    assert all(heads[0].tolist() == kept for layer in range(3) for heads in [cache.kept(layer)[0]])


@settings(max_examples=10)
@given(old=st.integers(0, 12), more=st.integers(1, 9), later=st.integers(1, 20))
def test_later_tokens_make_room_for_a_longer_text(model, plain, old, more, later):
    stream, new = random_ids(old + later, 1), random_ids(old + more, 2)
    cache, next_ids = full_cache(model, stream), random_ids(NEXT, 3)
    if old:
        cache.label("first", old, start=0, pinned=True)
    cache.label("later", later, start=old)
    cache.replace(model, range(old), new)
    cache.check()
    assert cache.ids.tolist() == [[*new, *stream[old:]]]
    spans = {each.label: (each.start, each.stop) for each in cache.spans()}
    assert spans["later"] == (old + more, old + more + later)
    assert spans.get("first", (0, old + more)) == (0, old + more)
    found = read(cache, model, next_ids)
    wanted = masked_logits(plain, stream, range(old), new, next_ids, moved=more)
    assert torch.allclose(found, wanted, **CLOSE)


@torch.no_grad()
def test_several_replacements_and_drops_follow_one_another(model):
    stream, next_ids = random_ids(30, 1), random_ids(NEXT, 3)
    cache = full_cache(model, stream)
    cache.replace(model, range(20, 25), random_ids(3, 2))
    cache.replace(model, range(5, 10), ())
    cache.replace(model, range(12, 14), random_ids(2, 4))
    cache.check()
    gone = {*range(5, 10), *range(23, 25)}
    assert cache.kept(0)[0][0].tolist() == [each for each in range(30) if each not in gone]
    found = read(cache, model, next_ids)
    assert found.isfinite().all()


@pytest.mark.parametrize(
    ("policy", "why"), [("window", "every entry"), ("int8", "every entry"), ("snapkv", "every")]
)
def test_other_policies_drop_and_say_why_they_do_not_replace(model, policy, why):
    budget = None if policy == "int8" else 64
    cache = agentkv.Cache.for_model(model, policy=policy, budget=budget)
    cache.feed(model, torch.tensor([random_ids(40, 1)]))
    with pytest.raises(Misuse, match=why):
        cache.replace(model, range(3, 9), [1, 2])
    cache.replace(model, range(3, 9), [])
    assert not {3, 8} & set(cache.kept(0)[0][0].tolist())
    cache.check()


@pytest.mark.parametrize("layer", [None, 2])
def test_a_model_that_fails_leaves_later_tokens_or_a_cache_that_says_so(model, layer):
    def fail(*_):
        raise RuntimeError("no more memory")

    stream = random_ids(20, 1)
    cache = full_cache(model, stream)
    before = cache.snapshot()
    inner = model.model
    module = inner.embed_tokens if layer is None else inner.layers[layer].self_attn
    hook = module.register_forward_pre_hook(fail)
    try:
        with pytest.raises(RuntimeError, match="no more memory"):
            cache.replace(model, range(5, 9), [1, 2, 3])
    finally:
        hook.remove()
    if layer is None:
        cache.check()
        assert cache.kept(0)[0][0].tolist() == [*range(5), *range(9, 20)]
        assert cache.seen == 20 and cache.ids.tolist() == [stream]
    else:
        with pytest.raises(Misuse, match="not between forwards"):
            cache.drop(range(5))
    cache.restore(before)
    cache.replace(model, range(5, 9), [1, 2, 3])
    assert cache.kept(0)[0][0].tolist() == [*range(8), *range(9, 20)]


def test_what_cannot_be_replaced_changes_nothing(model):
    cache = agentkv.Cache.for_model(model, policy="full")
    with pytest.raises(Misuse, match="has seen 0 tokens"):
        cache.replace(model, range(0, 1), [1])
    stream = random_ids(20, 1)
    cache.feed(model, torch.tensor([stream]))
    for span in (range(5, 21), range(-1, 3), range(0, 10, 2)):
        with pytest.raises(Misuse, match="cannot replace"):
            cache.replace(model, span, [1])
    too_many = [1] * (model.config.max_position_embeddings + 1)
    with pytest.raises(Misuse, match="positions"):
        cache.replace(model, range(5, 6), too_many)
    assert cache.seen == 20 and cache.ids.tolist() == [stream]
    cache.check()
