"""Attention in plain torch over entries of mixed precision: the reference, and the path of prefill.

Shapes: B sequences, H key-value heads, G query heads per key-value head, Q new tokens, T stored
entries, D head size.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from agentkv_kernels.entries import Part
from agentkv_kernels.processor import multiplies

MAX_LOGITS_AT_ONCE = 1 << 22
"""16 MiB of float32 (our choice): 512 new tokens over 2,048 entries in 4 heads."""
MAX_LOGITS_ON_DEVICE = 1 << 26
"""The same for a device, on which many calls take longer than the memory is worth: 256 MiB (our
choice)."""


@dataclass(frozen=True, slots=True)
class Attended:
    """Result of attention."""

    output: Tensor
    """(B, H * G, Q, D) in the dtype of the queries."""
    mass: Tensor | None
    """(B, H, T) float32: attention that each entry received, the mean over its group's query heads
    and the last `num_mass_queries` queries, entries in the order of the parts. An entry that a
    query may not see receives 0 from it. The share of a sink logit is left out, so the masses of a
    head may sum to less than 1."""


def attend(
    q: Tensor,
    parts: Sequence[Part],
    *,
    scale: float,
    q_positions: Tensor | None = None,
    window: int | None = None,
    sinks: Tensor | None = None,
    num_mass_queries: int = 0,
) -> Attended:
    """Softmax attention of new tokens over stored entries.

    Every query must see at least one entry. Several queries without a mass go through torch's fused
    attention. Otherwise logits that fit into a few megabytes are computed at once, with the fewest
    calls, and others block by block.

    Args:
        q: (B, H * G, Q, D), rotated; query head h * G + g reads key-value head h.
        parts: stored entries in any order, at least one part; T counts the entries of all.
        scale: factor on the logits before the softmax.
        q_positions: (B, Q). A query sees entries up to its own position. None: every query sees
            every entry, as in a decoding step whose own entry is stored already.
        window: a query sees only entries less than `window` positions back; needs `q_positions`.
        sinks: (H * G,), a logit per query head that joins the softmax and has no value.
        num_mass_queries: how many of the last queries the mass averages over; 0: no mass.
    """
    if q_positions is not None and sinks is None and not num_mass_queries:
        return attend_fused(q, parts, scale=scale, q_positions=q_positions, window=window)
    num_logits = q.shape[:3].numel() * sum(part.num_entries for part in parts)
    serve = attend_at_once if num_logits <= _most_logits(q) else attend_in_blocks
    return serve(
        q,
        parts,
        scale=scale,
        q_positions=q_positions,
        window=window,
        sinks=sinks,
        num_mass_queries=num_mass_queries,
    )


def attend_fused(
    q: Tensor,
    parts: Sequence[Part],
    *,
    scale: float,
    q_positions: Tensor,
    window: int | None = None,
) -> Attended:
    """Compute `attend` by torch's fused attention, which gives no mass.

    The query heads of a group are passed as further queries of their key-value head, because not
    every kernel that takes a mask takes grouped heads. A call takes as many queries as
    `MAX_LOGITS_AT_ONCE` or, on a device, `MAX_LOGITS_ON_DEVICE` allows: it holds their mask, and
    their logits too where torch has no fused kernel.
    """
    # torch's kernels are slow in dtypes that the CPU cannot multiply
    dtype = torch.float32 if q.is_cpu and not multiplies(q.dtype) else q.dtype
    own_q = q.to(dtype)
    decoded = [part.decode(dtype) for part in parts]
    keys, values = decoded[0]
    if len(decoded) > 1:
        keys, values = (torch.cat(each, dim=2) for each in zip(*decoded, strict=True))
    positions = torch.cat([part.positions for part in parts], dim=-1)
    batch, num_q_heads, num_q, head_dim = q.shape
    num_heads = keys.shape[1]
    step = max(1, _most_logits(q) // (num_q_heads * positions.numel()))
    outputs = []
    for start in range(0, num_q, step):
        own = slice(start, start + step)
        hidden = hidden_entries(q_positions[:, own], positions, window)
        mask = (
            None if hidden is None else ~hidden[:, None].repeat(1, 1, num_q_heads // num_heads, 1)
        )
        with _kernels(q):
            output = F.scaled_dot_product_attention(
                own_q[:, :, own].reshape(batch, num_heads, -1, head_dim),
                keys,
                values,
                attn_mask=mask,
                scale=scale,
            )
        outputs.append(output.reshape(batch, num_q_heads, -1, head_dim).to(q.dtype))
    return Attended(outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2), None)


def _most_logits(q: Tensor) -> int:
    return MAX_LOGITS_AT_ONCE if q.is_cpu else MAX_LOGITS_ON_DEVICE


def _kernels(q: Tensor) -> AbstractContextManager[None]:
    """Leave out cuDNN, which torch prefers on some devices: it plans anew for each number of
    entries, which takes longer than the attention."""
    if q.is_cpu:
        return nullcontext()
    return sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


def attend_in_blocks(
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
    """Compute `attend` block by block.

    The softmax is exact: a running maximum m and sum l are corrected as blocks arrive (online
    softmax), and the mass is exp(logit - m) / l with the final m and l. Logits and sums are float32
    whatever the dtypes. A query that sees nothing yields zeros.

    Args:
        block, q_block: entries and queries per block. The others as in `attend`.
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
            parts[0].keys.shape[1],
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


_Block = tuple[Tensor, Tensor, Tensor]
"""Keys and values (B, H, t, D), positions (B, t)."""


def _blocks(parts: Sequence[Part], block: int, dtype: torch.dtype) -> Iterator[_Block]:
    for part in parts:
        for start in range(0, part.num_entries, block):
            piece = part.slice(start, min(start + block, part.num_entries))
            keys, values = piece.decode(dtype)
            yield keys, values, piece.positions


def _attend_block(
    q: Tensor,
    blocks: Iterator[_Block],
    num_heads: int,
    *,
    scale: float,
    q_positions: Tensor | None,
    window: int | None,
    sinks: Tensor | None,
    num_watched: int,
) -> tuple[Tensor, Tensor | None]:
    batch, num_q_heads, num_q, head_dim = q.shape
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
    for k, v, positions in blocks:
        # in place from here on: nothing else is as large as the logits
        logits = (grouped @ k.mT).float().view(*shape, k.shape[2]).mul_(scale)  # (B, H, G, Q, t)
        hidden = hidden_entries(q_positions, positions, window)
        if hidden is not None:
            logits.masked_fill_(hidden[:, None, None], -math.inf)
        # the subtrahend cancels out, in gradients too
        new_top = torch.maximum(top, logits.detach().amax(dim=-1))
        if num_watched:
            watched.append(logits[:, :, :, -num_watched:].clone())  # a view would hold all of them
        # the top of a query that has seen nothing is -inf, and -inf - -inf would be NaN
        floor = torch.where(new_top.isinf(), torch.zeros_like(new_top), new_top)
        p = logits.sub_(floor[..., None]).exp_()
        shrink = torch.exp(top - floor)
        total = total * shrink + p.sum(dim=-1)
        flat = p.view(batch, num_heads, group * num_q, -1).to(v.dtype)
        out = out * shrink[..., None] + (flat @ v).float().view(*shape, head_dim)
        top = new_top
        del logits, p, flat  # before the next block allocates its own
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
    """Compute `attend` with all logits (B, H * G, Q, T) in memory."""
    batch, num_q_heads, num_q, head_dim = q.shape
    decoded = [part.decode(q.dtype) for part in parts]
    num_heads = decoded[0][0].shape[1]
    group = num_q_heads // num_heads
    sums = torch.promote_types(q.dtype, torch.float32)
    grouped = (q * scale).reshape(batch * num_heads, group * num_q, head_dim)
    pieces = [torch.bmm(grouped, k.flatten(0, 1).mT) for k, _ in decoded]
    logits = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-1)  # (B H, G Q, T)
    pieces.clear()
    stop = 0
    for part in parts:
        start, stop = stop, stop + part.num_entries
        hidden = hidden_entries(q_positions, part.positions, window)
        if hidden is not None:
            of_part = logits.view(batch, num_heads * group, num_q, -1)[..., start:stop]
            of_part.masked_fill_(hidden[:, None], -math.inf)
    if sinks is not None:
        column = sinks.to(logits.dtype).view(1, num_heads, group, 1)
        column = column.expand(batch, -1, -1, num_q).reshape(batch * num_heads, group * num_q, 1)
        p = torch.cat([logits, column], dim=-1).softmax(-1, dtype=sums)[..., :-1]
    else:
        p = logits.softmax(-1, dtype=sums)
    del logits
    weights = p.to(q.dtype)
    start = decoded[0][0].shape[2]
    out = torch.bmm(
        weights[..., :start] if len(decoded) > 1 else weights, decoded[0][1].flatten(0, 1)
    )
    for k, v in decoded[1:]:
        stop = start + k.shape[2]
        out = torch.baddbmm(out, weights[..., start:stop], v.flatten(0, 1))
        start = stop
    output = out.view(batch, num_q_heads, num_q, head_dim)
    if not num_mass_queries:
        return Attended(output, None)
    p = p.to(torch.float32)
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
    """Return the softmax weights of a few queries: (B, H, G, Q, T) float32.

    Logits are float32 whatever the dtypes, so that similar entries do not tie. Entries are in the
    order of the parts. An entry that a query may not see has weight 0. A sink logit takes its
    share, which is left out.

    Args:
        block: entries whose keys are decoded at once. The others as in `attend`.

    Source: window attention of SnapKV (arXiv 2404.14469), section 3.
    """
    assert parts and (window is None or q_positions is not None)
    batch, num_q_heads, num_q, head_dim = q.shape
    num_heads = parts[0].keys.shape[1]
    shape = (batch, num_heads, num_q_heads // num_heads, num_q)
    grouped = (q.to(torch.float32) * scale).reshape(batch, num_heads, -1, head_dim)
    pieces = [
        grouped @ part.slice(start, min(start + block, part.num_entries)).decode_keys().mT
        for part in parts
        for start in range(0, part.num_entries, block)
    ]
    num_entries = sum(part.num_entries for part in parts)
    pieces = pieces or [grouped.new_empty(*grouped.shape[:3], 0)]
    logits = torch.cat(pieces, dim=-1) if len(pieces) > 1 else pieces[0]
    pieces.clear()
    logits = logits.view(*shape, num_entries)
    places = [part.positions for part in parts]
    positions = torch.cat(places, dim=-1) if len(places) > 1 else places[0]
    hidden = hidden_entries(q_positions, positions, window)
    if hidden is not None:
        hidden = hidden[:, None, None]  # (B, 1, 1, Q or 1, T)
        logits.masked_fill_(hidden, -math.inf)
    if sinks is not None:
        column = sinks.to(torch.float32).view(1, *shape[1:3], 1, 1).expand(*shape, 1)
        logits = torch.cat([logits, column], dim=-1)
    p = logits.softmax(dim=-1)[..., :num_entries]
    # a query that sees nothing at all has NaN here
    return p if hidden is None else p.masked_fill_(hidden, 0)


def hidden_entries(
    q_positions: Tensor | None, positions: Tensor, window: int | None
) -> Tensor | None:
    """Return which entries each query may not see, (B, Q, T) bool; None if it sees all."""
    if q_positions is None:
        return None
    if window is None and positions.is_cpu and positions.numel():  # a device would be waited for
        if int(positions.max()) <= int(q_positions.min()):
            return None
    distance = q_positions[:, :, None] - positions[:, None, :]
    hidden = distance < 0
    return hidden if window is None else hidden | (distance >= window)
