"""Tests of kernels see uninitialized memory as NaN, on a CPU and on a device."""

import torch


def test_memory_that_nobody_wrote_is_nan() -> None:
    assert bool(torch.empty(5).isnan().all())


def test_what_has_no_deterministic_form_runs_all_the_same() -> None:
    # on a device these are matrix products, without a variable in the environment, and kthvalue,
    # by which ada-snapkv shares out rows; on a processor this one
    numbers = torch.zeros(3).put_(torch.tensor([1]), torch.ones(1))
    assert numbers.tolist() == [0, 1, 0]
