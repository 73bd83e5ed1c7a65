"""Causal attention for training; on a CPU, in query blocks with plain matrix products.

torch's attention is a third slower in bfloat16 on a CPU (rows of 512 and 4,096 tokens; a fifth at
2,048) because it does not use the matrix units. Other devices and types use torch's attention.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 128


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute causal attention: q (B, H, T, E), k and v (B, K, T, E) -> (B, H, T, E)."""
    if q.device.type != "cpu" or q.dtype != torch.bfloat16:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    mixed: Tensor = _Blocked.apply(q, k, v)  # type: ignore[no-untyped-call]
    return mixed


def attend_some(q: Tensor, k: Tensor, v: Tensor, chosen: Tensor) -> Tensor:
    """Compute causal attention of some tokens: q (N, H, E), k and v (B, T, K, E) -> (N, H, E).

    Args:
        chosen: increasing indices of the N tokens among all B * T.
    """
    attend = attend_row_by_row if q.device.type == "cpu" else attend_and_select
    return attend(q, k, v, chosen)


def attend_row_by_row(q: Tensor, k: Tensor, v: Tensor, chosen: Tensor) -> Tensor:
    """Compute `attend_some` for one row after the other, without the queries of other tokens."""
    batch, length = k.shape[:2]
    counts = torch.bincount(chosen // length, minlength=batch).tolist()
    indices = torch.arange(length, device=q.device)
    mixed: list[Tensor] = []
    parts = zip(q.split(counts), (chosen % length).split(counts), k, v, strict=True)
    for queries, ends, keys, values in parts:
        out = F.scaled_dot_product_attention(
            queries.transpose(0, 1)[None],
            keys.transpose(0, 1)[None],
            values.transpose(0, 1)[None],
            attn_mask=indices[None] <= ends[:, None],  # (n, T)
            enable_gqa=True,
        )
        mixed.append(out[0].transpose(0, 1))
    return torch.cat(mixed)


def attend_and_select(q: Tensor, k: Tensor, v: Tensor, chosen: Tensor) -> Tensor:
    """Compute `attend_some` with one attention over all tokens, whose other queries are zero.

    On a GPU that is faster than a kernel and a mask for each row.
    """
    batch, length = k.shape[:2]
    whole = q.new_zeros(batch * length, *q.shape[1:]).index_copy(0, chosen, q)
    whole = whole.view(batch, length, *q.shape[1:])
    mixed = attend(whole.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    return mixed.transpose(1, 2).flatten(0, 1).index_select(0, chosen)


class _Blocked(torch.autograd.Function):
    """Blocked attention; the backward pass computes each block's weights again.

    Storing them takes T * T * H bytes and as much time.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        batch, heads, length, size = q.shape
        shared = k.shape[1]
        batched_heads, group = batch * shared, heads // shared
        q = (q * size**-0.5).reshape(batched_heads, group, length, size)
        k, v = k.reshape(batched_heads, length, size), v.reshape(batched_heads, length, size)
        mixed = torch.empty_like(q)
        for start in range(0, length, BLOCK):
            end = min(length, start + BLOCK)
            weight = _weights(q, k, start, end)
            mixed[:, :, start:end] = torch.bmm(weight, v[:, :end]).view(
                batched_heads, group, end - start, size
            )
        ctx.save_for_backward(q, k, v)
        return mixed.view(batch, heads, length, size)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = ctx.saved_tensors
        batched_heads, group, length, size = q.shape
        grad = grads[0].reshape(batched_heads, group, length, size)
        grad_q = torch.empty_like(q)
        grad_k, grad_v = (
            torch.zeros_like(k, dtype=torch.float32),
            torch.zeros_like(v, dtype=torch.float32),
        )
        for start in range(0, length, BLOCK):
            end = min(length, start + BLOCK)
            grad_mixed = _flatten_block(grad, start, end)
            weight = _weights(q, k, start, end)
            grad_v[:, :end] += torch.bmm(weight.transpose(1, 2), grad_mixed)
            grad_scores = torch._softmax_backward_data(
                torch.bmm(grad_mixed, v[:, :end].transpose(1, 2)), weight, -1, weight.dtype
            )
            grad_q[:, :, start:end] = torch.bmm(grad_scores, k[:, :end]).view(
                batched_heads, group, end - start, size
            )
            grad_k[:, :end] += torch.bmm(grad_scores.transpose(1, 2), _flatten_block(q, start, end))
        batch, heads = grads[0].shape[:2]
        shape = (batch, heads // group, length, size)
        return (
            (grad_q * size**-0.5).view(batch, heads, length, size),
            grad_k.to(k.dtype).view(shape),
            grad_v.to(v.dtype).view(shape),
        )


def _weights(q: Tensor, k: Tensor, start: int, end: int) -> Tensor:
    """Compute the attention weights of one block of queries, (B * K, H / K * block, end)."""
    batched_heads, group = q.shape[:2]
    scores = torch.bmm(_flatten_block(q, start, end), k[:, :end].transpose(1, 2))
    later = torch.ones(end - start, end - start, dtype=torch.bool).triu_(1)
    scores.view(batched_heads, group, end - start, end)[..., start:].masked_fill_(
        later, float("-inf")
    )
    return torch.softmax(scores, -1)


def _flatten_block(rows: Tensor, start: int, end: int) -> Tensor:
    """Flatten one block of queries: (B * K, H / K, T, E) -> (B * K, H / K * block, E)."""
    batched_heads, group, _, size = rows.shape
    return rows[:, :, start:end].reshape(batched_heads, group * (end - start), size)
