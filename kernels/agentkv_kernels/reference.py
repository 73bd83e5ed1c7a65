"""The specification in plain torch: attention over rows of mixed precision. It is also the CPU
path.

Shapes: B sequences, H key-value heads, G query heads per key-value head, Q new tokens, T stored
rows, D head size.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentkv_kernels.parts import Part


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
    num_heads = like.keys.shape[1]
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
        # in place from here on: the logits are by far the largest there is
        logits = (grouped @ k.mT).float().view(*shape, k.shape[2]).mul_(scale)  # (B, H, G, Q, t)
        hidden = hidden_from(q_positions, positions, window, is_padded)
        if hidden is not None:
            logits.masked_fill_(hidden[:, None, None], -math.inf)
        # what is subtracted cancels out, in gradients too
        new_top = torch.maximum(top, logits.detach().amax(dim=-1))
        if num_watched:
            watched.append(logits[:, :, :, -num_watched:].clone())  # a view would hold all of them
        # a query that has seen nothing yet keeps -inf as its top; subtract 0 instead of -inf
        floor = torch.where(new_top.isinf(), torch.zeros_like(new_top), new_top)
        p = logits.sub_(floor[..., None]).exp_()
        shrink = torch.exp(top - floor)
        total = total * shrink + p.sum(dim=-1)
        flat = p.view(batch, num_heads, group * num_q, -1).to(v.dtype)
        out = out * shrink[..., None] + (flat @ v).float().view(*shape, head_dim)
        top = new_top
        del logits, p, flat  # before the next ones are made
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
    pieces.clear()
    if q_positions is not None:
        positions = [part.positions for part in parts]
        kv_positions = positions[0] if len(positions) == 1 else torch.cat(positions, dim=-1)
        hidden = hidden_from(q_positions, kv_positions, window, False)
        assert hidden is not None
        logits.view(batch, num_heads * group, num_q, -1).masked_fill_(hidden[:, None], -math.inf)
    if sinks is not None:
        column = sinks.to(logits.dtype).view(1, num_heads, group, 1)
        column = column.expand(batch, -1, -1, num_q).reshape(batch * num_heads, group * num_q, 1)
        p = torch.cat([logits, column], dim=-1).softmax(-1, dtype=torch.float32)[..., :-1]
    else:
        p = logits.softmax(-1, dtype=torch.float32)
    del logits
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


def weights(
    q: Tensor,
    parts: Sequence[Part],
    *,
    scale: float,
    q_positions: Tensor | None = None,
    window: int | None = None,
    sinks: Tensor | None = None,
    block: int = 4096,
) -> Tensor:
    """The softmax weights themselves, of a few queries: (B, H, G, Q, T) float32.

    Logits are float32 whatever the dtypes, so that near rows do not tie. Rows are in the order of
    the parts; one that a query may not see, or that is not there, has weight 0; a sink logit takes
    its share and is left out. Keys are read `block` rows at a time. Other arguments as in `attend`.

    Source: the window attention of SnapKV (arXiv 2404.14469), section 3.
    """
    assert parts and (window is None or q_positions is not None)
    batch, num_q_heads, num_q, head_dim = q.shape
    num_heads = parts[0].keys.shape[1]
    shape = (batch, num_heads, num_q_heads // num_heads, num_q)
    grouped = (q.to(torch.float32) * scale).reshape(batch, num_heads, -1, head_dim)
    pieces = [
        grouped @ part.some_keys(start, min(start + block, part.num_rows)).mT
        for part in parts
        for start in range(0, part.num_rows, block)
    ]
    num_rows = sum(part.num_rows for part in parts)
    pieces = pieces or [grouped.new_empty(*grouped.shape[:3], 0)]
    logits = torch.cat(pieces, dim=-1) if len(pieces) > 1 else pieces[0]
    pieces.clear()
    logits = logits.view(*shape, num_rows)
    places = [part.positions for part in parts]
    positions = torch.cat(places, dim=-1) if len(places) > 1 else places[0]
    is_padded = any(part.is_padded for part in parts)
    hidden = hidden_from(q_positions, positions, window, is_padded)
    if hidden is not None:
        hidden = hidden[:, None, None]  # (B, 1, 1, Q or 1, T)
        logits.masked_fill_(hidden, -math.inf)
    if sinks is not None:
        column = sinks.to(torch.float32).view(1, *shape[1:3], 1, 1).expand(*shape, 1)
        logits = torch.cat([logits, column], dim=-1)
    p = logits.softmax(dim=-1)[..., :num_rows]
    # a query that sees nothing at all has NaN here
    return p if hidden is None else p.masked_fill_(hidden, 0)


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
