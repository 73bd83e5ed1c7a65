import warnings
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def uninitialised_memory_is_nan() -> Iterator[None]:
    """So that a tail left unwritten shows at once.

    It comes with deterministic algorithms only. Of these nothing is wanted here, so that what has
    none is let through: on a device matrix products would else be refused.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*deterministic")
        torch.use_deterministic_algorithms(True, warn_only=True)
        yield
        torch.use_deterministic_algorithms(False)
