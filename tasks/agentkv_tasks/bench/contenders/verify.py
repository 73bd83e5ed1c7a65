"""What is timed is checked before, and nothing is timed that is wrong."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from agentkv.cache.cache import Cache
from agentkv.cache.storage.backend import Backend, MassObserver
from agentkv.cache.storage.layer_storage import LayerStorage
from agentkv_kernels.ema import Ema
from agentkv_tasks.bench.contenders.contender import BASELINE, Contender, Ours, Transformers, pieces
from agentkv_tasks.bench.contenders.judge import Judge, Kept, attention_of

NUM_STEPS = 8
"""Tokens decoded one by one in a check, after its prompt."""
LOGITS = {torch.float64: 1e-8, torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.2}
"""By dtype: how far logits may be from the judge's, as a share of the largest of them. Rounding of
every layer adds up in them (our choice; float32 stays below 1e-5 on the models tried)."""
ATTENTION = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""The same of one attention call, against float64 over the same rows."""
QUANTISED = {"int8": 0.03, "fp8": 2**-4, "int4": 0.21, "nf4": 0.25}
"""By format: how far a lane's quantised rows may be from what they were, as a share of their norm;
for rows of a normal distribution, with some room."""
ROWS = {torch.float64: 0.0, torch.float32: 0.0, torch.float16: 0.015, torch.bfloat16: 0.12}
"""By dtype: what the rounding of the layers before adds to that, as the judge's rows are of its own
forwards. In bfloat16 it came to 0.04 in the 28 layers of qwen3-0.6b; float16 has an eighth."""
OTHERS_QUANTISED = 0.5
"""Logits of a cache of transformers' that quantises: a check that it works at all, because its
rows cannot be read back in one way for all backends."""


class WrongError(RuntimeError):
    """A contender that does not compute what it should: its speed says nothing."""


def check_path(contender: Contender, plain: Any, ids: Tensor, chunk: int) -> dict[str, float]:
    """Let a contender read ids (B, n) from the start, beside a judge who sees the same rows.

    All but the last `NUM_STEPS` are read in chunks, those one by one; after each the logits are
    compared, and rows that the contender holds quantised with what they were. The contender is
    empty afterwards.

    Returns:
        What was found at worst, by name; as shares.

    Raises:
        WrongError: saying what was found and what is allowed.
    """
    judge, worst = Judge(plain), {"logits": 0.0, "quantised": 0.0}
    begin = ids.shape[1] - NUM_STEPS
    contender.begin(ids.shape[1])
    most = LOGITS[plain.dtype]
    if isinstance(contender, Transformers) and contender.is_quantised:
        most = OTHERS_QUANTISED
    read = [*pieces(ids[:, :begin], chunk), *pieces(ids[:, begin:], 1)]
    if contender.kind == "kvpress":
        # evicts in decoding only, and its prompt is to be whole: checked as long as it keeps all
        read = [ids[:, :begin]]
    for piece in read:
        kept: Kept | None = None
        if isinstance(contender, Ours) and contender.cache.seen:
            cache = contender.cache
            kept = [cache.kept(layer) for layer in range(len(cache.cache_layers))]
        found, expected = contender.feed(piece), judge.feed(piece, kept)
        apart = _apart(found, expected)
        worst["logits"] = max(worst["logits"], apart)
        if not apart <= most:  # nor for NaN
            raise WrongError(
                f"{contender.label} is wrong: within {ids.shape[1]} tokens its logits are "
                f"{apart:.2g} of the largest from those of a full cache whose attention hides the "
                f"same rows; at most {most:g} is rounding. Nothing was timed"
            )
        if isinstance(contender, Ours):
            contender.cache.check()
            share = judge.take_quantised(contender.cache)
            worst["quantised"] = max(worst["quantised"], share)
            name = contender.policy.precision.format
            apart_at_most = 0.0 if name is None else QUANTISED[name] + ROWS[plain.dtype]
            if name is not None and not share <= apart_at_most:
                raise WrongError(
                    f"{contender.label} is wrong: rows in {name} are {share:.2g} of their "
                    f"norm from what they were; at most {apart_at_most:g} is expected. "
                    "Nothing was timed"
                )
    contender.end()
    return worst


def check_state(contender: Ours, token: Tensor) -> float:
    """Let a contender read one more token (B, 1), every layer's attention being done again in
    float64 over the rows as they are stored.

    Returns:
        The largest distance, as a share of the largest output.

    Raises:
        WrongError: it is more than rounding, or the structure is broken.
    """
    found: list[float] = []
    with _checked(contender.cache, found):
        contender.feed(token)
    worst = max(found)
    most = ATTENTION[contender.model.dtype]
    if not worst <= most:
        raise WrongError(
            f"{contender.label} is wrong: after {contender.cache.seen} tokens its attention is "
            f"{worst:.2g} of the largest output from the same in float64; at most {most:g} is "
            "rounding. Nothing was timed"
        )
    contender.cache.check()
    return worst


def check_logits(contender: Ours, found: Tensor, expected: Tensor) -> None:
    """Compare logits (B, V) of a contender that keeps all in the model's dtype with the baseline's.

    Raises:
        WrongError: they are further apart than rounding.
    """
    apart, most = _apart(found, expected), LOGITS[contender.model.dtype]
    if not apart <= most:
        raise WrongError(
            f"{contender.label} is wrong: after {contender.cache.seen} tokens its logits are "
            f"{apart:.2g} of the largest from {BASELINE}'s; at most {most:g} is rounding. "
            "Nothing was timed"
        )


def keeps_all(contender: Contender) -> bool:
    """Whether it is a cache of ours that should say what a full one says."""
    if not isinstance(contender, Ours):
        return False
    return not contender.policy.gate.evicts and contender.policy.precision.format is None


class _CheckedBackend(Backend):
    """Compares every step of a backend with the same attention in float64."""

    def __init__(self, inner: Backend, distances: list[float]) -> None:
        self.name, self._inner, self._distances = inner.name, inner, distances

    def append_attend(
        self,
        storage: LayerStorage,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        first: Sequence[int],
        scale: float,
        sinks: Tensor | None,
        ema: Ema | None,
        observer: MassObserver | None,
    ) -> Tensor:
        expected = _in_float64(storage, q, keys, values, scale, sinks)
        output = self._inner.append_attend(
            storage,
            q,
            keys,
            values,
            first=first,
            scale=scale,
            sinks=sinks,
            ema=ema,
            observer=observer,
        )
        self._distances.append(_apart(output.transpose(1, 2), expected))
        return output


@contextmanager
def _checked(cache: Cache, distances: list[float]) -> Iterator[None]:
    before = [layer.backend for layer in cache.cache_layers]
    for layer, backend in zip(cache.cache_layers, before, strict=True):
        layer.use_backend(_CheckedBackend(backend, distances))
    try:
        yield
    finally:
        for layer, backend in zip(cache.cache_layers, before, strict=True):
            layer.use_backend(backend)


def _in_float64(
    storage: LayerStorage,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    sinks: Tensor | None,
) -> Tensor:
    """Return (B, 1, H * G, D) float64: one new token over stored entries and itself."""
    assert q.shape[2] == 1, "a single token sees everything that is stored"
    width, group = storage.layout.num_heads, q.shape[1] // keys.shape[1]
    expected = torch.empty((q.shape[0], 1, *q.shape[1::2]), dtype=torch.float64, device=q.device)
    for segment in range(storage.num_segments):
        sequence, number = divmod(segment, storage.layout.segments_per_sequence)
        heads = slice(number * width, (number + 1) * width)
        query_heads = slice(heads.start * group, heads.stop * group)
        pieces = [part.decode(torch.float32) for part in storage.parts(segment)]
        pieces.append((keys[sequence, None, heads].float(), values[sequence, None, heads].float()))
        k, v = (torch.cat(x, dim=2) for x in zip(*pieces, strict=True))
        own_sinks = None if sinks is None else sinks[query_heads]
        own = q[sequence, None, query_heads]
        expected[sequence, :, query_heads] = attention_of(own, k, v, None, scale, own_sinks)[0]
    return expected


def _apart(found: Tensor, expected: Tensor) -> float:
    both = found.double(), expected.double()
    return float((both[0] - both[1]).abs().max() / both[1].abs().max())
