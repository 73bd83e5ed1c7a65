"""The life of a cache: fed, settled, labelled, pinned, reordered, reset, copied, saved, loaded and
restored at random.

Two judges. A replay on a new cache of nothing but what was fed must give the same cache, since what
comes back from a file or a snapshot is to go on as if it had never been away. And every logit must
be that of one forward over a sequence's whole history, in which what was gone by then is masked.
"""

import copy
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import agentkv
from agentkv.cache.misuse import Misuse
from agentkv.policies.entries import PolicyError
from tests.agentkv.cache.policies_under_test import CASES

VOCAB = 96
CLOSE = {"atol": 1e-4, "rtol": 1e-4}
# a life takes half a second, most examples of other tests some milliseconds
FEW = settings(max_examples=settings.default.max_examples // 12, stateful_step_count=10)
# a stored format spares it the judge of logits, which knows no second pass
LOOKING = replace(
    CASES["lookback"],
    make=lambda: agentkv.policy("lookback", threshold=0.5, blocks=2, block=4),
    format="int8",
)
DIGESTS = replace(
    LOOKING,
    make=lambda: agentkv.policy("lookback", threshold=0.5, blocks=2, block=4, digests=True),
)
BOUNDED = replace(
    LOOKING,
    make=lambda: agentkv.policy("lookback", threshold=0.5, blocks=2, block=4, cold=20, slack=3),
)
LIVED = {**CASES, "looking": LOOKING, "looking by digests": DIGESTS, "looking bounded": BOUNDED}
LIVES = [
    *(("llama", name) for name in ("looking by digests", "edie-tada", "conf-kv-int8")),
    ("llama", "looking bounded"),
    *(("llama", "critical-ada-snapkv"), ("gpt_oss", "arkv")),
]
FURTHER = [
    *(("llama", "looking"), ("gpt_oss", "looking")),
    *(("llama", name) for name in ("snapkv", "ada-snapkv", "arkv", "h2o", "int8", "streaming")),
    *(("gpt_oss", name) for name in ("ada-snapkv", "edie-tada")),
]


class Life(RuleBasedStateMachine):
    """The expected cache: all operations on it, and for each sequence and forward its
    tokens, their logits, and what was held when they came."""

    def __init__(self, model, case, judge, kept_by_head, folder):
        super().__init__()
        self.model, self.case, self.judge, self.kept_by_head = model, case, judge, kept_by_head
        self.path = Path(folder) / "cache"
        self.num_heads = model.config.num_key_value_heads
        self.generator = torch.Generator().manual_seed(0)
        self.done, self.stories = [], []
        self.snapshots, self.foreign, self.saved = [], [], None
        self.cache = self.new_cache()

    def new_cache(self):
        return agentkv.Cache.for_model(self.model, policy=self.case.make(), budget=self.case.budget)

    @property
    def now(self):
        return list(self.done), [list(story) for story in self.stories]

    @now.setter
    def now(self, then):
        self.done, self.stories = list(then[0]), [list(story) for story in then[1]]

    @initialize(batch=st.integers(1, 3))
    def start(self, batch):
        self.feed_tokens(batch, 60)

    @rule(batch=st.integers(1, 3), count=st.sampled_from([1, 1, 1, 2, 7, 40]))
    def feed(self, batch, count):
        self.feed_tokens(len(self.stories) or batch, count)

    @torch.no_grad()
    def feed_tokens(self, batch, count):
        try:
            self.cache.evictor.require_room(count)
        except PolicyError:  # tokens are pinned as they come, and so many do not fit
            with pytest.raises(PolicyError):
                self.model(torch.ones(batch, count, dtype=torch.int64), past_key_values=self.cache)
            self.change_spans("label", "rest", None, False)
        ids = torch.randint(1, VOCAB, (batch, count), generator=self.generator)
        self.stories = self.stories or [[] for _ in range(batch)]
        nothing = [[torch.arange(0)] * self.num_heads] * batch
        held = [nothing] * len(self.cache.cache_layers)
        if self.cache.seen:
            held = self.kept_by_head(self.cache)
        logits = self.model(ids, past_key_values=self.cache).logits
        for i, story in enumerate(self.stories):
            story.append((ids[i], logits[i], [[layer[i]] for layer in held]))
        self.done.append(("feed", ids))

    @precondition(lambda self: self.stories)
    @rule(is_sure=st.lists(st.booleans(), min_size=3, max_size=3))
    def apply_gate(self, is_sure):
        logits = torch.randn(len(self.stories), VOCAB, generator=self.generator)
        for i, sure in enumerate(is_sure[: len(self.stories)]):
            logits[i] *= 50 if sure else 0.1
        self.cache.apply_gate(logits)
        self.done.append(("apply_gate", logits))

    @precondition(lambda self: self.stories)
    @rule(data=st.data())
    def reorder(self, data):
        each = st.integers(0, len(self.stories) - 1)
        index = data.draw(st.lists(each, min_size=1, max_size=3))
        self.cache.reorder_cache(torch.tensor(index))
        self.stories = [list(self.stories[i]) for i in index]
        self.done.append(("reorder_cache", torch.tensor(index)))

    @rule(count=st.none() | st.integers(1, 12), pinned=st.booleans(), label=st.sampled_from("ab"))
    def label(self, count, pinned, label):
        self.change_spans("label", label, count, pinned)

    @precondition(lambda self: self.stories)
    @rule(data=st.data(), what=st.sampled_from(["pin", "pin", "unpin", "drop"]))
    def pin_unpin_or_drop(self, data, what):
        known = [span.label for span in self.cache.spans() if span.start < self.cache.seen]
        start = data.draw(st.integers(0, self.cache.seen - 1))
        stop = data.draw(st.integers(start + 1, min(self.cache.seen, start + 9)))
        named = st.sampled_from([range(start, stop), *known])
        self.change_spans(what, data.draw(named))

    def change_spans(self, what, *given):
        """Do it, or see it refused without an effect."""
        before = self.pins_and_kept
        try:
            self.do(self.cache, what, *given)
        except (Misuse, PolicyError):
            assert self.pins_and_kept == before
        else:
            self.done.append((what, *given))

    @property
    def pins_and_kept(self):
        kept = [layer.kept() for layer in self.cache.cache_layers]
        each = [x.tolist() for of_layer in kept for heads in of_layer for x in heads]
        return list(self.cache.evictor.spans.sequences), each

    @staticmethod
    def do(cache, what, *given):
        if what == "label":
            label, count, pinned = given
            cache.label(label, count, pinned=pinned)
        else:
            getattr(cache, what)(*given)

    @rule()
    def reset(self):
        self.cache.reset()
        self.stories = []
        self.done.append(("reset",))

    @rule()
    def take_a_snapshot(self):
        held = self.cache.nbytes
        self.snapshots.append((self.cache.snapshot(), self.now))
        assert self.cache.nbytes == held

    @precondition(lambda self: self.snapshots)
    @rule(data=st.data())
    def restore(self, data):
        snapshot, then = data.draw(st.sampled_from(self.snapshots))
        self.cache.restore(snapshot)
        self.now = then

    @precondition(lambda self: self.foreign)
    @rule()
    def refuse_a_snapshot_of_another_cache(self):
        held = self.cache.nbytes
        with pytest.raises(Misuse, match="snapshot of this cache"):
            self.cache.restore(self.foreign[-1][0])
        assert self.cache.nbytes == held

    @rule()
    def be_copied(self):
        self.cache = copy.deepcopy(self.cache)  # the snapshots are the copy's too

    @rule()
    def save(self):
        self.cache.pending = [[len(self.done)]] * len(self.stories)
        self.cache.save(self.path)
        self.saved = self.now, self.cache.peak_nbytes

    @precondition(lambda self: self.saved is not None)
    @rule()
    def load(self):
        self.cache = agentkv.Cache.load(self.path, self.model)
        # those of the other cache, which is gone
        self.foreign, self.snapshots = self.foreign + self.snapshots, []
        self.now, peak = self.saved
        assert self.cache.peak_nbytes == peak
        assert self.cache.pending == [[len(self.done)]] * len(self.stories)

    @invariant()
    def the_structure_is_sound(self):
        self.cache.check()
        self.cache.check()  # looking changes nothing

    @invariant()
    def a_confidence_belongs_to_each_sequence(self):
        if self.cache.confidences is not None:
            assert len(self.cache.confidences) == len(self.stories)

    @invariant()
    def every_token_is_counted(self):
        length = sum(len(ids) for ids, _, _ in self.stories[0]) if self.stories else 0
        assert self.cache.seen == length
        assert self.cache.batch_size == (len(self.stories) or -1)
        if self.stories:
            ids = torch.stack([torch.cat([part[0] for part in story]) for story in self.stories])
            assert torch.equal(self.cache.ids, ids.to(torch.int32))

    def teardown(self):
        if any(each.pins.is_open for each in self.cache.evictor.spans.sequences):
            self.change_spans("label", "rest", None, False)
        twin = self.replayed()
        self.compare(twin)
        for story in self.stories if self.case.format is None else []:
            self.judge_logits(story)
        batch = len(self.stories) or 2
        for count in (1, 30, 1):
            ids = torch.randint(1, VOCAB, (batch, count), generator=self.generator)
            with torch.no_grad():
                found = self.model(ids, past_key_values=self.cache).logits
                expected = self.model(ids, past_key_values=twin).logits
            assert torch.equal(found, expected)
        self.compare(twin)
        if self.snapshots:  # as good as new, whatever happened since
            self.cache.restore(self.snapshots[0][0])
            self.now = self.snapshots[0][1]
            self.compare(self.replayed())

    def replayed(self):
        twin = self.new_cache()
        with torch.no_grad():
            for what, *given in self.done:
                if what == "feed":
                    self.model(given[0], past_key_values=twin)
                else:
                    self.do(twin, what, *given)
        return twin

    def compare(self, twin):
        twin.check()
        for i in range(len(twin.cache_layers)):
            pairs = zip(self.cache.kept(i), twin.kept(i), strict=True)
            for found, expected in pairs:
                assert [x.tolist() for x in found] == [x.tolist() for x in expected]
        assert self.cache.nbytes == twin.nbytes
        assert self.cache.evictor.spans.sequences == twin.evictor.spans.sequences
        assert self.cache.confidences == twin.confidences
        allocator = twin.policy.allocator
        if allocator.learns:
            assert self.cache.policy.allocator.state == allocator.state

    def judge_logits(self, story):
        ids = torch.cat([part[0] for part in story])
        cuts, start = [], 0
        for new, _, held in story:
            cuts.append((start, held))
            start += len(new)
        expected = self.judge().at_once(ids[None], cuts)[0]
        torch.testing.assert_close(torch.cat([part[1] for part in story]), expected, **CLOSE)


@pytest.mark.parametrize(
    "family, name",
    LIVES + [pytest.param(*life, marks=pytest.mark.exhaustive) for life in FURTHER],
    ids=map("-".join, LIVES + FURTHER),
)
def test_a_cache_is_what_it_was_fed_whatever_else_happened_to_it(
    model_of, judge, kept_by_head, family, name
):
    model = model_of(family)
    agentkv.attach(model)
    with tempfile.TemporaryDirectory() as folder:
        run_state_machine_as_test(
            lambda: Life(model, LIVED[name], lambda: judge(family), kept_by_head, folder),
            settings=FEW,
        )
