"""The watch that other tests keep over host and device notices what it is to notice."""

import torch

from tests.kernels.apart import Apart


def test_mixtures_are_noticed() -> None:
    apart = Apart()
    with apart:
        there, here = torch.ones(3, device="cpu"), torch.ones(3)
        there + here
        there[torch.tensor([0])]
        there[:2] = here[:2]
        assert len(apart.mixed) == 3
        # a number, what was moved, and what comes of it, may meet
        there + here.sum() + here.to(torch.device("cpu")) + there.clone() * 2
        there.copy_(here)
    assert len(apart.mixed) == 3 and apart.waits == []


def test_waits_are_noticed() -> None:
    apart = Apart()
    with apart:
        there, here = torch.ones(3, device="cpu"), torch.ones(3)
        bool((there > 0).all()), there.sum().item(), there.tolist(), there[there > 0]
        assert len(apart.waits) == 4
        here.tolist()
    assert len(apart.waits) == 4 and apart.mixed == []
