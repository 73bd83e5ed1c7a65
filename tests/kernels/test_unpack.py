"""Compiled code decodes 8 and 4 bits to the same numbers as torch."""

import os
import subprocess
import sys

import pytest
import torch

from agentkv_kernels import formats
from agentkv_kernels.layout import FORMAT_NUMBERS
from agentkv_kernels.numba.unpack import unpack

FORMATS, SIZES = ("fp8", "int4", "nf4"), (8, 16, 64, 80, 96)


def check(name, head_dim):
    """Decode the middle of some entries; 8 channels are less than a vector, 80 no whole groups."""
    torch.manual_seed(head_dim)
    entries, form = 3 * torch.randn(1, 50, head_dim), formats.format_of(name)
    codes, scales = form.encode(entries)
    expected, found = form.decode(codes, scales, None)[0], torch.zeros(32, head_dim)
    stored = [x[0].view(torch.int8).numpy() for x in (codes, scales)]
    unpack(*stored, 7, 32, FORMAT_NUMBERS[name], found.numpy())
    assert torch.equal(found, expected[7:39])


@pytest.mark.parametrize("head_dim", SIZES)
@pytest.mark.parametrize("name", FORMATS)
def test_decoded_entries_are_those_of_torch_to_the_bit(name, head_dim):
    check(name, head_dim)


@pytest.mark.slow
def test_they_are_so_on_processors_with_short_vectors():
    code = (
        "from tests.kernels.test_unpack import FORMATS, SIZES, check\n"
        "for name in FORMATS:\n"
        "    for head_dim in SIZES: check(name, head_dim)\n"
    )
    environment = {**os.environ, "NUMBA_CPU_FEATURES": "+sse4.2,+avx,+avx2,+fma,+f16c"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr
