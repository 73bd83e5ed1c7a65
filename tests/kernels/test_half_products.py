"""Products with weights of 16 bits, compiled, beside torch's on the widened weights."""

import numpy as np
import pytest
import torch

from agentkv_kernels.layout import DTYPES
from agentkv_kernels.numba.linear import products


@pytest.mark.parametrize("num_tokens", [1, 2, 4, 7])
@pytest.mark.parametrize("width", [8, 64, 200])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_products_are_those_of_the_widened_weight(dtype, width, num_tokens):
    weight, x = torch.randn(11, width).to(dtype), torch.randn(num_tokens, width)
    out = np.full((num_tokens, 11), np.nan, np.float32)
    products(DTYPES[dtype], weight.data_ptr(), width, x.numpy(), 2, 9, out)
    expected = (x @ weight.float().T)[:, 2:9]
    torch.testing.assert_close(torch.from_numpy(out)[:, 2:9], expected, rtol=1e-4, atol=1e-4)
    assert np.isnan(out).sum() == num_tokens * 4
