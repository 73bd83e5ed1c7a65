"""Check contenders before a measurement; nothing is measured if one is wrong."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from agentkv.cache.cache import Cache
from agentkv.cache.hf.forward import COMPILED
from agentkv.cache.storage.backend import Backend
from agentkv.cache.storage.layer_storage import LayerStorage
from agentkv_kernels.weights import FORMATS
from agentkv_tasks.bench.contenders.contender import BASELINE, Contender, Ours, Transformers, pieces
from agentkv_tasks.bench.contenders.judge import CacheJudge, Kept, attention_of
from agentkv_tasks.bench.contenders.llama_cpp import LlamaCpp

NUM_STEPS = 8
"""Tokens that a check decodes one by one after its prompt."""
LOGITS = {torch.float64: 1e-8, torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.2}
"""Largest distance of logits from the judge's by dtype, as a share of the largest logit. Rounding
of all layers adds up (our choice; float32 stays below 1e-5 on the models that we tried)."""
ATTENTION = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Largest distance of one attention call from float64 over the same entries, by dtype."""
QUANTISED = {
    **{"int8": 0.03, "fp8": 2**-4, "int4": 0.21, "nf4": 0.25},
    **{"transformers fp8": 0.13, "quanto int4": 0.25, "hqq int4": 0.25, "hqq int8": 0.015},
}
"""Largest distance of quantized entries from the original ones, as a share of their norm. First
agentkv's formats, by segment: for normally distributed entries, with a margin. Then transformers'
QuantizedCache by label and by head. With weights in float32, random ones and nano's, up to 1,208
random tokens came to 0.062, 0.123, 0.117 and 0.0069 (our choice: twice that)."""
ROWS = {torch.float64: 0.0, torch.float32: 0.0, torch.float16: 0.015, torch.bfloat16: 0.12}
"""Addition to `QUANTISED` by dtype for the rounding of earlier layers, because the judge computes
its own entries. bfloat16 came to 0.04 in the 28 layers of qwen3-0.6b; float16 has an eighth."""
OTHERS = {
    **{"llama.cpp f16": 0.15, "llama.cpp no-fa": 0.01, "llama.cpp q8_0": 0.1},
    **{"llama.cpp q4_0": 0.4, "transformers fp8": 0.35},
}
"""Addition to `LOGITS` by label, whatever the dtype of the weights, for contenders that compute or
store what the judge does not. llama.cpp stores entries in 16 bits, or quantized from results that
are rounded differently, and its fused attention adds up values in 16 bits, which rounds more the
more tokens there are. With weights in float32, random ones and nano's, up to 4,104 random tokens
came to 0.053, 0.0033, 0.032 and 0.14 (our choice: three times that). transformers' fp8 quantizes
new tokens before they are read: up to 1,208 came to 0.17 (our choice: twice that)."""


ROUNDED = 0.15
"""Addition to `LOGITS`, and half of it to `QUANTISED`, where weights are quantized: activations are
rounded to 8 bits for the products, which the judge does not do. With a Q4_1 file of SmolLM2, 776
random tokens came to 0.036, and llama.cpp's to 0.043 (our choice: three times that)."""


class WrongError(RuntimeError):
    """A contender computes wrong results, so its speed means nothing."""


def check_path(contender: Contender, plain: Any, ids: Tensor, chunk: int) -> dict[str, float]:
    """Let a contender read ids (B, n) beside a judge that sees the same entries.

    Both read all but the last `NUM_STEPS` tokens in chunks and those one by one. After each piece
    their logits are compared, and quantized entries with the original ones; the judge reads on from
    the quantized ones. No token sees cold entries, because the judge does not know what a look
    fetches. The contender is empty afterwards.

    Returns:
        The largest distances by name, as shares, and the limit of the logits.

    Raises:
        WrongError: a distance exceeds its limit; the message names both.
    """
    judge = CacheJudge(plain, contender.as_stored if isinstance(contender, LlamaCpp) else None)
    begin = ids.shape[1] - NUM_STEPS
    contender.begin(ids.shape[1], ids.shape[0])
    rounded = _rounded(contender)
    most = LOGITS[plain.dtype] + OTHERS.get(contender.label, 0.0) + rounded
    rows = ROWS[plain.dtype]
    if isinstance(contender, Ours):
        contender.cache.may_look_back = contender.cache.reads_cold = False
        most = LOGITS[_coarsest(contender)] + rounded
        rows = ROWS[_coarsest(contender)] + rounded / 2
    worst = {"logits": 0.0, "quantised": 0.0, "most_logits": most}
    read = [*pieces(ids[:, :begin], chunk), *pieces(ids[:, begin:], 1)]
    if contender.kind == "kvpress":
        # it evicts only while decoding and reads its prompt whole, so only the prompt is checked
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
                f"same entries; rounding explains at most {most:g}. Nothing was timed"
            )
        name, share = _take_quantised(contender, judge)
        worst["quantised"] = max(worst["quantised"], share)
        if name is not None and not share <= QUANTISED[name] + rows:
            raise WrongError(
                f"{contender.label} is wrong: entries in {name} are {share:.2g} of their norm "
                f"from the original ones; expected at most {QUANTISED[name] + rows:g}. Nothing was "
                "timed"
            )
    contender.end()
    return worst


def check_state(contender: Ours, token: Tensor) -> dict[str, float]:
    """Let a contender that holds a state read one more token (B, 1), and compare the attention of
    every layer with float64 over the stored entries.

    Attention can be seen only where every layer is called by itself. A contender whose steps are
    compiled reads the token from the same state a second time, as it is timed, and its logits are
    compared with the first ones. The contender is released afterwards.

    Returns:
        The largest distances by name, as shares of the largest output: `attention`, and `step` if
        steps are compiled.

    Raises:
        WrongError: a distance exceeds rounding, or the structure is broken.
    """
    distances: list[float] = []
    cache = contender.cache
    if cache.looks_at_once:
        # what such a token fetches is seen in its logits below, its other attention without a look
        contender.resume()
        cache.may_look_back = False
        with _checked(cache, distances):
            contender.feed(token)
        cache.may_look_back = True
        contender.release()
    contender.resume()
    with _checked(cache, distances):
        expected = contender.feed(token)
    seen, dtype = contender.cache.seen, _coarsest(contender)
    worst, most = max(distances), ATTENTION[dtype]
    if not worst <= most:
        raise WrongError(
            f"{contender.label} is wrong: after {seen} tokens its attention is "
            f"{worst:.2g} of the largest output from float64; rounding explains at most "
            f"{most:g}. Nothing was timed"
        )
    contender.cache.check()
    contender.release()
    contender.resume()
    found = {"attention": worst}
    if contender.decoding == COMPILED:
        # the new token's own entry is read before or after it is rounded to the entries' dtype
        apart = _apart(contender.feed(token), expected)
        most = LOGITS[dtype] + _rounded(contender)
        if not apart <= most:
            raise WrongError(
                f"{contender.label} is wrong: after {seen} tokens the logits of its compiled step "
                f"are {apart:.2g} of the largest from those of the same step layer by layer; "
                f"rounding explains at most {most:g}. Nothing was timed"
            )
        contender.cache.check()
        found["step"] = apart
    contender.release()
    return found


def check_logits(contender: Ours, found: Tensor, expected: Tensor) -> None:
    """Compare the logits (B, V) of a contender that keeps everything dense with the baseline's.

    Raises:
        WrongError: the distance exceeds rounding.
    """
    apart, most = _apart(found, expected), LOGITS[_coarsest(contender)] + _rounded(contender)
    if not apart <= most:
        raise WrongError(
            f"{contender.label} is wrong: after {contender.cache.seen} tokens its logits are "
            f"{apart:.2g} of the largest from {BASELINE}'s; rounding explains at most {most:g}. "
            "Nothing was timed"
        )


def keeps_all(contender: Contender) -> bool:
    """Return True for a cache of agentkv that keeps everything dense."""
    if not isinstance(contender, Ours):
        return False
    return not contender.policy.gate.evicts and contender.policy.precision.format is None


def _take_quantised(contender: Contender, judge: CacheJudge) -> tuple[str | None, float]:
    """Let the judge take over the quantized entries of a contender. Return their name in
    `QUANTISED`, None without any, and their distance from the judge's before."""
    if isinstance(contender, Ours):
        contender.cache.check()
        return contender.policy.precision.format, judge.take_quantised(contender.cache)
    if isinstance(contender, Transformers) and contender.is_quantised:
        return contender.label, judge.take_decoded(contender.decoded())
    return None, 0.0


def _rounded(contender: Contender) -> float:
    """Return what the products of quantized weights add to the limit of logits; 0 without any."""
    is_quantized = any(form.lower() in FORMATS for form in contender.form.split(", "))
    return ROUNDED if is_quantized else 0.0


def _coarsest(contender: Ours) -> torch.dtype:
    """Return the dtype of the model or of the entries, whichever rounds more."""
    model: torch.dtype = contender.model.dtype
    return max(model, contender.entry_dtype, key=lambda dtype: LOGITS[dtype])


class _CheckedBackend(Backend):
    """Compares every step of a backend with the same attention in float64."""

    def __init__(self, inner: Backend, distances: list[float]) -> None:
        self.name, self._inner, self._distances = inner.name, inner, distances

    def append_attend(
        self, storage: LayerStorage, q: Tensor, keys: Tensor, values: Tensor, **options: Any
    ) -> Tensor:
        expected = _in_float64(storage, q, keys, values, options["scale"], options["sinks"])
        output = self._inner.append_attend(storage, q, keys, values, **options)
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
    assert q.shape[2] == 1, "only a single token sees all stored entries"
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
