"""A forward that does not end, two at once, and gradients: what is left, and the way out."""

import threading

import pytest
import torch

import agentkv
from agentkv.cache.packed import PackedForward
from tests.agentkv.cache.caches_in_use import assert_same, feed_packed
from tests.agentkv.cache.policies_under_test import CASES, PUBLISHED
from tests.sampling import sampled

CLOSE = {"atol": 1e-4, "rtol": 1e-4}
UNFINISHED = "did not end.*`restore`.*`reset`"


def layers_of(model):
    return model.transformer.h if model.config.model_type == "gpt2" else model.model.layers


def failing(module, error):
    """Let the next forward of a module raise; the handle takes the hook off again."""

    def fail(*args):
        raise error

    return module.register_forward_hook(fail)


def used(model, cache_for, tokens, name="conf-kv-int8", batch=1):
    case = CASES[name]
    cache = cache_for(model, policy=case.make(), budget=case.budget)
    cache.feed(model, tokens(batch, 90))
    return cache


# ---- gradients


@pytest.mark.parametrize("name", sampled(PUBLISHED, every=12))
def test_a_cache_can_be_fed_outside_no_grad(llama, cache_for, tokens, name):
    case = CASES[name]
    with_grad, without = (
        cache_for(llama, policy=case.make(), budget=case.budget) for _ in range(2)
    )
    ids = tokens(2, 116)
    for piece in ids.split([110, 1, 1, 4], dim=1):
        found = llama(piece, past_key_values=with_grad).logits[:, -1]
        with_grad.gate()(None, found)
        with torch.no_grad():
            expected = llama(piece, past_key_values=without).logits[:, -1]
            without.gate()(None, expected)
        torch.testing.assert_close(found, expected, **CLOSE)
    # gradients go through transformers, whose sums round differently
    assert with_grad.confidences == pytest.approx(without.confidences, abs=1e-5)
    with_grad.confidences = without.confidences
    assert_same(with_grad, without)
    tensors = [t for store in with_grad.cache_layers for t in store.storage.dense.tensors]
    assert not any(tensor.requires_grad for tensor in tensors)


def test_so_it_can_in_every_family(family, model, cache_for, tokens):
    cache = cache_for(model, policy=CASES["critical-ada-snapkv"].make(), budget=24)
    for piece in tokens(2, 60).split([55, 1, 4], dim=1):
        cache.apply_gate(model(piece, past_key_values=cache).logits[:, -1])
    cache.check()


def test_no_gradient_is_given_through_a_cache_and_the_error_says_so(llama, cache_for, tokens):
    loss = llama(tokens(1, 9), past_key_values=cache_for(llama, policy="full")).logits.sum()
    with pytest.raises(ValueError, match="for inference.*without it"):
        loss.backward()
    llama(tokens(1, 9), use_cache=False).logits.sum().backward()
    assert llama.model.layers[0].self_attn.k_proj.weight.grad is not None


# ---- a forward that did not end


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("batch_of_one", [True, False])
@torch.no_grad()
@pytest.mark.sample("values")
def test_after_a_forward_that_did_not_end_nothing_goes_on(
    family, model, cache_for, tokens, error, batch_of_one
):
    cache = used(model, cache_for, tokens)
    before, twin = cache.snapshot(), used(model, cache_for, tokens)
    new = tokens(1, 1 if batch_of_one else 5, seed=3)
    handle = failing(layers_of(model)[1], error)
    with pytest.raises(type(error)):
        model(new, past_key_values=cache)
    handle.remove()
    seen = {store.seen for store in cache.cache_layers}
    assert len(seen) == 2, "some layers have seen more than others"
    for refused in (
        lambda: model(new, past_key_values=cache),
        lambda: cache.feed(model, new),
        lambda: cache.apply_gate(torch.zeros(1, 96)),
        lambda: cache.reorder_cache(torch.tensor([0])),
        cache.snapshot,
        lambda: cache.save("nowhere"),
        lambda: feed_packed(model, [cache], [new]),
    ):
        with pytest.raises(ValueError, match=UNFINISHED):
            refused()
    cache.restore(before)
    cache.check()
    assert torch.equal(cache.feed(model, new), twin.feed(model, new))
    assert_same(cache, twin)


@torch.no_grad()
def test_reset_makes_it_as_good_as_new(llama, cache_for, tokens):
    cache = used(llama, cache_for, tokens)
    handle = failing(llama.model.layers[2].self_attn, RuntimeError("out of memory"))
    with pytest.raises(RuntimeError):
        llama(tokens(1, 2), past_key_values=cache)
    handle.remove()
    cache.reset()
    cache.feed(llama, tokens(1, 90))
    cache.check()
    assert_same(cache, used(llama, cache_for, tokens))


@torch.no_grad()
def test_a_policy_that_fails_in_a_forward_or_after_it_leaves_a_cache_unfinished(
    llama, cache_for, tokens
):
    for at, length in ((3, 5), (1, 1)):  # in the middle of a page; at the end of a step
        calls = 0

        def fails(rows, at=at):
            nonlocal calls
            calls += 1
            if calls == at:
                raise RuntimeError("no score")
            return rows.keys_values()[0].sum(dim=-1)

        cache = cache_for(llama, policy=agentkv.scored("failing", fails), budget=20)
        cache.feed(llama, tokens(1, 20))
        with pytest.raises(RuntimeError, match="no score"):
            llama(tokens(1, length, seed=1), past_key_values=cache)
        with pytest.raises(ValueError, match=UNFINISHED):
            llama(tokens(1, 1, seed=2), past_key_values=cache)


@torch.no_grad()
def test_what_fails_before_any_layer_has_seen_a_token_changes_nothing(llama, cache_for, tokens):
    cache, twin = (used(llama, cache_for, tokens) for _ in range(2))
    new = tokens(1, 3, seed=1)
    for error in (RuntimeError("no embedding"), KeyboardInterrupt()):
        handle = failing(llama.model.embed_tokens, error)
        with pytest.raises(type(error)):
            llama(new, past_key_values=cache)
        handle.remove()
    assert torch.equal(cache.feed(llama, new), twin.feed(llama, new))
    cache.check()
    assert_same(cache, twin)


@torch.no_grad()
def test_what_fails_behind_the_layers_has_been_read(llama, cache_for, tokens):
    cache = used(llama, cache_for, tokens)
    handle = failing(llama.lm_head, RuntimeError("out of memory"))
    with pytest.raises(RuntimeError):
        llama(tokens(1, 3), past_key_values=cache)
    handle.remove()
    cache.check()
    assert cache.seen == 93
    cache.feed(llama, tokens(1, 1))


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt()], ids=repr)
@torch.no_grad()
def test_all_caches_of_a_shared_forward_that_did_not_end_are_unfinished(
    llama, cache_for, tokens, error
):
    caches = [used(llama, cache_for, tokens, name) for name in ("full", "conf-kv-int8", "h2o")]
    before = [cache.snapshot() for cache in caches]
    handle = failing(llama.model.layers[1], error)
    new = [tokens(1, 1)] * 3
    with pytest.raises(type(error)):
        feed_packed(llama, caches, new)
    handle.remove()
    for cache in caches:
        with pytest.raises(ValueError, match=UNFINISHED):
            feed_packed(llama, [cache, used(llama, cache_for, tokens)], [tokens(1, 1)] * 2)
        with pytest.raises(ValueError, match=UNFINISHED):
            cache.feed(llama, tokens(1, 1))
    for cache, snapshot in zip(caches, before, strict=True):
        cache.restore(snapshot)
    assert feed_packed(llama, caches, new).errors == (None,) * 3


@torch.no_grad()
def test_a_cache_that_alone_broke_in_a_shared_forward_is_the_only_one_refused(
    llama, cache_for, tokens
):
    calls = 0

    def fails(rows):
        nonlocal calls
        calls += 1
        if calls == 2:
            raise RuntimeError("no score")
        return rows.keys_values()[0].sum(dim=-1)

    bad = cache_for(llama, policy=agentkv.scored("failing", fails), budget=20)
    bad.feed(llama, tokens(1, 20))
    good = used(llama, cache_for, tokens)
    fed = feed_packed(llama, [good, bad], [tokens(1, 1), tokens(1, 5)])
    assert fed.errors[0] is None and str(fed.errors[1]) == "no score"
    with pytest.raises(ValueError, match=UNFINISHED):
        bad.feed(llama, tokens(1, 1))
    good.feed(llama, tokens(1, 1))
    good.check()


# ---- threads


class Held:
    """A forward of another thread that stands still in a layer until it is told to go on."""

    def __init__(self, module, work):
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.error = None
        self.handle = module.register_forward_hook(self._wait)
        self.thread = threading.Thread(target=self._run, args=(work,), name="reader")

    def _wait(self, *args):
        self.handle.remove()
        self.inside.set()
        assert self.go_on.wait(60)

    def _run(self, work):
        try:
            work()
        except BaseException as error:
            self.error = error

    def __enter__(self):
        self.thread.start()
        assert self.inside.wait(60)
        return self

    def __exit__(self, *args):
        self.go_on.set()
        self.thread.join()


def test_two_threads_that_feed_one_cache_at_once_are_told(llama, cache_for, tokens):
    cache, twin, other = (used(llama, cache_for, tokens) for _ in range(3))
    new = tokens(1, 2, seed=1)
    with Held(llama.model.layers[1], lambda: cache.feed(llama, new)) as held:
        for refused in (
            lambda: cache.feed(llama, new),
            lambda: feed_packed(llama, [other, cache], [new, new]),
            lambda: cache.apply_gate(torch.zeros(1, 96)),
            lambda: cache.reorder_cache(torch.tensor([0])),
            cache.snapshot,
            cache.reset,
        ):
            with pytest.raises(ValueError, match="thread 'reader'"):
                refused()
        other.feed(llama, new)  # a cache of its own is everyone's right
    assert held.error is None
    twin.feed(llama, new)
    assert torch.equal(cache.feed(llama, new), twin.feed(llama, new))
    cache.check()
    assert_same(cache, twin)


def test_threads_may_take_turns(llama, cache_for, tokens):
    cache, twin = (used(llama, cache_for, tokens) for _ in range(2))
    found = []
    for seed in range(3):
        thread = threading.Thread(
            target=lambda seed=seed: found.append(cache.feed(llama, tokens(1, 2, seed=seed)))
        )
        thread.start()
        thread.join()
        assert torch.equal(found[-1], twin.feed(llama, tokens(1, 2, seed=seed)))
    assert_same(cache, twin)


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt()], ids=repr)
def test_a_thread_that_broke_a_forward_is_not_waited_for(llama, cache_for, tokens, error):
    cache = used(llama, cache_for, tokens)
    raised = []

    def work():
        handle = failing(llama.model.layers[1], error)
        try:
            cache.feed(llama, tokens(1, 2))
        except BaseException as found:
            raised.append(found)
        handle.remove()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert raised == [error]
    with pytest.raises(ValueError, match=UNFINISHED):
        cache.feed(llama, tokens(1, 2))
    cache.reset()
    cache.feed(llama, tokens(1, 2))


@torch.no_grad()
def test_a_shared_forward_that_one_cache_refuses_holds_none_of_the_others(llama, cache_for, tokens):
    free, busy = (used(llama, cache_for, tokens) for _ in range(2))
    new = tokens(1, 1)
    together = PackedForward(llama, [free, busy], [new, new])
    with (
        Held(llama.model.layers[1], lambda: busy.feed(llama, new)),
        pytest.raises(ValueError, match="thread 'reader'"),
    ):
        together.read()
    free.feed(llama, new)
    assert (free.seen, busy.seen) == (91, 91)
