"""The specification in plain torch: attention over rows of mixed precision. It is also the CPU
path.

Shapes: B sequences, H key-value heads, G query heads per key-value head, Q new tokens, T stored
rows, D head size, N blocks of rows that share one scale per (head, channel).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentkv_kernels.quantize import dequantize


@dataclass(frozen=True, slots=True)
class Dense:
    """Rows in the model's own dtype."""

    keys: Tensor
    """(B, H, T, D), already rotated."""
    values: Tensor
    """(B, H, T, D)."""
    positions: Tensor
    """(B, T) integers, the place of each row in its sequence; -1 marks a row that is not there."""
    is_padded: bool = False
    """Whether any position is -1. Rows that are not there may hold anything, NaN included."""

    @property
    def num_rows(self) -> int:
        return self.keys.shape[2]

    def whole(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Keys and values (B, H, T, D) in `dtype`."""
        return self.keys.to(dtype), self.values.to(dtype)

    def rows(self, start: int, stop: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Keys, values (B, H, t, D) in `dtype` and positions (B, t) of rows start..stop."""
        keys, values = self.keys[:, :, start:stop], self.values[:, :, start:stop]
        return keys.to(dtype), values.to(dtype), self.positions[:, start:stop]


@dataclass(frozen=True, slots=True)
class Coded:
    """Rows in 8 bits: codes times a power of two that each block has per channel (`quantize`)."""

    codes: Tensor
    """(B, T, 2, H, D) int8; keys first, then values."""
    exponents: Tensor
    """(B, N, 2, H, D) int8: the scale is 2 ** exponent."""
    block_ids: Tensor
    """(B, T) int32: which block's scale a row was quantised with."""
    positions: Tensor
    """(B, T), as in `Dense`."""
    is_padded: bool = False

    @property
    def num_rows(self) -> int:
        return self.codes.shape[1]

    def whole(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Keys and values (B, H, T, D) in `dtype`."""
        if self.codes.shape[0] == 1:
            both = dequantize(self.codes[0], self.exponents[0], self.block_ids[0])[None]
        else:
            rows = zip(self.codes, self.exponents, self.block_ids, strict=True)
            both = torch.stack([dequantize(*row) for row in rows])  # (B, T, 2, H, D)
        keys, values = both.to(dtype).permute(2, 0, 3, 1, 4).unbind()
        return keys, values

    def rows(self, start: int, stop: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Keys, values (B, H, t, D) in `dtype` and positions (B, t) of rows start..stop."""
        codes, block_ids = self.codes[:, start:stop], self.block_ids[:, start:stop]
        positions = self.positions[:, start:stop]
        return *Coded(codes, self.exponents, block_ids, positions).whole(dtype), positions


Part = Dense | Coded


@dataclass(frozen=True, slots=True)
class Attended:
    """What `attend` returns."""

    output: Tensor
    """(B, H * G, Q, D) in the dtype of the queries."""
    mass: Tensor | None
    """(B, H, T) float32: attention each row drew, as the mean over its group's query heads and over
    the last `num_mass_queries` queries, rows in the order of the parts. A row a query may not see
    draws 0 from it; the share of a sink logit is left out, so a head's masses may sum to less than
    1.
    """


def attend(
    q: Tensor,
    parts: Sequence[Part],
    *,
    scale: float,
    q_positions: Tensor | None = None,
    window: int | None = None,
    sinks: Tensor | None = None,
    num_mass_queries: int = 0,
    block: int = 1024,
    q_block: int = 256,
) -> Attended:
    """Softmax attention of new tokens over stored rows, one block of rows at a time.

    Exact: a running maximum m and sum l are corrected as blocks arrive (online softmax), and the
    mass is exp(logit - m) / l with the final m and l. Logits and sums are float32 whatever the
    dtypes.

    Args:
        q: (B, H * G, Q, D), rotated; query head h * G + g reads key-value head h.
        parts: what is stored, in any order; T is the sum of their rows. At least one.
        scale: factor on the logits before the softmax.
        q_positions: (B, Q). A query sees the rows at or before its own position. None: every query
            sees every row that is there (a decoding step whose own row is already stored).
        window: a query sees only rows less than `window` positions back. Needs `q_positions`.
        sinks: (H * G,), one logit per query head that joins the softmax and has no value row.
        num_mass_queries: how many of the last queries the mass averages over; 0 leaves it out.
        block, q_block: how many rows, how many queries are worked on at once.

    A query that sees nothing gets zeros.
    """
    assert parts and (window is None or q_positions is not None)
    num_q = q.shape[2]
    num_mass = min(num_mass_queries, num_q)
    outputs = []
    mass: Tensor | None = None
    for start in range(0, num_q, q_block):
        stop = min(start + q_block, num_q)
        watched = max(0, stop - max(start, num_q - num_mass))  # queries of this block that count
        output, seen = _attend_block(
            q[:, :, start:stop],
            _blocks(parts, block, q.dtype),
            parts[0],
            scale=scale,
            q_positions=None if q_positions is None else q_positions[:, start:stop],
            window=window,
            sinks=sinks,
            num_watched=watched,
        )
        outputs.append(output)
        if seen is not None:
            share = seen * (watched / num_mass)
            mass = share if mass is None else mass + share
    return Attended(torch.cat(outputs, dim=2), mass)


def _blocks(
    parts: Sequence[Part], block: int, dtype: torch.dtype
) -> Iterator[tuple[Tensor, Tensor, Tensor, bool]]:
    for part in parts:
        for start in range(0, part.num_rows, block):
            k, v, positions = part.rows(start, min(start + block, part.num_rows), dtype)
            if part.is_padded:
                # p is 0 there, but 0 * NaN is NaN
                there = (positions >= 0)[:, None, :, None]
                k, v = k.masked_fill(~there, 0), v.masked_fill(~there, 0)
            yield k, v, positions, part.is_padded


def _attend_block(
    q: Tensor,
    blocks: Iterator[tuple[Tensor, Tensor, Tensor, bool]],
    like: Part,
    *,
    scale: float,
    q_positions: Tensor | None,
    window: int | None,
    sinks: Tensor | None,
    num_watched: int,
) -> tuple[Tensor, Tensor | None]:
    batch, num_q_heads, num_q, head_dim = q.shape
    num_heads = like.keys.shape[1] if isinstance(like, Dense) else like.codes.shape[3]
    group = num_q_heads // num_heads
    grouped = q.reshape(batch, num_heads, group * num_q, head_dim)
    shape = (batch, num_heads, group, num_q)
    if sinks is None:
        top = torch.full(shape, -math.inf, device=q.device)  # (B, H, G, Q)
        total = torch.zeros(shape, device=q.device)
    else:
        top = sinks.float().reshape(1, num_heads, group, 1).expand(shape).clone()
        total = torch.ones(shape, device=q.device)
    out = torch.zeros((*shape, head_dim), device=q.device)
    watched = []
    for k, v, positions, is_padded in blocks:
        logits = (grouped @ k.mT).float().view(*shape, k.shape[2]) * scale  # (B, H, G, Q, t)
        hidden = hidden_from(q_positions, positions, window, is_padded)
        if hidden is not None:
            logits = logits.masked_fill(hidden[:, None, None], -math.inf)
        new_top = torch.maximum(top, logits.amax(dim=-1))
        # a query that has seen nothing yet keeps -inf as its top; subtract 0 instead of -inf
        floor = torch.where(new_top.isinf(), torch.zeros_like(new_top), new_top)
        p = torch.exp(logits - floor[..., None])
        shrink = torch.exp(top - floor)
        total = total * shrink + p.sum(dim=-1)
        flat = p.view(batch, num_heads, group * num_q, -1).to(v.dtype)
        out = out * shrink[..., None] + (flat @ v).float().view(*shape, head_dim)
        top = new_top
        if num_watched:
            watched.append(logits[:, :, :, -num_watched:])
    out = torch.where(total[..., None] > 0, out / total[..., None], torch.zeros_like(out))
    output = out.reshape(batch, num_q_heads, num_q, head_dim).to(q.dtype)
    if not num_watched:
        return output, None
    logits = torch.cat(watched, dim=-1)  # (B, H, G, w, T)
    last_top, last_total = top[..., -num_watched:, None], total[..., -num_watched:, None]
    weights = torch.exp(logits - last_top) / last_total
    weights = weights.masked_fill(logits.isinf() | (last_total == 0), 0)
    return output, weights.mean(dim=(2, 3))


def attend_at_once(
    q: Tensor,
    parts: Sequence[Part],
    *,
    scale: float,
    q_positions: Tensor | None = None,
    window: int | None = None,
    sinks: Tensor | None = None,
    num_mass_queries: int = 0,
) -> Attended:
    """`attend` with all logits (B, H * G, Q, T) in memory: fewest calls, so fastest for a short
    step.

    Needs parts without padding, and queries that each see at least one row.
    """
    batch, num_q_heads, num_q, head_dim = q.shape
    rows = [part.whole(q.dtype) for part in parts]
    num_heads = rows[0][0].shape[1]
    group = num_q_heads // num_heads
    grouped = (q * scale).reshape(batch * num_heads, group * num_q, head_dim)
    pieces = [torch.bmm(grouped, k.flatten(0, 1).mT) for k, _ in rows]
    logits = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-1)  # (B H, G Q, T)
    if q_positions is not None:
        positions = [part.positions for part in parts]
        kv_positions = positions[0] if len(positions) == 1 else torch.cat(positions, dim=-1)
        hidden = hidden_from(q_positions, kv_positions, window, False)
        assert hidden is not None
        by_head = logits.view(batch, num_heads * group, num_q, -1)
        logits = by_head.masked_fill(hidden[:, None], -math.inf).view_as(logits)
    if sinks is not None:
        column = sinks.to(logits.dtype).view(1, num_heads, group, 1)
        column = column.expand(batch, -1, -1, num_q).reshape(batch * num_heads, group * num_q, 1)
        p = torch.cat([logits, column], dim=-1).softmax(-1, dtype=torch.float32)[..., :-1]
    else:
        p = logits.softmax(-1, dtype=torch.float32)
    weights = p.to(q.dtype)
    start = rows[0][0].shape[2]
    out = torch.bmm(weights[..., :start] if len(rows) > 1 else weights, rows[0][1].flatten(0, 1))
    for k, v in rows[1:]:
        stop = start + k.shape[2]
        out = torch.baddbmm(out, weights[..., start:stop], v.flatten(0, 1))
        start = stop
    output = out.view(batch, num_q_heads, num_q, head_dim)
    if not num_mass_queries:
        return Attended(output, None)
    if num_q == 1:
        return Attended(output, p.view(batch, num_heads, group, -1).mean(dim=2))
    last = p.view(batch, num_heads, group, num_q, -1)[:, :, :, -num_mass_queries:]
    return Attended(output, last.mean(dim=(2, 3)))


def hidden_from(
    q_positions: Tensor | None, positions: Tensor, window: int | None, is_padded: bool
) -> Tensor | None:
    """Which rows each query may not see: (B, Q, T) bool, or (B, 1, T), or None when it sees all."""
    hidden = None
    if q_positions is not None:
        behind = q_positions[:, :, None] - positions[:, None, :]  # how far back each row is
        hidden = behind < 0
        if window is not None:
            hidden = hidden | (behind >= window)
    if is_padded:
        absent = (positions < 0)[:, None, :]
        hidden = absent if hidden is None else hidden | absent
    return hidden
