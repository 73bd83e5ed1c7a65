import warnings
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def uninitialised_memory_is_nan() -> Iterator[None]:
    """Fill new tensors with NaN, so that an unwritten tail shows at once.

    Torch does this only under deterministic algorithms. Operations without one are let through:
    otherwise matrix products on a device would be refused.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*deterministic")
        torch.use_deterministic_algorithms(True, warn_only=True)
        yield
        torch.use_deterministic_algorithms(False)
