import pytest
import torch


@pytest.fixture(autouse=True)
def uninitialised_memory_is_nan():
    """So that a tail left unwritten shows at once."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
