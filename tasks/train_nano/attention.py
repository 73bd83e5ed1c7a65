"""Causal attention for training on a CPU, computed in query blocks with plain matrix products.

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
