"""Blocks encoded in int8 by compiled code are those of `formats`, bit for bit."""

import numpy as np
import pytest
import torch

from agentkv_kernels.formats import BLOCK, FORMATS
from agentkv_kernels.numba.encode import encode_block

TINY = torch.finfo(torch.float32).tiny


@pytest.mark.parametrize("count", [1, 7, BLOCK])
@pytest.mark.parametrize("size", [0.0, TINY / 1000, TINY, 1e-30, 0.1, 1.0, 127.0, 1e30, 2.0**127])
def test_compiled_codes_are_those_of_the_format(size, count):
    torch.manual_seed(count)
    x = (torch.rand(count, 40) * 2 - 1) * size
    x[:, 1], x[0, 2], x[:, 3:9] = 0.0, size, (x[:, 3:9] / size).round() * size if size else 0.0
    # halves, and sizes at which the exponent steps
    x[:, 9:20] = torch.arange(11) / 254 * size
    x[0, 20:30] = torch.tensor([127, 127.5, 63.5, 64, 126, 255, 254, 253, 128, 1]) / 256 * size
    codes, exponents = np.empty(x.shape, np.int8), np.empty(x.shape[1], np.int8)
    encode_block(x.numpy(), codes, exponents)
    expected = FORMATS["int8"].encode(x[None])
    assert torch.equal(torch.from_numpy(codes), expected[0][0])
    assert torch.equal(torch.from_numpy(exponents), expected[1][0, 0])
