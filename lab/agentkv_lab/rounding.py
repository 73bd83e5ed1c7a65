"""Round-trip errors of the storage formats on a model's own keys and values.

    python -m agentkv_lab.rounding --model smollm2 --text wikitext-2-valid.txt

prints a row for every format: the error of entries that are stored once, and, where blocks of
entries share scales, of those that a cache still holds after its evictions have merged blocks.

Errors are norms of the difference over norms of the entries, root mean squares over the layers.

Shapes: H key-value heads, T tokens, D head size.
"""

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentkv.cache.cache import Cache
from agentkv.cache.storage.layer_storage import max_blocks
from agentkv.models.load import load_model
from agentkv_kernels.formats import BLOCK, FORMATS, Format, merge
from agentkv_kernels.layout import KEYS, VALUES

KEPT = 448
"""Quantized entries of a cache of 512 whose newest 64 are dense."""


@dataclass(frozen=True, slots=True)
class RoundingRow:
    """Errors of one format, as shares of 1."""

    format: str
    field: str
    """"keys" or "values"."""
    stored: float
    """Error of entries that are stored once and stay."""
    random: float | None
    """Error of the `KEPT` entries that remain after all tokens, if evictions are random; None where
    each entry has its own scales."""
    fixed: float | None
    """The same error if every entry has a fixed random worth, so that some stay for long."""
    num_merges: int
    """How often each layer merged its blocks meanwhile."""


def rows(keys_values: Sequence[tuple[Tensor, Tensor]]) -> Iterator[RoundingRow]:
    """Measure every format on the keys and values (H, T, D) of some layers."""
    for name, form in FORMATS.items():
        for number, field in enumerate(("keys", "values")):
            layers = [both[number] for both in keys_values]
            stored = _mean([_error(_stored(form, x), x) for x in layers])
            if not form.by_block:
                yield RoundingRow(name, field, stored, None, None, 0)
                continue
            random, fixed = (
                [error_after_merges(form, x, is_fixed=is_fixed) for x in layers]
                for is_fixed in (False, True)
            )
            yield RoundingRow(
                name,
                field,
                stored,
                _mean([error for error, _ in random]),
                _mean([error for error, _ in fixed]),
                random[0][1],
            )


def error_after_merges(
    form: Format, x: Tensor, *, is_fixed: bool, kept: int = KEPT
) -> tuple[float, int]:
    """Store entries block by block, evict all but `kept` each time, and merge blocks when a cache
    does; return the error of the entries that are left, and the number of merges.

    Args:
        x: (H, T, D).
        is_fixed: whether an entry's worth is drawn once, or anew for each eviction.
    """
    draw = torch.Generator().manual_seed(0)
    worth = torch.rand(x.shape[1], generator=draw)
    codes, scales = form.encode(x[:, :0])
    positions = torch.arange(0)
    ids, num_merges = torch.arange(0, dtype=torch.int32), 0
    for start in range(0, x.shape[1], BLOCK):
        new_codes, new_scales = form.encode(x[:, start : start + BLOCK])
        count = new_codes.shape[1]
        ids = torch.cat([ids, torch.full((count,), scales.shape[1], dtype=torch.int32)])
        codes, scales = torch.cat([codes, new_codes], 1), torch.cat([scales, new_scales], 1)
        positions = torch.cat([positions, torch.arange(start, start + count)])
        if codes.shape[1] > kept:
            if not is_fixed:
                worth = torch.rand(x.shape[1], generator=draw)
            stays = worth[positions].topk(kept).indices.sort().values
            codes, ids, positions = codes[:, stays], ids[stays], positions[stays]
        if scales.shape[1] > max_blocks(codes.shape[1]):
            codes, scales, ids = merge(codes, scales, ids)
            num_merges += 1
    return _error(form.decode(codes, scales, ids), x[:, positions]), num_merges


def _stored(form: Format, x: Tensor) -> Tensor:
    ids = torch.arange(x.shape[1], dtype=torch.int32) // BLOCK
    return form.decode(*form.encode(x), ids)


def _error(found: Tensor, x: Tensor) -> float:
    return float((found - x).norm() / x.norm())


def _mean(errors: Sequence[float]) -> float:
    return math.sqrt(sum(error**2 for error in errors) / len(errors))


def keys_and_values(model: Any, ids: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Return the keys and values (H, T, D) float32 of every layer that attends."""
    cache = Cache.for_model(model, policy="full", dtype=torch.float32)
    with torch.inference_mode():
        cache.feed(model, torch.tensor([ids]))
    tables = [layer.storage.dense for layer in cache.cache_layers]
    return [(table.entries(KEYS, 0), table.entries(VALUES, 0)) for table in tables]


def main() -> None:
    """Measure, and print a row in JSON for every format."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="nano")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=4096)
    given = parser.parse_args()
    local = load_model(given.model, weights="float")
    text = given.text.read_text(encoding="utf-8")[: 16 * given.tokens]
    ids = local.tokenizer.encode(text, add_special_tokens=False).ids[: given.tokens]
    for row in rows(keys_and_values(local.model, ids)):
        print(json.dumps({"model": given.model, "tokens": len(ids), **asdict(row)}), flush=True)


if __name__ == "__main__":
    main()
