"""Precisions: which entries keep the model's dtype."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import agentkv
from agentkv.policies.precision import FORMATS, Dense, QuantizeByRank, QuantizeOld

TAUS = (7.774, 5.407, 5.528)


@pytest.mark.parametrize(
    ("budget", "recent"), [(512, 256), (2048, 256), (256, 128), (101, 50), (1, 0), (None, 256)]
)
def test_half_of_the_budget_stays_exact_and_at_most_256_rows(budget, recent):
    assert QuantizeOld(None).fitted(budget).recent == recent
    assert QuantizeOld(7).fitted(budget).recent == 7
    assert Dense().fitted(budget).format is None


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_stored_by_age_or_by_rank_has_any_format(format):
    assert QuantizeOld(None, format).format == format
    assert QuantizeByRank(32, *TAUS, format).format == format
    assert agentkv.policy(format).precision == QuantizeOld(64, format)


def plain_quality(attention, taus):
    """Loops over plain floats, from the equations."""
    num_entries = attention.shape[-1]
    masses = [math.fsum(attention[..., k].double().flatten().tolist()) for k in range(num_entries)]
    p = [mass / math.fsum(masses) for mass in masses]
    mean = math.fsum(p) / num_entries
    entropy = -math.fsum(x * math.log(x) for x in p if x)
    variance = math.fsum((x - mean) ** 2 for x in p) / num_entries
    kurtosis = math.fsum((x - mean) ** 4 for x in p) / num_entries / variance**2
    return entropy ** (1 / taus[0]) * variance ** (1 / taus[1]) * kurtosis ** (1 / taus[2])


@given(st.integers(0, 10**6), st.integers(2, 60), st.floats(0.1, 8.0))
def test_a_layers_quality_is_its_formula(seed, num_entries, sharpness):
    draws = torch.randn(2, 3, 4, num_entries, generator=torch.Generator().manual_seed(seed))
    attention = (draws * sharpness).softmax(-1) * 0.7  # the window's own share is left out
    found = QuantizeByRank(4, *TAUS).quality(attention)
    assert found == pytest.approx(plain_quality(attention, TAUS), rel=1e-6)
    assert QuantizeByRank(4, *TAUS).quality(attention * 2) == pytest.approx(found, rel=1e-6)


@pytest.mark.parametrize(
    "attention",
    [torch.full((2, 2, 3, 8), 0.1), torch.zeros(2, 2, 3, 8), torch.zeros(2, 2, 3, 0)]
    + [torch.eye(8)[None, None, :1]],
    ids=["even", "nothing", "no entries", "one entry"],
)
def test_a_layer_without_a_shape_still_has_a_quality_above_nothing(attention):
    quality = QuantizeByRank(4, *TAUS).quality(attention)
    assert 0 < quality < math.inf
    shaped = torch.tensor([0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.01, 0.01])[None, None, None]
    assert quality < QuantizeByRank(4, *TAUS).quality(shaped)


def test_the_best_layer_keeps_everything_exact_and_others_their_share():
    ranked = QuantizeByRank(32, *TAUS)
    assert ranked.num_dense(1.0, 512) == 512 - 32
    assert ranked.num_dense(0.5, 512) == 240
    assert ranked.num_dense(0.3, 512) == round(0.3 * 480)
    assert ranked.num_dense(1.0, 20) == 0
    # at a trim 0.75 * (B + 1 - W) entries of the past stay: from that share on nothing is quantized
    left = agentkv.policy("arkv").fitted(512).gate.target(512, 513) - 32
    assert ranked.num_dense(0.75, 512) == left == 360


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: QuantizeOld(-1), "recent must be a whole number of entries, at least 0; found -1"),
        (lambda: QuantizeOld(2**31), "recent must be at most 2,147,483,647; found a number of 32"),
        (lambda: QuantizeOld(10**5000), "recent must be at most 2,147,483,647; found a number of"),
        (lambda: QuantizeOld(1.5), "recent must be"),
        (
            lambda: QuantizeOld(1, "int2"),
            "format must be one of int8, fp8, int4, nf4, int8-max; found 'int2'",
        ),
        (lambda: QuantizeByRank(32, 0, 1, 1), "tau1 must be more than 0; found 0"),
        (lambda: QuantizeByRank(32, 1, 1, -2.0), "tau3 must be more than 0"),
        (lambda: QuantizeByRank(-1, 1, 1, 1), "window must be"),
        (lambda: QuantizeByRank(32, 1, 1, 1, "bf16"), "format must be one of"),
    ],
)
def test_what_a_precision_cannot_do_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
