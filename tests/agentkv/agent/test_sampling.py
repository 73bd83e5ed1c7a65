"""Sampling keeps to the likeliest ids, and log-probabilities are the model's own."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from agentkv.models.sampling import Sampler, log_probability, sample

LOGITS = st.lists(st.integers(-50, 50), min_size=2, max_size=12, unique=True).map(
    lambda tenths: torch.tensor(tenths) / 10
)


@given(logits=LOGITS, top_p=st.floats(0.05, 1), seed=st.integers(0, 1000))
def test_only_ids_of_the_nucleus_are_drawn(logits: torch.Tensor, top_p: float, seed: int) -> None:
    probabilities = logits.softmax(0)
    likeliest = probabilities.argsort(descending=True)
    before = probabilities[likeliest].cumsum(0) - probabilities[likeliest]
    nucleus = set(likeliest[before < top_p + 1e-6].tolist())
    random = torch.Generator().manual_seed(seed)
    for _ in range(8):
        (id,) = sample(logits[None], [None], [Sampler(1.0, random, top_p)]).tolist()
        assert id in nucleus


def test_draws_within_the_nucleus_follow_its_probabilities() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    sampler = Sampler(1.0, torch.Generator().manual_seed(0), 0.75)
    drawn = torch.tensor([int(sample(logits, [None], [sampler])) for _ in range(4000)])
    shares = torch.bincount(drawn, minlength=4) / 4000
    assert torch.allclose(shares, torch.tensor([0.625, 0.375, 0.0, 0.0]), atol=0.03)


@given(logits=LOGITS)
def test_log_probabilities_come_from_the_logits_alone(logits: torch.Tensor) -> None:
    noted = log_probability(logits, 1, 2)
    expected = logits.log_softmax(0)
    assert abs(noted.value - float(expected[1])) < 1e-5 and noted.id == 1
    assert [id for id, _ in noted.top] == expected.argsort(descending=True)[:2].tolist()
