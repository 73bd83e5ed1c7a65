"""The cache: what transformers receives as `past_key_values`."""

import copy
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NoReturn, Self, SupportsIndex

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from agentkv.cache.budget import Budget, Bytes, default_budget, parse_budget
from agentkv.cache.checkpoint.file import CacheFileError
from agentkv.cache.checkpoint.saved import load, save
from agentkv.cache.checkpoint.snapshot import (
    NOT_PICKLED,
    LayerEntries,
    Snapshot,
    entries_of,
    fill,
    recurrent_of,
    state_of,
)
from agentkv.cache.eviction.evictor import Evictor
from agentkv.cache.eviction.turns import Turns
from agentkv.cache.forks import forked_entries_of, shared_nbytes
from agentkv.cache.geometry import Attention, Geometry
from agentkv.cache.hf.attach import LogitsGate, attach
from agentkv.cache.hf.compat import (
    CACHE,
    Handle,
    WithoutGradient,
    decoder_layers,
    outside_compile,
)
from agentkv.cache.hf.families import describe
from agentkv.cache.hf.hooked_cache import HookedCache
from agentkv.cache.hf.projection import DTYPES
from agentkv.cache.hf.residual_shift import watch_residual_shift
from agentkv.cache.layer import CacheLayer
from agentkv.cache.look_back import Look, LookRecord, SecondPass, query_similarities
from agentkv.cache.misuse import Misuse
from agentkv.cache.numbering import Numbering, is_bounded, why_limited
from agentkv.cache.progress import ForwardGuard
from agentkv.cache.recurrent import WHY_NOT_BACK, RecurrentLayer, misplaced_padding
from agentkv.cache.refusals import require_policy
from agentkv.cache.repair import Rehearsal
from agentkv.cache.replacement import (
    INSTEAD,
    Tail,
    moved_spans,
    replaced_ids,
    why_not_replaced,
)
from agentkv.cache.roll_back import num_to_forget, require_held, why_no_drafts
from agentkv.cache.spans import Found, Pins, SequenceSpans
from agentkv.cache.storage.cold_memory import IN_MEMORY, ColdMemory
from agentkv.cache.storage.table import Meter
from agentkv.cache.storage.token_ids import TokenIds
from agentkv.defaults import CHUNK, POLICY
from agentkv.policies.entries import PolicyError, Span
from agentkv.policies.policy import Policy
from agentkv.policies.recall import LookBack
from agentkv.policies.registry import policy as named_policy
from agentkv.policies.slots import Learner

AT_ONCE = 512
"""Tokens that one forward of `feed` reads at most, unless a chunk is longer (our choice): more
cost memory and save no time."""

Prefill = Literal["chunked", "whole"]

OTHER_MODEL = "this cache was made for another model; make one with agentkv.Cache.for_model(model)"


class Cache(HookedCache):
    """Keys and values of a batch of token streams, kept small by a policy.

    Make a cache with `for_model`, pass it to `generate` or `forward` as `past_key_values`, and keep
    using it in the next turn. Feed every token once; positions follow from the tokens seen.

    A cache is for inference: nothing it stores has a gradient. After a forward that did not end,
    for whatever reason, the next one is refused until `restore` or `reset`. Threads may take turns
    with a cache; two at the same time are refused.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        policy: Policy,
        budget: Budget,
        prefill: Prefill,
        chunk: int,
        dtype: torch.dtype | None = None,
        cold_memory: ColdMemory = IN_MEMORY,
    ) -> None:
        modules = {id(module) for module in model.modules()}
        base = weakref.ref(model.base_model)
        own = (policy, budget, prefill, chunk, dtype, cold_memory)
        self._set_up(describe(model), base, modules, *own)
        if policy.allocator.learns:
            watch_residual_shift(model)

    def _set_up(
        self,
        geometry: Geometry,
        model: "weakref.ref[nn.Module]",
        modules: set[int],
        policy: Policy,
        budget: Budget,
        prefill: Prefill,
        chunk: int,
        dtype: torch.dtype | None,
        cold_memory: ColdMemory,
    ) -> None:
        """Become an empty cache.

        Args:
            model: the base model.
            modules: ids of all modules of the whole model.
        """
        if dtype is not None:
            geometry = replace(geometry, dtype=dtype)
        require_policy(policy, geometry)
        self.geometry, self.policy = geometry, policy
        """`policy` is the one requested; `fitted` has its budget filled in."""
        self.prefill: Prefill = "whole" if policy.gate.whole else prefill
        self.chunk = chunk
        self.dtype = dtype
        """Dtype of dense entries as requested; None for the model's."""
        self.meter, self.cold_meter, self.index_meter = Meter(), Meter(), Meter()
        self.cold_memory = cold_memory
        """Where the cold tier is."""
        meters = (self.meter, self.cold_meter, self.index_meter)
        self.evictor = Evictor(policy, budget, geometry, *meters, cold_memory, dtype)
        self.recurrent = {i: RecurrentLayer(self.meter) for i in geometry.recurrent_layers}
        """Recurrent states by decoder layer; empty for most models."""
        self.progress = ForwardGuard()
        self.may_look_back = True
        """False keeps tokens from looking back, whatever the policy says: set it while the next
        token is known already and their logits are of no use."""
        self.reads_cold = isinstance(policy.recall, LookBack) and policy.recall.reads == "all"
        """True: the tokens of an input attend to evicted entries too, where a forward reads several
        of them. False hides these entries from them, whatever the policy says."""
        self.origin: object = object()
        """Shared with copies; a snapshot can be restored where it is the same."""
        self._model, self._modules = model, modules
        self._has_gate = self._in_chunks = False
        self._begin_stream()
        super().__init__(layers=decoder_layers(self.evictor.layers, geometry.hybrid))

    def _begin_stream(self) -> None:
        """Have been fed nothing."""
        self.token_ids = TokenIds()
        self.batch: int | None = None
        """Sequences; None before the first forward."""
        self.num_new = 0
        """Columns of the latest forward."""
        self.confidences: list[float] | None = None
        """Confidence of each sequence when the gate was last applied; None if it never was."""
        self.turns = Turns()
        """Confidence of each sequence's turn, of a gate that decides between turns."""
        self.looks = LookRecord()
        """Alarms and looks back, of a policy that looks back."""
        self.pending: list[list[int]] | None = None
        """For the owner of the cache: per sequence, tokens that were sampled and not fed yet. They
        are saved and restored with the cache, which does not use them."""
        self.numberings: list[Numbering] = []
        """Rotary positions of each sequence; empty while all of them are those of the stream."""
        self.num_renumberings = 0
        """Number of renumberings of all sequences, each where the model's positions ran out."""
        self._new_ids: Tensor | None = None
        self._newest: Tensor | None = None
        """(B, 1) ids of the latest forward's last tokens; None for embeddings."""
        self._is_token: Tensor | None = None
        """(B, columns of the latest forward) bool on the CPU, False for padding; None: none."""
        self._look: Look | None = None
        """The look of a forward whose tokens look back in their one pass; None between forwards."""
        self._has_looked = False
        """True if tokens of the latest forward could look back in their one pass."""
        self._takes_drafts = False
        """Whether a forward may be followed by `crop`, for which evictions wait."""
        self._num_waiting = 0
        """Columns of the latest forward if its evictions wait."""
        self._new_confidences: Tensor | None = None
        """(B,) confidence after the latest forward, if a gate will ask for it."""

    @classmethod
    def for_model(
        cls,
        model: PreTrainedModel,
        *,
        policy: str | Policy = POLICY,
        budget: int | float | str | None = None,
        prefill: Prefill = "chunked",
        chunk: int = CHUNK,
        dtype: str | torch.dtype | None = None,
        cold_folder: str | os.PathLike[str] | None = None,
        cold_limit: int | str | None = None,
    ) -> "Cache":
        """Return an empty cache for `model`, and attach the model if it is not.

        Args:
            policy: a name, or a value from `agentkv.policy`.
            budget: tokens per layer and KV head, protected ones included; or a share of the tokens
                that each sequence has seen, such as 0.25 or "25%"; or bytes for the whole cache at
                rest, such as "64MiB". For conf-kv it is the loose budget. None: a policy that needs
                a budget gets `agentkv.defaults`: a quarter of the tokens seen, at least 1,024.
            prefill: how `feed` takes a long input: "chunked" attends and evicts chunk by chunk in
                every layer, which bounds the peak; "whole" lets every token see all of it, as most
                presets `paper:NAME` always do. A forward that arrives whole, as from `generate`, is
                attended whole and evicted layer by layer right after; `generate(...,
                prefill_chunk_size=cache.chunk)` bounds that as well.
            chunk: tokens per chunk.
            dtype: in which entries that are not quantized are stored, such as "bfloat16", whatever
                the model computes in; None: in the model's own.
            cold_folder: folder for the cold tier of a policy that looks back, in files without a
                name; None: memory.
            cold_limit: bytes that the cold tier may have, such as "2GiB". A forward after which it
                might have more is refused before it begins. None: no limit.

        Raises:
            PolicyError: a ValueError; the policy, budget, prefill, chunk or dtype cannot be used,
                or the policy has no cold tier to put into a folder or to limit.
            ColdMemoryError: a ValueError; the folder takes no files.
            UnsupportedModel: a ValueError that names the part of the model that is not supported.
        """
        if prefill not in ("chunked", "whole"):
            raise PolicyError(f"prefill must be 'chunked' or 'whole'; found {prefill!r}")
        if chunk < 1:
            raise PolicyError(f"chunk must be at least 1 token; found {chunk}")
        value = named_policy(policy) if isinstance(policy, str) else policy
        parsed = default_budget(value) if budget is None else parse_budget(budget)
        memory = _cold_memory(value, cold_folder, cold_limit)
        attach(model)
        found = None if dtype is None else _dtype(dtype)
        return cls(
            model,
            policy=value,
            budget=parsed,
            prefill=prefill,
            chunk=chunk,
            dtype=found,
            cold_memory=memory,
        )

    # ---- reading

    @property
    def cache_layers(self) -> list[CacheLayer]:
        """The layers that attend, with their storage."""
        return self.evictor.layers

    @property
    def budget(self) -> Budget:
        """The budget as requested."""
        return self.evictor.budget

    @property
    def fitted(self) -> Policy:
        """The policy with its budget filled in, for the sequence that has seen most."""
        fed = self.evictor.fed
        most = fed.index(max(fed))
        return self.evictor.allowance.at(fed[most], self.evictor.spans.pins(most))

    @property
    def seen(self) -> int:
        """Tokens fed so far, in columns of the batch."""
        return self.cache_layers[0].seen

    @property
    def batch_size(self) -> int:
        """Sequences in the batch; -1 before the first forward."""
        return -1 if self.batch is None else self.batch

    @property
    def ids(self) -> Tensor | None:
        """(B, seen) int32 on the CPU: tokens fed so far, padding included. None before the first,
        and forever once embeddings were fed."""
        return self.token_ids.all()

    @property
    def nbytes(self) -> int:
        """Bytes of all storage, read from the storage: keys, values, scales, positions, statistics,
        the window of queries and recurrent states. A cold tier is counted apart."""
        return sum(layer.nbytes for layer in self.cache_layers) + self.recurrent_nbytes

    @property
    def recurrent_nbytes(self) -> int:
        """Bytes of recurrent states, which no budget bounds."""
        return sum(layer.nbytes for layer in self.recurrent.values())

    @property
    def cold_nbytes(self) -> int:
        """Bytes of the entries that were evicted and may be fetched again."""
        return sum(tier.nbytes for tier in self.evictor.cold_tiers)

    @property
    def index_nbytes(self) -> int:
        """Bytes of the index that looks scan instead of the cold tier's keys: digests or
        representatives."""
        return sum(tier.index_nbytes for tier in self.evictor.cold_tiers)

    @property
    def peak_nbytes(self) -> int:
        """The most bytes that the storage held at any moment, within forwards too.

        Temporary copies of entries count: a table that is laid out anew exists twice, field by
        field. Work space of attention, scores and encoding does not count.
        """
        self._count_growth()
        return self.meter.peak

    @property
    def shared_nbytes(self) -> int:
        """Bytes of `nbytes` and `cold_nbytes` that forks of this cache, or the cache that it is a
        fork of, hold too."""
        return shared_nbytes(self)

    def _count_growth(self) -> None:
        for layer in self.cache_layers:
            layer.count_growth()

    def kept(self, layer: int) -> list[list[Tensor]]:
        """Return the original positions that `layer` still stores, per sequence and KV head.

        Layers that do not attend are not numbered.

        Positions are int64 and ascend; they count the sequence's own tokens from 0, without
        padding.
        """
        return self.cache_layers[layer].kept()

    def num_holders(self, sequence: int = 0) -> tuple[Tensor, int]:
        """Return how many pairs of a layer and a KV head still store each token of a sequence.

        Layers that only a window of the model's own bounds do not count, unless all are of that
        kind; neither does the cold tier.

        Returns:
            (tokens of the sequence,) int64 on the CPU, and the number of all pairs.
        """
        num_seen = self.evictor.fed[sequence] if self.seen else 0
        counts = torch.zeros(num_seen, dtype=torch.int64)
        layers = self._bounded_layers()
        for layer in layers if num_seen else ():
            counts += layer.num_holders(sequence)
        return counts, sum(layer.shape.num_heads for layer in layers)

    @property
    def num_evicted(self) -> int:
        """Entries that have left, of all sequences, in the layers that `num_holders` counts.

        Dropped entries and those in the cold tier count; those that a look brought back do not.
        """
        return sum(layer.num_evicted for layer in self._bounded_layers())

    @property
    def keeps_all(self) -> bool:
        """True if the policy keeps every entry as it is."""
        return not self.policy.gate.evicts and self.policy.precision.format is None

    def _bounded_layers(self) -> Sequence[CacheLayer]:
        """Return the layers that the policy bounds; all if it bounds none."""
        layers = self.cache_layers
        return [layer for layer in layers if layer.policy is not None] or layers

    def check(self) -> None:
        """Audit the whole structure. Raises AssertionError naming what is broken."""
        if self._num_waiting:
            self._require_rest()
        for layer in self.cache_layers:
            layer.check()
            for i, each in enumerate(self.evictor.spans.sequences if layer.policy else ()):
                for start, stop in each.pins.ranges if layer.is_filled else ():
                    assert not layer.num_missing(i, start, stop), "a pinned token has left"
            assert layer.seen == self.seen, "layers have seen different numbers of tokens"
        self._count_growth()
        assert self.nbytes == self.meter.live, f"{self.nbytes} bytes, {self.meter.live} metered"
        assert self.meter.live <= self.meter.peak
        assert self.cold_nbytes == self.cold_meter.live, "bytes of the cold tier are miscounted"
        assert self.index_nbytes == self.index_meter.live, "bytes of the index are miscounted"
        ids = self.ids
        assert ids is None or ids.shape == (self.batch, self.seen), "token ids are incomplete"

    # ---- labels and pins

    def spans(self, sequence: int = 0) -> tuple[Span, ...]:
        """Return the labelled spans of a sequence, in order of position."""
        return self.evictor.spans.sequences[sequence].labelled

    def pins(self, sequence: int = 0) -> tuple[range, ...]:
        """Return the pinned positions of a sequence, those of tokens that will come included.

        A range of tokens that are pinned as they come ends with the newest token.
        """
        num_seen = self.evictor.fed[sequence]
        return tuple(
            range(start, num_seen if stop is None else stop)
            for start, stop in self.evictor.spans.pins(sequence).ranges
        )

    def label(
        self,
        label: str,
        tokens: int | None = None,
        *,
        start: int | None = None,
        pinned: bool = False,
        sequence: int | None = None,
    ) -> None:
        """Label tokens, usually before they are fed, and pin them if wanted.

        Policies see labels (`Entries.spans`), and `pin`, `unpin` and `drop` find spans by them. A
        pinned token counts in the budget and never leaves. Calls may be queued: the first for the
        next 40 tokens, the second for the 900 after them, and so on. A label for tokens that were
        not fed may be replaced by another one.

        Args:
            label: such as "goal" or "page 3"; several spans may share one.
            tokens: number of tokens; None: all up to the next label.
            start: position of the first one, among the sequence's own tokens. None: the first token
                that was neither fed nor labelled.
            pinned: pin the tokens, those that are not fed yet as they come.
            sequence: number of the only sequence to label; None: all sequences.

        Raises:
            Misuse: a ValueError; the span overlaps another one, or tokens to pin have left.
            PolicyError: a ValueError; the pinned tokens do not fit into the budget.
        """
        spans, fed = self.evictor.spans, self.evictor.fed
        self._use_spans(
            spans.labelled(label, tokens, start=start, pinned=pinned, fed=fed, sequence=sequence)
        )

    def pin(self, span: str | range | Span, *, sequence: int | None = None) -> None:
        """Keep tokens from eviction: all spans of a label, or a range of positions.

        Pinned tokens count in the budget. They may be quantized, and a window of the model's own
        still hides them.

        Args:
            sequence: number of the only sequence to pin in; None: all sequences.

        Raises:
            Misuse: a ValueError; the tokens were not seen, or some have left.
            PolicyError: a ValueError; the pinned tokens do not fit into the budget.
        """
        self._use_pins(self._find(span, sequence), Pins.with_range)

    def unpin(self, span: str | range | Span, *, sequence: int | None = None) -> None:
        """Let pinned tokens be evicted again; tokens that are not pinned stay as they are.

        Raises:
            Misuse: a ValueError; the tokens were not seen.
        """
        self._use_pins(self._find(span, sequence), Pins.without_range)

    @torch.no_grad()
    def drop(self, span: str | range | Span, *, sequence: int | None = None) -> None:
        """Drop tokens from all layers, pinned ones too, and return their memory.

        All other tokens keep their positions.

        Raises:
            Misuse: a ValueError; the tokens were not seen, or a recurrent state holds them.
        """
        self._require_no_states("drop tokens")
        found = self._find(span, sequence)
        self._require_rest()
        with self.progress.changing():
            for layer in self.cache_layers:
                for i, start, stop in found:
                    layer.drop_span(i, start, stop)
        self._use_pins(found, Pins.without_range)

    @torch.no_grad()
    def replace(self, model: PreTrainedModel, span: range, ids: Sequence[int]) -> None:
        """Replace tokens by others, which attend to what precedes them. Later tokens stay.

        The entries of later tokens stay as they are, although these tokens attended to the old
        ones. Tokens to come attend to the new ones. New tokens take the first positions of the
        span. If they are fewer, the positions after them stay empty. If they are more, all later
        tokens move to later positions, and their keys are turned (as in `turned`), which rounds
        keys in 16 bits once more. Labels and pins of the span hold for the new tokens. Later
        entries exist twice meanwhile, which the peak does not count (our own operation; no source).

        Args:
            span: positions of the old tokens; empty to insert before its start.
            ids: n ids of the new tokens; none drops the old ones, under every policy.

        Raises:
            Misuse: a ValueError; the tokens were not seen, or the cache cannot replace them (see
                `why_not_replaced`), or the model has too few positions. Nothing has changed.
            Exception: the model failed. The old tokens are gone, and the new ones are not there;
                where it failed in the middle of a forward, the cache is to be restored or reset.
        """
        self._require_rest()
        if self.batch is None or not 0 <= span.start <= span.stop <= self.seen or span.step != 1:
            raise Misuse(f"the cache has seen {self.seen} tokens, and cannot replace {span}")
        if not ids:
            if span:
                self.drop(span)
            return
        num_more, most = max(0, len(ids) - len(span)), self.geometry.max_positions
        why = self.why_not_replaced(num_more)
        if why is None and most is not None and self.seen + num_more > most:
            why = f"the model has {most} positions, and {self.seen + num_more} would be in use"
        if why is not None:
            raise Misuse(f"this cache cannot replace tokens: {why}; {INSTEAD}")
        self.check_input(model.base_model, 1, len(ids))
        tails = [Tail(layer, span.stop) for layer in self.cache_layers]
        stream, old_spans = self.token_ids.all(), self.evictor.spans.sequences[0]
        before = (self.num_new, self.confidences, copy.copy(self.turns), self.pending)
        with self.progress.changing():
            self._forget(self.seen - span.start)
        device = self.evictor.layers[0].storage.device
        try:
            self.feed(model, torch.tensor([list(ids)], device=device))
        except BaseException:
            with suppress(Misuse), self.progress.changing():
                self._forget(self.seen - span.start)
                for tail in tails:
                    tail.put_back()
                self.token_ids = TokenIds()
                self.token_ids.append(None if stream is None else stream.to(device))
            raise
        with self.progress.changing():
            for tail in tails:
                tail.move(num_more)
                tail.put_back()
            self.num_new, self.confidences, self.turns, self.pending = before
            self._newest = self._new_confidences = None
            if stream is not None:
                self.token_ids = TokenIds()
                self.token_ids.append(replaced_ids(stream, span, ids, num_more).to(device))
            if num_more:
                self.evictor.use_spans([moved_spans(old_spans, span.stop, num_more)])
        if len(ids) < len(span):
            self._use_pins([(0, span.start + len(ids), span.stop)], Pins.without_range)

    def why_not_replaced(self, num_more: int = 0) -> str | None:
        """Return why tokens cannot be replaced, as the end of a sentence; None if they can.

        A cache of one sequence can if its policy keeps every entry as it is, such as "full", and no
        layer attends within a window. Any cache without recurrent states can drop tokens.

        Args:
            num_more: new tokens beyond the number of old ones.
        """
        return why_not_replaced(self, num_more)

    def _use_pins(self, found: list[Found], change: Callable[[Pins, int, int], Pins]) -> None:
        self._use_spans(self.evictor.spans.with_pins(found, change))

    @torch.no_grad()
    def _use_spans(self, sequences: Sequence[SequenceSpans]) -> None:
        """Take other labels and pins; raises like `label`, before anything has changed."""
        self._require_rest()
        self.evictor.use_spans(sequences)
        if self.batch is not None:
            with self.progress.changing():
                # pins may give a layer less than it holds, for the sake of another one
                self.evictor.shrink()

    def _find(self, span: str | range | Span, sequence: int | None) -> list[Found]:
        return self.evictor.spans.find(span, self.evictor.fed, sequence)

    # ---- feeding

    @torch.no_grad()
    def feed(
        self, model: PreTrainedModel, ids: Tensor, attention_mask: Tensor | None = None
    ) -> Tensor:
        """Feed new tokens, in chunks if `prefill` is "chunked", and apply the gate.

        If the policy wants it, entries that the tokens would attend to come back first (see
        `repairs`), unless some are padding. One forward reads up to `tokens_at_once` tokens, or one
        if each of them may look back (see `reads_singly`), and the gate is applied after it. The
        chunks are cut in every layer: a chunk is attended and the layer is evicted before the next
        one, so that a layer never holds more than a chunk above its budget.

        Args:
            ids: (B, n) token ids that the cache has not seen.
            attention_mask: (B, seen + n), zeros for padding; None if no new token is padding.
                Padding takes no position, so a sequence is the same alone and in a batch.

        Returns:
            The logits of the last token, (B, V).

        Raises:
            Misuse: a ValueError; the cache cannot take these tokens, another thread is feeding it,
                or an earlier forward did not end. Nothing has changed.
        """
        self.check_input(model.base_model, ids.shape[0], ids.shape[1])
        if attention_mask is None and self.may_look_back and self.repairs(ids.shape[1]):
            self.repair(model, ids)
        lengths = self.forward_lengths(ids.shape[1])
        if self.may_look_back and self.reads_singly(ids.shape[1]):
            lengths = [1] * ids.shape[1]
        logits: Tensor | None = None
        for piece in torch.split(ids, lengths, dim=1):
            mask = None
            if attention_mask is not None:
                mask = attention_mask[:, : self.seen + piece.shape[1]]
            with self.attending_in_chunks():
                outputs = model(
                    input_ids=piece,
                    attention_mask=mask,
                    use_cache=True,
                    logits_to_keep=1,
                    **{CACHE: self},
                )
            logits = outputs.logits[:, -1]
            self.apply_gate(logits)
        if logits is None:
            raise Misuse("no tokens to feed")
        return logits

    def tokens_at_once(self, num_tokens: int) -> int:
        """Return how many of `num_tokens` new tokens one forward of `feed` reads.

        A policy that compares layers acts between forwards only, so that it reads one chunk, and so
        does a policy where layers share keys, unless it keeps all as it is. Where the model's
        positions run out, a forward reads at most a quarter of them.
        """
        policy, most = self.policy, self.geometry.max_positions
        acts_between = policy.precision.by_rank or policy.allocator.learns
        acts_between |= bool(self.geometry.sources) and not self.keeps_all
        if self.prefill == "whole":
            size = max(1, num_tokens)
        elif self.chunk == 1 or acts_between:
            size = self.chunk
        else:
            size = max(self.chunk, AT_ONCE)
        used = self.num_positions
        if most is not None and used + num_tokens > most and self.why_limited is None:
            size = min(size, max(1, most // 4))
        return size

    def forward_lengths(self, num_tokens: int) -> list[int]:
        """Return the lengths of the forwards in which `feed` reads new tokens.

        Where inputs read the cold tier, the last of several is not of one token, which would not. A
        policy that reads one or two tokens at once has single ones all the same.
        """
        step = self.tokens_at_once(num_tokens)
        lengths = [min(step, num_tokens - start) for start in range(0, num_tokens, step)]
        if self.reads_cold and step > 2 and lengths[1:] and lengths[-1] == 1:
            lengths[-2:] = [step - 1, 2]
        return lengths

    def reads_singly(self, num_tokens: int) -> bool:
        """Return whether the policy wants each token of a new input to be able to look back, and so
        to be fed alone: the input is short, something was evicted, and no other way to it is open
        (see `LookBack.reads` and `repairs`)."""
        is_open = self.reads_cold or self.repairs(num_tokens)
        return self._is_short(num_tokens) and not is_open

    def repairs(self, num_tokens: int) -> bool:
        """Return whether the policy wants evicted entries to come back before a new input is read:
        it is short and has several tokens, and something was evicted."""
        recall = self.policy.recall
        is_wanted = isinstance(recall, LookBack) and recall.repair > 0 and num_tokens > 1
        return is_wanted and self._is_short(num_tokens)

    def _is_short(self, num_tokens: int) -> bool:
        recall = self.policy.recall
        is_short = isinstance(recall, LookBack) and num_tokens <= recall.short
        return is_short and any(self.evictor.num_cold)

    @torch.no_grad()
    def repair(self, model: PreTrainedModel, ids: Tensor) -> int:
        """Bring back evicted entries that the tokens of a new input would attend to.

        `feed` does so by itself where the policy says so (see `repairs`). The input goes through
        the model once, and nothing of it is stored. What comes back takes at most half of a layer's
        entries (our choice), and is the youngest; a policy that ranks by attention may evict it
        again at once. Of a policy without `repair`, and of a cache that has evicted nothing,
        nothing comes back.

        Args:
            ids: (B, n) token ids that the cache has not seen.

        Returns:
            The number of entries that came back and stay, over all layers and sequences.

        Raises:
            Misuse: a ValueError; the cache cannot take these tokens. Nothing has changed.

        Source: RepairKV (OpenReview LsrmZrp7tW); see `agentkv.cache.repair`.
        """
        recall = self.policy.recall
        if not isinstance(recall, LookBack) or not recall.repair:
            return 0
        if not any(self.evictor.num_cold):
            return 0
        self.check_input(model.base_model, ids.shape[0], ids.shape[1])
        rehearsal = Rehearsal(self.layers, self.evictor.spans, self.next_numbers)
        self.progress.begin()
        try:
            model(input_ids=ids, use_cache=True, logits_to_keep=1, **{CACHE: rehearsal})
            self.progress.has_changed = True
            grown = rehearsal.promote(recall.repair)
            if grown:
                self.evictor.shrink(grown)
        except BaseException:
            self.progress.leave()
            raise
        self.progress.end()
        fetched = rehearsal.fetched()
        self.looks.note_fetched(fetched, rehearsal.read_nbytes)
        return fetched.total()

    @contextmanager
    def attending_in_chunks(self) -> Iterator[None]:
        """Let forwards inside the context attend and evict in chunks, if `prefill` is "chunked"."""
        before, self._in_chunks = self._in_chunks, self.prefill == "chunked"
        try:
            yield
        finally:
            self._in_chunks = before

    # ---- the gate

    def gate(self) -> LogitsGate:
        """Return a logits processor that applies the policy's gate after every forward.

        Only policies that read the model's confidence have a gate: conf-kv and its variants, and
        those with `sure`. Under all others the processor does nothing, because they evict and look
        back within the forward.

        Its place in the list does not matter: the attached model shows the cache its raw logits. In
        a loop of your own, call it with the ids and the logits (B, V) of the last token after each
        forward.
        """
        self._has_gate = True
        return LogitsGate(self)

    def note_logits(self, logits: Tensor) -> None:
        if self._has_gate and self.policy.needs_logits:
            # one number per sequence: the logits of a whole prompt need not be kept for it
            self._new_confidences = self.policy.confidence(logits.detach())

    def apply_noted_gate(self, logits: Tensor) -> None:
        confidences, self._new_confidences = self._new_confidences, None
        self._apply_gate(logits, confidences)

    def apply_gate(self, logits: Tensor) -> None:
        """Evict down to what the gate allows, given the raw logits (B, V) of the last token."""
        self._apply_gate(logits, None)

    def _apply_gate(self, logits: Tensor, confidences: Tensor | None) -> None:
        if not self.policy.needs_logits or self.batch is None:
            return
        if logits.shape[0] != self.batch:
            raise Misuse(f"logits of {logits.shape[0]} sequences, the cache holds {self.batch}")
        if confidences is None:
            confidences = self.policy.confidence(logits.detach())
        # the only point of a step that waits for the device
        self.apply_gate_at(confidences.tolist())

    @torch.no_grad()
    def apply_gate_at(self, confidences: Sequence[float]) -> None:
        """Evict down to what the gate allows at these confidences, one per sequence."""
        if not self.policy.needs_logits or self.batch is None:
            return
        assert len(confidences) == self.batch, "a confidence for every sequence"
        self._require_rest()
        with self.progress.changing():
            self.confidences = list(confidences)
            decided: list[float] | None = self.confidences
            if self.policy.gate.by_turn:
                decided = self.turns.decide(self.confidences, self.num_new)
            if decided is not None:
                self.evictor.apply_gate(decided, self.num_new)

    # ---- positions of the model

    @property
    def why_limited(self) -> str | None:
        """Why the cache can be fed no more tokens than the model has positions, apart from those
        that `drop` drops; None if it can."""
        return why_limited(self.policy, self.geometry)

    @property
    def next_numbers(self) -> list[int]:
        """Rotary position of each sequence's next token; empty before the first forward."""
        fed = self.cache_layers[0].fed
        if not self.numberings:
            return list(fed)
        return [num_seen - each.shift for num_seen, each in zip(fed, self.numberings, strict=True)]

    @property
    def num_positions(self) -> int:
        """Positions of the model that are in use, in the sequence that uses most."""
        return max(self.next_numbers, default=0)

    def has_positions(self, num_tokens: int) -> bool:
        """Return whether the model has positions for `num_tokens` more.

        Positions that become free count: those of what the policy evicts, and of what was dropped.
        """
        most = self.geometry.max_positions
        if most is None or self.num_positions + num_tokens <= most or self.why_limited is None:
            return True
        if not self.geometry.can_turn or not self.seen:
            return False
        sequences = range(len(self.evictor.fed))
        return all(self._renewed(i, num_tokens, most) is not None for i in sequences)

    def _make_room(self, num_columns: int) -> None:
        """Renumber sequences that have no positions left for their next tokens.

        Where that makes no room, as under a policy that keeps every token, nothing changes: a model
        with rotary embedding reads on beyond its positions.
        """
        most = self.geometry.max_positions
        if most is None or self.num_positions + num_columns <= most:
            return
        firsts = self.next_numbers
        if not self.geometry.can_turn or not any(firsts):
            return
        counts = [num_columns] * len(firsts)
        if self._is_token is not None:
            counts = self._is_token.expand(len(firsts), -1).sum(dim=1).tolist()
        for i, (first, num_new) in enumerate(zip(firsts, counts, strict=True)):
            new = self._renewed(i, num_new, most) if first and first + num_new > most else None
            if new is not None:
                self._renumber(i, new)

    def _renewed(self, sequence: int, num_new: int, most: int) -> Numbering | None:
        """Return the numbering that makes room in a sequence; None if there is no room to make."""
        num_seen = self.evictor.fed[sequence]
        may_share = is_bounded(self.policy, self.geometry)
        if not may_share:
            # a shortcut: `renewed` would find the same, after every entry was marked
            held = max(layer.num_held(sequence) for layer in self.cache_layers)
            if held + num_new > most:
                return None
        is_held = torch.zeros(num_seen, dtype=torch.bool)
        for layer in self.cache_layers:
            layer.mark_held(sequence, is_held)
        before = self.numberings[sequence] if self.numberings else Numbering()
        return before.renewed(is_held, most=most, num_new=num_new, may_share=may_share)

    @torch.no_grad()
    def _renumber(self, sequence: int, new: Numbering) -> None:
        """Turn all keys and queries of a sequence to other rotary positions."""
        self.progress.has_changed = True
        if not self.numberings:
            self.numberings = [Numbering() for _ in self.evictor.fed]
        before = self.numberings[sequence]

        def steps(positions: Tensor) -> Tensor:
            return new.of(positions) - before.of(positions)

        for layer in self.cache_layers:
            layer.turn(sequence, steps)
        self.numberings[sequence] = new
        self.num_renumberings += 1
        self.progress.has_changed = False  # whole again: the forward itself has changed nothing yet

    # ---- looking back

    @property
    def looks_at_once(self) -> bool:
        """True if a single new token looks back in its one pass through the model.

        It does where every token looks, and nothing needs the attention or the queries that it
        would have without a look: statistics of the policy, and layers that share keys.
        """
        recall, scorer = self.policy.recall, self.policy.scorer
        return (
            isinstance(recall, LookBack)
            and recall.when.hears is None
            and self.may_look_back
            and not self._takes_drafts
            and scorer.tracker is None
            and not scorer.window
            and not self.geometry.sources
        )

    @property
    def num_looks(self) -> int:
        """Tokens that have looked back, in all sequences: those that were computed twice, and those
        that fetched something in their one pass."""
        return self.looks.count

    @property
    def num_changing_looks(self) -> int:
        """Looks in a second pass after which another token was the likeliest one."""
        return self.looks.changed

    @property
    def look_nbytes(self) -> int:
        """Bytes that looks and repairs have read: keys or an index to choose by, and the entries
        fetched."""
        return self.looks.read_nbytes

    @property
    def fetched(self) -> Mapping[str, int]:
        """Entries that looks and repairs have fetched, by the label of their tokens.

        They are counted over all layers and sequences, and over heads that keep their own entries.
        The empty label stands for tokens without one.
        """
        return dict(self.looks.fetched)

    @torch.no_grad()
    def look_back(self, model: Any, logits: Tensor) -> Tensor | None:
        recall, ids = self.policy.recall, self._newest
        if not isinstance(recall, LookBack) or not self.may_look_back or self._has_looked:
            return None
        if ids is None or self.batch is None:
            return None
        if self.reads_cold and self.num_new > 1:
            return None  # the forward has read the cold tier
        match recall.when.hears:
            case "confidence" | "rank":
                signals = logits.detach().to(torch.float32).softmax(-1).amax(-1).tolist()
            case "similarity":
                signals = query_similarities(self.cache_layers)
            case None:
                signals = [0.0] * self.batch
        newest: list[int | None] = [num_seen - 1 for num_seen in self.evictor.fed]
        if self._is_token is not None:
            ends = self._is_token[:, -1].tolist()
            newest = [place if end else None for place, end in zip(newest, ends, strict=True)]
        if recall.when.hears == "rank":
            signals = self.looks.ranks(signals, newest)
        decided = self.looks.decide(recall, signals, newest)
        both = zip(decided, self.evictor.num_cold, strict=True)
        looking = [looks and num_cold > 0 for looks, num_cold in both]
        if not any(looking):
            return None
        look = self._look_of([i for i, looks in enumerate(looking) if looks], appends=False)
        second = SecondPass(self.layers, look, self.next_numbers)
        with self.progress.changing():
            outputs = model(input_ids=ids.to(torch.int64), use_cache=True, **{CACHE: second})
            again = outputs.logits[:, -1]
            if recall.promotes and look.unsettled:
                self.evictor.shrink(look.unsettled)
        again = torch.where(torch.tensor(looking, device=logits.device)[:, None], again, logits)
        self.looks.note(look, sum(looking))
        self.looks.changed += int((again.argmax(-1) != logits.argmax(-1)).sum())
        return again.to(logits.dtype)

    def _look_of(self, sequences: Sequence[int], *, appends: bool) -> Look:
        recall, spans = self.policy.recall, self.evictor.spans
        assert isinstance(recall, LookBack)
        q_heads = self.geometry.num_q_heads
        return Look(self.cache_layers, spans, sequences, recall, q_heads, appends=appends)

    # ---- what transformers and the hooks of an attached model call

    def check_input(self, module: nn.Module, batch: int, num_tokens: int) -> None:
        self.progress.require_rest()
        if module is not self._model() and id(module) not in self._modules:
            raise Misuse(OTHER_MODEL)
        self._check_batch(batch)
        most = self.geometry.max_positions
        if not self.geometry.is_rotary and most is not None and self.seen + num_tokens > most:
            raise Misuse(
                f"{self.geometry.family} has learned {most} positions; {self.seen} tokens were "
                f"seen and {num_tokens} more were given. Evicting does not free learned positions: "
                "start a new cache"
            )
        if self.batch is None:
            self.evictor.set_batch(batch)
            self.evictor.spans.set_batch(batch)
        self.evictor.require_room(num_tokens)

    def begin(self, num_tokens: int, is_token: Tensor | None) -> None:
        if self.recurrent and is_token is not None:
            fed = self.cache_layers[0].fed or [0] * is_token.shape[0]
            why = misplaced_padding(is_token, fed)
            if why is not None:
                raise Misuse(why)
        self.progress.begin()
        self._new_confidences, self._is_token = None, is_token
        try:
            if self._num_waiting or self._in_chunks:
                # nobody has rolled the latest forward back, or nobody will this one
                self.progress.has_changed = True
                self._evict_waiting()
                self.progress.has_changed = self._takes_drafts = False
            for layer in self.cache_layers if self._takes_drafts else ():
                layer.num_spared = num_tokens
            self._make_room(num_tokens)
            self._has_looked = num_tokens == 1 and is_token is None and self.looks_at_once
            if self._has_looked and any(self.evictor.num_cold):
                self._look = self._look_of(range(len(self.evictor.fed)), appends=True)
        except BaseException:
            self.progress.leave()
            raise
        # the first decoder layer may change its recurrent state before any layer attends
        self.progress.has_changed |= bool(self.recurrent)

    def leave(self) -> None:
        self._look = self.look_step = None
        self._forget_handles()
        self.progress.leave()

    def rotary_positions(self, given: Tensor | None, num_tokens: int) -> Tensor | None:
        if given is not None:
            if not self.numberings:
                return given
            shifts = torch.tensor([each.shift for each in self.numberings], device=given.device)
            return (given - shifts[:, None]).clamp_min(0)
        numbers, is_token = self.next_numbers, self._is_token
        if is_token is None and numbers.count(self.seen) == len(numbers):
            return None
        steps = torch.arange(num_tokens)[None] if is_token is None else is_token.cumsum(dim=1) - 1
        first = torch.tensor(numbers or [0])[:, None]
        # padding is not stored, so any position serves it
        return (first + steps).clamp_min(0)

    def note_ids(self, ids: Tensor | None) -> None:
        if self._takes_drafts and ids is not None and ids.shape[1] >= self.seen > 0:
            known = self.ids
            if known is not None and torch.equal(ids[:, : self.seen].cpu(), known):
                raise Misuse(
                    f"assisted decoding feeds the {self.seen} tokens that this cache has seen once "
                    "more, as transformers 5.23 does with every cache that is not empty: `reset` "
                    "the cache first, or decode this turn without an assistant"
                )
        self._new_ids = ids

    @property
    def shift_window(self) -> int:
        return self.evictor.context_window(self.num_new)

    def note_residual_shift(self, layer_idx: int, shift: Tensor) -> None:
        self.evictor.energies.note_residual_shift(layer_idx, shift)

    @outside_compile
    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> Any:
        if layer_idx >= len(self.layers):
            raise Misuse("this cache was made for another model, with fewer layers")
        if self.geometry.hybrid is not None:
            layer_idx = self.geometry.hybrid.attending.index(layer_idx)
        shape = self.geometry.layers[layer_idx]
        batch, heads, _, head_dim = key_states.shape
        if (heads, head_dim) != (shape.num_heads, shape.head_dim):
            raise Misuse("this cache was made for another model, with other heads")
        self._check_batch(batch)
        return super().update(key_states, value_states, layer_idx)

    def recurrent_layer(self, layer_idx: int) -> RecurrentLayer:
        return self.recurrent[layer_idx]

    def attend(
        self,
        module: nn.Module,
        handle: Handle,
        query: Tensor,
        mask: Tensor | None,
        scale: float,
        sinks: Tensor | None,
    ) -> Tensor:
        """Store a layer's new tokens and attend; see `CacheLayer.attend`.

        A layer that shares the keys of an earlier one attends to what that has stored, with all new
        tokens or the last of them.
        """
        if id(module) not in self._modules:
            raise Misuse(OTHER_MODEL)
        is_token = self._is_token
        if mask is not None and mask.dim() != 2:
            raise Misuse(f"a padding mask has 2 dimensions, this one {mask.dim()}")
        if mask is not None and is_token is None:
            raise Misuse("a padding mask must be the model's argument `attention_mask`")
        layer = self.cache_layers[handle.layer_idx]
        with torch.no_grad():
            if handle.is_stored:
                own = None if is_token is None else is_token[:, -query.shape[2] :]
                output = layer.attend_again(
                    query,
                    own,
                    num_new=self.num_new,
                    scale=scale,
                    sinks=sinks,
                    reads_cold=self.reads_cold,
                )
            else:
                output = self._store(layer, handle, query, layer.attention_of(module, scale, sinks))
        if query.requires_grad and torch.is_grad_enabled():
            output = WithoutGradient.apply(output, query)  # type: ignore[no-untyped-call]
        return output

    def _store(
        self, layer: CacheLayer, handle: Handle, query: Tensor, attention: Attention
    ) -> Tensor:
        """Store the new tokens of a layer, and attend and evict chunk by chunk."""
        self.progress.has_changed = handle.is_stored = True
        self.batch, _, self.num_new, _ = handle.keys.shape
        self.evictor.before_layer(layer, self.num_new)
        is_token, outputs = self._is_token, []
        for start, stop in self._chunks(self.num_new):
            new = slice(start, stop)
            q, keys, values = (x[:, :, new] for x in (query, handle.keys, handle.values))
            own = None if is_token is None else is_token[:, new]
            outputs.append(
                layer.attend(
                    q, keys, values, own, attention, look=self._look, reads_cold=self.reads_cold
                )
            )
            if not self._takes_drafts and not layer.is_shared:
                self.evictor.after_layer(layer, stop - start)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)

    def _chunks(self, num_new: int) -> Iterator[tuple[int, int]]:
        """Return the first and last columns of the chunks in which new tokens are attended."""
        is_whole = self.keeps_all or bool(self.geometry.sources)
        size = self.chunk if self._in_chunks and not is_whole else num_new
        ends = [*range(0, num_new, size), num_new]
        if len(ends) > 2 and num_new - ends[-2] == 1:
            del ends[-2]  # a chunk of one token would count as a step of decoding
        return pairwise(ends)

    def can_step(self, num_columns: int) -> bool:
        if self._look is not None and not self._look.can_step():
            return False
        return num_columns == 1 and all(layer.can_step for layer in self.cache_layers)

    def can_read(self, num_columns: int, dtype: torch.dtype) -> bool:
        # a policy that evicts would have to let all layers hold the input at once
        if not self.keeps_all or self._takes_drafts or self.evictor.context_window(num_columns) > 0:
            return False
        num_q_heads = self.geometry.num_q_heads
        return all(layer.can_read(num_q_heads, dtype) for layer in self.cache_layers)

    @torch.no_grad()
    def begin_read(
        self,
        attentions: Sequence[nn.Module],
        scales: Sequence[float],
        num_columns: int,
        dtype: torch.dtype,
    ) -> Sequence[CacheLayer]:
        self.progress.has_changed, self.batch = True, 1
        num_q_heads, cpu = self.geometry.num_q_heads, torch.device("cpu")
        for layer in self.cache_layers:
            if not layer.is_filled:
                own = layer.dtype or dtype
                layer.begin(1, num_q_heads=num_q_heads, dtype=own, device=cpu)
        self._begin_layers(attentions, scales, num_columns)
        return self.cache_layers

    @torch.no_grad()
    def begin_step(
        self, attentions: Sequence[nn.Module], scales: Sequence[float]
    ) -> Sequence[tuple[Sequence[CacheLayer], slice]]:
        self._begin_layers(attentions, scales, 1)
        layers = self.cache_layers
        if self._look is None:
            return [(layers, slice(0, self.batch))]
        self.look_step = self._look.begin_step()
        return [(layers, slice(i, i + 1)) for i in self._look.sequences]

    def _begin_layers(
        self, attentions: Sequence[nn.Module], scales: Sequence[float], num_columns: int
    ) -> None:
        self.progress.has_changed, self.num_new = True, num_columns
        for layer, module, scale in zip(self.cache_layers, attentions, scales, strict=True):
            layer.begin_step(layer.attention_of(module, scale, None))
            self.evictor.before_layer(layer, num_columns)

    def _forget_handles(self) -> None:
        # transformers 4.57 leaves the handles of shared layers in the cache
        vars(self).pop("shared_layers", None)

    @torch.no_grad()
    def finish(self) -> None:
        self._forget_handles()
        for i in sorted(set(self.geometry.sources)):
            layer = self.cache_layers[i]
            layer.finish()
            if not self._takes_drafts:
                self.evictor.after_layer(layer, self.num_new)
        if self._takes_drafts:
            self._num_waiting = self.num_new
        else:
            self.evictor.after_forward(self.num_new)
        self.token_ids.append(self._new_ids)
        if self.policy.recall.looks_back:
            self._newest = None if self._new_ids is None else self._new_ids[:, -1:]
            self.looks.alarms = self.looks.alarms or [None] * len(self.evictor.fed)
        if self._look is not None:
            self._note_look(self._look)
        self._new_ids = self._look = self.look_step = None
        self.progress.end()

    def _note_look(self, look: Look) -> None:
        """Count a look of new tokens."""
        if self.look_step is not None:
            look.finish_step(self.look_step)
        self.looks.note(look, look.num_fetching)

    def _check_batch(self, batch: int) -> None:
        if self.batch is not None and batch != self.batch:
            raise Misuse(
                f"this cache holds {self.batch} sequences and was given {batch}; make a new one"
            )

    # ---- changing the batch

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Make sequence i a copy of what sequence beam_idx[i] was (beam search).

        Here and below, the new number of sequences shares a budget in bytes: if there are more,
        entries leave at once.

        Raises:
            PolicyError: a ValueError; the bytes are too few for this many. Nothing has changed.
        """
        self._rearrange(beam_idx.tolist())

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep only these sequences, in this order."""
        self._rearrange(indices.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every sequence `repeats` times in a row."""
        self._rearrange([i for i in range(self.batch_size) for _ in range(repeats)])

    def _rearrange(self, index: list[int]) -> None:
        if self.batch is None:
            raise Misuse("the cache is empty: there are no sequences to rearrange")
        self._require_rest()
        state = self.evictor.allowance.state
        self.evictor.set_batch(len(index))  # refuses before anything changes
        with self.progress.changing():
            self.evictor.allowance.use_state(state)
            if self.evictor.allowance.batch > self.batch:
                # before they are copied, so that all together stay within the bytes
                self.evictor.shrink()
            for layer in self.cache_layers:
                layer.reorder(index)
            for states in self.recurrent.values():
                states.reorder(index)
            self.evictor.spans.reorder(index)
            self.token_ids.reorder(index)
            self._new_confidences, self._newest = None, None
            if self.numberings:
                self.numberings = [self.numberings[i] for i in index]
            if self.policy.recall.looks_back:
                self.looks.reorder(index)
            if self.confidences is not None:
                self.confidences = [self.confidences[i] for i in index]
                self.turns.reorder(index)
            self.batch = len(index)

    # ---- rolling back

    @property
    def is_croppable(self) -> bool:
        policy = self.policy
        keeps_all = not policy.gate.evicts and not any(self.is_sliding) and not self.recurrent
        is_whole = keeps_all and policy.precision.format is None and not policy.scorer.window
        return is_whole or self._takes_drafts

    def activate_past_recording(self) -> None:
        """Let evictions wait until `crop` has said which tokens of a forward stay.

        Assisted decoding calls it before the first forward (transformers 5.23 does, 4.57 does not).
        The first forward holds the whole prompt in all layers meanwhile. It ends with the first
        forward that `crop` does not follow, and with `feed`.

        Raises:
            Misuse: a ValueError; assisted decoding cannot go with the policy or its gate, or with
                recurrent states.
        """
        self._require_no_states("take back the drafts of assisted decoding")
        self._require_rest()
        why = why_no_drafts(self.policy, has_gate=self._has_gate)
        if why is not None:
            raise Misuse(why)
        self._takes_drafts = True

    @torch.no_grad()
    def crop(self, tokens_to_remove: SupportsIndex) -> None:
        """Forget the newest tokens, as assisted decoding does with drafted ones it rejects.

        What is left is what it was before these tokens were fed, with exceptions: entries that were
        quantized meanwhile stay quantized, and statistics keep the attention that the tokens paid.
        After `activate_past_recording` nothing is quantized meanwhile; without it, a window of
        queries lacks those that the tokens' own have replaced. Labels and pins stay, and apply to
        the tokens that come next.

        Args:
            tokens_to_remove: minus the number of tokens; 0: none. A positive number is how many of
                all tokens to keep (transformers 4.57).

        Raises:
            Misuse: a ValueError; entries have left since, which would be missing, fewer tokens were
                seen, or a recurrent state holds them. Nothing has changed.
        """
        self.progress.require_rest()
        count = num_to_forget(tokens_to_remove, self.seen)
        if count:
            self._require_no_states(f"forget its newest {count} tokens")
            require_held(self.cache_layers, self.numberings, self.policy, count)
        if not count and not self._num_waiting:
            return
        with self.progress.changing():
            if count:
                self._forget(count)
            self._evict_waiting()

    def forgets_exactly(self, count: int) -> bool:
        """Return whether `crop` of the newest `count` tokens leaves what was there before them.

        So it is under a policy that keeps every entry as it is, such as "full", if none has left
        since, of the model's own window for example. What was dropped stays dropped.
        """
        return self.keeps_all and self.can_forget(count)

    def can_forget(self, count: int) -> bool:
        """Return whether `crop` can forget the newest `count` tokens: nothing that was there before
        them has left since.

        Entries that were quantized since stay quantized, and statistics keep the attention that
        these tokens paid.
        """
        if self.recurrent or count > self.seen:
            return False
        try:
            require_held(self.cache_layers, self.numberings, self.policy, count)
        except Misuse:
            return False
        return True

    def _forget(self, count: int) -> None:
        for layer in self.cache_layers:
            layer.forget(count)
        self.token_ids.forget(count)
        self._newest = self._new_confidences = None
        self._num_waiting = max(0, self._num_waiting - count)
        self.num_new = min(self.num_new, self.seen)
        self.looks.forget(self.evictor.fed)

    @torch.no_grad()
    def _evict_waiting(self) -> None:
        """Evict as after a forward of the tokens that wait, if there are any."""
        num_new, self._num_waiting = self._num_waiting, 0
        for layer in self.cache_layers:
            layer.confirm()
            if num_new:
                self.evictor.after_layer(layer, num_new)
        if num_new:
            self.evictor.after_forward(num_new)

    def _require_no_states(self, what: str) -> None:
        if self.recurrent:
            raise Misuse(f"this cache cannot {what}: {WHY_NOT_BACK}")

    def _require_rest(self) -> None:
        """Raise Misuse unless the cache is between forwards, and let no eviction wait."""
        self.progress.require_rest()
        if self._num_waiting:
            with self.progress.changing():
                self._evict_waiting()

    def reset(self) -> None:
        """Forget everything except for the peak.

        Raises:
            Misuse: a ValueError; another thread is in the middle of a forward.
        """
        self.progress.clear()
        self.evictor.reset()
        for layer in self.recurrent.values():
            layer.reset()
        for meter in (self.meter, self.cold_meter, self.index_meter):
            meter.live = 0  # a forward that did not end may have left bytes uncounted
        self._begin_stream()

    # ---- copies, snapshots, files

    def snapshot(self) -> Snapshot:
        """Return an independent copy of the cache's state, for `restore`, on the layers' devices.

        Its bytes do not count as the cache's. Take it between forwards, for example after a turn.

        Raises:
            Misuse: a ValueError; a forward is going on in another thread, or did not end.
        """
        self._require_rest()
        ids, entries = self.token_ids.all(), tuple(entries_of(self))
        return Snapshot(state_of(self), entries, recurrent_of(self), ids, self.origin)

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to the state of `snapshot`, any number of times, in copies of the cache too.

        What the policy's allocator has learned since is forgotten as well, by all caches that share
        the policy, because the cache would teach it twice. The peak stays.

        Raises:
            Misuse: a ValueError; it is a snapshot of another cache.
        """
        if not isinstance(snapshot, Snapshot) or snapshot.origin is not self.origin:
            raise Misuse(
                "this is no snapshot of this cache; restore it in the cache it was taken of, or "
                "carry a cache over with `save` and `Cache.load`"
            )
        fill(self, snapshot.state, snapshot.layers, snapshot.recurrent, snapshot.ids)
        if isinstance(self.policy.allocator, Learner):
            self.policy.allocator.load_state(snapshot.state.learned)

    def __copy__(self) -> Self:
        """Return a deep copy: a shallow one would share memory."""
        return copy.deepcopy(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return an independent cache that goes on exactly as this one would.

        The copy belongs to the same model, or to the model's copy where both were copied together.
        It has its own copy of what the policy's allocator learned; caches that share a policy and
        are copied together go on to share one.

        Raises:
            Misuse: a ValueError; a forward is going on, or did not end.
        """
        self._require_rest()
        return self._twin(memo, entries_of(self))

    def fork(self) -> Self:
        """Return an independent cache that goes on exactly as this one would, and shares entries.

        Keys and values are in memory once. Each of both caches copies those of a layer when it
        evicts, quantizes or changes some there, and no earlier: new entries cost what they take.
        So a fork costs a few bytes of each entry. Forks of a cache that was forked before, and of
        forks, share with all of them. On a device, and for a cold tier in a folder, a fork is a
        copy. The budget of a fork counts shared entries as its own. `shared_nbytes` says how many
        bytes others hold too.

        Our choice: the operating system shares pages of a file that has no name.

        Raises:
            Misuse: a ValueError; a forward is going on, or did not end.
        """
        self._require_rest()
        return self._twin({}, forked_entries_of(self))

    def _twin(self, memo: dict[int, Any], entries: Iterable[LayerEntries]) -> Self:
        twin = memo[id(self)] = object.__new__(type(self))
        model, modules = self._model, self._modules
        base = model()
        if base is not None and id(base) in memo:
            model = weakref.ref(memo[id(base)])
            modules = {id(memo[module]) for module in modules if module in memo}
        policy = self.policy
        if policy.allocator.learns:
            policy = replace(policy, allocator=copy.deepcopy(policy.allocator, memo))
        own = (self.budget, self.prefill, self.chunk, self.dtype, self.cold_memory)
        twin._set_up(self.geometry, model, modules, policy, *own)
        twin.origin = self.origin
        fill(twin, state_of(self), entries, recurrent_of(self), self.token_ids.all())
        for layer, own_layer in zip(twin.cache_layers, self.cache_layers, strict=True):
            layer.evicted_at = own_layer.evicted_at
        twin._has_gate, twin._new_confidences = self._has_gate, self._new_confidences
        for name, value in vars(self).items():
            if name not in vars(twin):  # attributes that the cache's owner has set
                vars(twin)[name] = copy.deepcopy(value, memo)
        return twin

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise Misuse(NOT_PICKLED)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        model: PreTrainedModel,
        *,
        policy: str | Policy | None = None,
        cold_folder: str | os.PathLike[str] | None = None,
        cold_limit: int | str | None = None,
    ) -> "Cache":
        """Return the cache that `save` wrote, which goes on exactly as the saved one would have.

        Entries return to the devices of the model's layers. The model is attached if it was not.

        Args:
            policy: policy of the saved cache. It is only needed if it was composed by hand, such as
                with `agentkv.scored`. If its allocator has learned something it keeps that;
                otherwise it takes over what was saved.
            cold_folder, cold_limit: as in `for_model`; the file does not say where the cold tier
                was.

        Raises:
            CacheFileError: a ValueError; the file is another program's, damaged, of another
                version, or saved with another model or policy. The message names the first
                difference.
            OSError: the file does not exist.
        """
        describe(model)
        inner: Any = model.base_model
        given = named_policy(policy) if isinstance(policy, str) else policy

        def make(policy: Policy, **rest: Any) -> "Cache":
            memory = _cold_memory(policy, cold_folder, cold_limit)
            return cls(model, policy=policy, cold_memory=memory, **rest)

        cache = load(make, inner, path, given)
        attach(model)
        return cache

    def save(self, path: str | os.PathLike[str], *, most_bytes: int | None = None) -> None:
        """Write the cache to one file, from which `load` makes it again. Call it between forwards.

        The file replaces an older one once it is complete on disk. Only its owner may read it: it
        holds what was fed in latent form, and the token ids in the clear. Saving takes memory for a
        copy of the entries.

        Args:
            most_bytes: bytes that the file may have; None: any number.

        Raises:
            CacheFileError: a ValueError; the model is gone, `pending` cannot be written, or the
                file might have more than `most_bytes` (`FileLimit`). Nothing was written.
            OSError: the file could not be written; an older one is untouched.
        """
        self._require_rest()
        self.check()
        model: Any = self._model()
        if model is None:
            raise CacheFileError(
                "the model of this cache is gone, and no other could load the file; keep the model "
                "as long as the cache"
            )
        save(self, model, path, most_bytes=most_bytes)


def _cold_memory(
    policy: Policy,
    folder: str | os.PathLike[str] | None,
    limit: int | str | None,
) -> ColdMemory:
    """Return where the cold tier of a policy is; raises as `Cache.for_model` does."""
    if folder is None and limit is None:
        return IN_MEMORY
    if not policy.recall.looks_back:
        raise PolicyError(
            f"policy {policy.name!r} forgets what it evicts and has no cold tier; leave "
            "cold_folder and cold_limit out, or give a policy that looks back, such as 'lookback'"
        )
    parsed = Bytes(limit) if isinstance(limit, int) else parse_budget(limit)
    if parsed is not None and not isinstance(parsed, Bytes):
        raise PolicyError(f"cold_limit must be bytes, such as '2GiB'; found {limit!r}")
    memory = ColdMemory(
        None if folder is None else Path(folder), None if parsed is None else parsed.count
    )
    memory.require_usable()
    return memory


def _dtype(given: str | torch.dtype) -> torch.dtype:
    """Return a dtype by its name. Raises PolicyError for one that entries cannot have."""
    found = getattr(torch, given, None) if isinstance(given, str) else given
    if found not in DTYPES:
        names = ", ".join(str(each).removeprefix("torch.") for each in DTYPES)
        raise PolicyError(f"the dtype of entries must be one of {names}; found {given!r}")
    assert isinstance(found, torch.dtype)
    return found
