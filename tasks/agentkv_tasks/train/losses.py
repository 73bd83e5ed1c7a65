"""The loss of rows under a network, which reads the ids that rows have in common once a step."""

import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from agentkv.cache.hf.compat import CACHE
from agentkv.cache.hf.reading import CHANGING
from agentkv_tasks.train.rows import IGNORED, EpisodeRow, Row, batch, in_batches

_LEAST = 64
"""Smallest number of ids that are worth a forward of their own (our choice)."""
_FULL = "full_attention"
"""Name in a configuration of layers that keep all keys."""
_MOST_OPENINGS = 4
"""Largest length of a row that shares, in openings (our choice). Attention after keys that are
there takes longer than attention within a row: with an opening of 383 ids on two cores, rows of 700
were 1.5 times as fast by sharing, of 1,100 1.2 times, and a mix of 600 to 3,000 0.9 times (by
hand)."""


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of some rows."""

    total: Tensor
    """Summed over labels, in nats."""
    is_right: Tensor
    """True where the likeliest id is the label (rows, columns)."""
    columns: Tensor
    """The columns of the rows with a label in any of them, in order."""


class Losses:
    """The losses of rows under a network.

    Short rows that begin with `opening` share its forward and its backward pass: the keys and
    values of the opening are computed once for all rows of a call, gradients with respect to them
    are added up over the rows, and go back through the opening in the end (our choice). Losses and
    gradients are those of whole rows, but for dropout, which then has one mask for the opening.

    A row of general text teaches nothing: its loss is how far the predictions of the network have
    moved from those of the untrained one, KL(untrained || trained) (our choice; Li and Hoiem,
    Learning without Forgetting, 2016, hold old outputs with another loss).

    Args:
        network: a model of transformers.
        opening: ids, none of which has a label; () if nothing is shared.
        most: positions of the network; None: any number.
        is_bfloat16: whether float32 weights compute in bfloat16.
        untrained: makes a context in which the network is what it is without its adapter.
    """

    def __init__(
        self,
        network: Any,
        opening: Sequence[int],
        *,
        most: int | None,
        is_bfloat16: bool,
        untrained: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self._network = network
        self._opening = list(opening)
        self._most = most
        self._is_bfloat16 = is_bfloat16
        self._untrained = untrained
        parameters = inspect.signature(type(network).forward).parameters
        self._has_logits_to_keep = "logits_to_keep" in parameters

    def backward(self, rows: Sequence[Row], *, num_labels: int) -> float:
        """Add the gradients of the loss per label to those of the weights, and return that loss.

        Args:
            num_labels: by which the summed loss is divided.
        """
        texts = [row for row in rows if not isinstance(row, EpisodeRow)]
        opened, others = self._parted([row for row in rows if isinstance(row, EpisodeRow)])
        total = 0.0
        for some in in_batches(texts, self._network.device):
            total += _backward(self._moved(some) / num_labels)
        for some in in_batches(others, self._network.device):
            total += _backward(self._loss(some).total / num_labels)
        if opened:
            read = self._read_opening()
            # float32 adds up the gradients of many rows with less rounding
            leaves = [each.detach().float().requires_grad_() for each in read]
            for some in in_batches(opened, self._network.device):
                begun = [leaf.to(each.dtype) for leaf, each in zip(leaves, read, strict=True)]
                total += _backward(self._loss(some, begun).total / num_labels)
            learned = [
                (each, leaf.grad.to(each.dtype))
                for each, leaf in zip(read, leaves, strict=True)
                if each.requires_grad and leaf.grad is not None
            ]
            torch.autograd.backward([each for each, _ in learned], [grad for _, grad in learned])
        return total

    @torch.no_grad()
    def measured(self, rows: Sequence[Row]) -> Iterator[tuple[Row, Loss]]:
        """Yield each row and its cross entropy, also of text, in no particular order."""
        opened, others = self._parted(rows)
        for row in others:
            yield row, self._loss([row])
        if opened:
            read = self._read_opening()
            for row in opened:
                yield row, self._loss([row], read)

    def _parted(self, rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
        """Return the rows that share the opening and the others."""
        opened, others = list[Row](), list[Row]()
        for row in rows:
            (opened if self._begins(row) else others).append(row)
        return (opened, others) if len(opened) > 1 else ([], list(rows))

    def _begins(self, row: Row) -> bool:
        """Return whether a row begins with the opening, which is much of it and has no label."""
        size = len(self._opening)
        labels = row.labels[: size + 1]  # the opening's last id predicts one more
        return (
            size < len(row.ids) <= _MOST_OPENINGS * size
            and row.ids[:size] == self._opening
            and all(label == IGNORED for label in labels)
        )

    def _read_opening(self) -> list[Tensor]:
        """Return the keys and the values of each layer (1, heads, tokens, width), in turn."""
        ids = torch.tensor([self._opening], device=self._network.device)
        cache: Any = DynamicCache(config=self._network.config)
        with self._autocast():
            self._network.base_model(input_ids=ids, use_cache=True, **{CACHE: cache})
        return [each for layer in cache.layers for each in (layer.keys, layer.values)]

    def _loss(self, rows: Sequence[Row], begun: Sequence[Tensor] | None = None) -> Loss:
        """Return the loss of some rows, after the opening's keys and values if they are given."""
        num_read = 0 if begun is None else len(self._opening)
        ids, labels = batch(rows, self._network.device, first=num_read, most=self._most)
        columns = _predicting(labels)
        given: dict[str, Any] = {"input_ids": ids, "use_cache": False}
        if begun is not None:
            wide = [each.expand(len(rows), -1, -1, -1) for each in begun]
            layers = zip(wide[::2], wide[1::2], strict=True)
            cache = DynamicCache(layers, config=self._network.config)
            given |= {CACHE: cache, "use_cache": True}
        logits = self._logits(given, columns)
        wanted = labels[:, columns + 1]
        total = cross_entropy(
            logits.float().flatten(0, 1), wanted.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        return Loss(total, logits.argmax(dim=-1) == wanted, columns + 1 + num_read)

    def _moved(self, rows: Sequence[Row]) -> Tensor:
        """Return how far the predictions of rows of text have moved: nats, summed over labels."""
        ids, labels = batch(rows, self._network.device, most=self._most)
        columns = _predicting(labels)
        given = {"input_ids": ids, "use_cache": False}
        with torch.no_grad(), self._untrained():
            before = self._logits(given, columns).float().log_softmax(dim=-1)
        now = self._logits(given, columns).float().log_softmax(dim=-1)
        moved = kl_div(now, before, log_target=True, reduction="none").sum(dim=-1)
        return moved[labels[:, columns + 1] != IGNORED].sum()

    def _logits(self, given: dict[str, Any], columns: Tensor) -> Tensor:
        """Return the logits (rows, columns, words) after some columns."""
        with self._autocast():
            if self._has_logits_to_keep:
                found: Tensor = self._network(**given, logits_to_keep=columns).logits
            else:
                found = self._network(**given).logits[:, columns]
        return found

    def _autocast(self) -> torch.autocast:
        device = self._network.device.type
        return torch.autocast(device, dtype=torch.bfloat16, enabled=self._is_bfloat16)


def _predicting(labels: Tensor) -> Tensor:
    """Return the columns before a label in any row."""
    return (labels[:, 1:] != IGNORED).any(dim=0).nonzero()[:, 0]


def _backward(loss: Tensor) -> float:
    loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.detach())


def shared_opening(rows: Sequence[EpisodeRow]) -> list[int]:
    """Return the ids with which all rows begin, before the first that is learned; [] if they are
    too few to be worth sharing."""
    common = os.path.commonprefix([row.ids for row in rows])
    # the id before a label predicts it, so it stays in the row
    shared = common[: min(row.replies[0][0] for row in rows) - 1]
    return list(shared) if len(shared) >= _LEAST else []


def can_share(network: Any) -> bool:
    """Return whether a network reads on after keys and values that it is given, in all layers, as
    if it read all at once."""
    if CACHE not in inspect.signature(type(network).forward).parameters:
        return False
    layers = DynamicCache(config=network.config).layers
    config = network.config.get_text_config(decoder=True)
    kinds = set(getattr(config, "layer_types", None) or (_FULL,))
    return (
        bool(layers)
        and kinds == {_FULL}
        and all(type(layer) is DynamicLayer for layer in layers)
        and not set(_rope_types(network)) & set(CHANGING)  # whose keys depend on a row's length
    )


def _rope_types(network: Any) -> Iterator[str]:
    for module in network.modules():
        found = getattr(module, "rope_type", "default")
        yield from found.values() if isinstance(found, dict) else (found,)
