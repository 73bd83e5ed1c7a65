"""Next-token confidence: the compiled pass and plain torch against float64."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentkv_kernels.confidence import confidence, confidence_in_numba, confidence_in_torch

WEIGHTS = [(0.4, 0.3, 0.3), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)]
IMPLEMENTATIONS = [confidence_in_torch, confidence_in_numba]

few = st.integers(2, 70)
sizes = st.one_of(few, few, st.integers(1000, 2100), st.integers(2, 200_000))


def in_float64(logits, weights):
    """The formula; a forbidden token has no share in the entropy."""
    p = logits.double().softmax(-1)
    entropy = -p.where(p > 0, 1).log().mul(p).sum(-1)
    best = logits.double().sort(dim=-1).values[:, -2:]
    gap = (best[:, 1] - best[:, 0]).sigmoid()
    features = (1 - entropy / math.log(logits.shape[1]), gap, p.amax(dim=-1))
    return sum(w * x for w, x in zip(weights, features, strict=True))


def drawn(size, rows, kind, scale, seed):
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, size, generator=draw) * scale
    if kind == "ties":
        return (logits / scale).round()
    if kind == "forbidden":
        return logits.masked_fill(torch.rand(rows, size, generator=draw) < 0.6, -math.inf)
    if kind == "one":
        one = torch.full_like(logits, -math.inf)
        place = torch.randint(size, (rows, 1), generator=draw)
        return one.scatter_(1, place, logits.gather(1, place))
    if kind == "rising":
        return logits.sort(dim=1).values
    if kind == "level":
        return torch.full_like(logits, scale)
    return logits


@given(
    size=sizes,
    rows=st.integers(1, 2),
    kind=st.sampled_from(["random", "ties", "forbidden", "one", "rising", "level"]),
    scale=st.sampled_from([1e-30, 0.3, 3.0, 40.0, 1e4, 1e37]),
    weights=st.sampled_from(WEIGHTS),
    seed=st.integers(0, 1000),
)
def test_both_are_the_formula_in_float64(size, rows, kind, scale, weights, seed):
    logits = drawn(size, rows, kind, scale, seed)
    if logits.isneginf().all(dim=1).any():
        logits[:, 0] = -2.0
    expected = in_float64(logits, weights)
    for each in IMPLEMENTATIONS:
        found = each(logits, weights)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), expected, atol=3e-6, rtol=0)


@pytest.mark.parametrize("size", [2, 31, 5000])
@pytest.mark.parametrize("strange", [math.nan, -math.nan, math.inf])
def test_what_is_not_a_number_is_not_hidden(size, strange):
    for place in (0, size // 2, size - 1):
        logits = torch.zeros(2, size)
        logits[1, place] = strange
        for each in IMPLEMENTATIONS:
            assert each(logits, WEIGHTS[0]).isnan().tolist() == [False, True]
    nothing = torch.full((1, size), -math.inf)
    for each in IMPLEMENTATIONS:
        assert each(nothing, WEIGHTS[0]).isnan().all()


def test_logits_are_read_in_place():
    whole = torch.randn(3, 4, 50, generator=torch.Generator().manual_seed(0))
    for logits in (whole[:, -1], whole[1:, 2, 3:40], whole[:1, 0].expand(3, -1), whole[:0, 0]):
        expected = confidence_in_torch(logits, WEIGHTS[0])
        torch.testing.assert_close(confidence_in_numba(logits, WEIGHTS[0]), expected)


def test_other_logits_go_through_torch():
    logits = torch.randn(2, 9, generator=torch.Generator().manual_seed(0))
    for others in (logits.bfloat16(), logits.T, logits.double()):
        expected = confidence_in_torch(others, WEIGHTS[0])
        assert torch.equal(confidence(others, WEIGHTS[0]), expected)
    logits.requires_grad_()
    confidence(logits, WEIGHTS[0]).sum().backward()
    assert bool(logits.grad.any())
