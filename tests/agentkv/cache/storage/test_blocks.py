"""Quantized entries: never encoded again, merged in blocks, copied, and their memory returned."""

import pytest
import torch

from agentkv.cache.storage.table import Meter
from agentkv.policies.entries import Drop
from tests.agentkv.cache.storage.by_hand import (
    DIM,
    TORCH,
    contents,
    drop,
    layout,
    most_off,
    storage_for,
)


@pytest.mark.parametrize("form", ["int8", "fp8", "int4", "nf4"])
def test_codes_of_kept_entries_are_never_encoded_again(form):
    torch.manual_seed(0)
    storage = storage_for(layout(form))
    TORCH.append(storage, *torch.randn(2, 1, 2, 256, DIM), first=[0])
    TORCH.quantize_oldest(storage, [0])
    before = contents(storage, 0)[0]
    drop(TORCH, storage, [Drop(3, 4)])
    stays = torch.arange(255) % 2 == 0
    drop(TORCH, storage, [stays[None]])  # two blocks of scales are allowed for each one filled
    index = torch.cat([torch.arange(3), torch.arange(4, 256)])[::2]
    assert torch.equal(contents(storage, 0)[0], before[:, index])


def test_blocks_are_merged_as_their_entries_leave_and_entries_keep_their_scales():
    torch.manual_seed(0)
    storage = storage_for(layout(segments=2, heads=1))
    keys = torch.randn(1, 2, 640, DIM) * 2.0 ** torch.randint(-6, 6, (1, 2, 640, 1))
    TORCH.append(storage, keys, -keys, first=[0])
    TORCH.quantize_oldest(storage, [0])
    stays = torch.rand(2, 640) < 0.1
    drop(TORCH, storage, [stays])
    storage.check()
    for segment in range(2):
        kept = keys[0, segment, None][:, stays[segment]]
        part = storage.parts(segment)[0]
        assert part.key_scales.shape[2] <= 4 < 10  # two for each block that 60 to 128 entries fill
        for which, original in enumerate((kept, -kept)):
            off = (contents(storage, segment)[which] - original).abs()
            assert (off <= most_off(part, which, original)).all()


def test_dropping_everything_returns_all_memory():
    meter = Meter()
    storage = storage_for(layout(segments=2, heads=1), 2, meter)
    TORCH.append(storage, *torch.randn(2, 2, 2, 300, DIM), first=[0, 0])
    TORCH.quantize_oldest(storage, [40, 0])
    assert storage.num_quantized == [256, 256, 256, 256]
    drop(TORCH, storage, [torch.zeros(2, 300, dtype=torch.bool), Drop(0, 300)])
    assert storage.nbytes == meter.live == 0
    TORCH.append(storage, *torch.randn(2, 2, 2, 1, DIM), first=[300, 300])
    assert storage.counts == [1, 1, 1, 1]
    storage.check()


def test_a_copy_shares_nothing_with_its_original():
    storage = storage_for(layout(), 2)
    TORCH.append(storage, *torch.randn(2, 2, 2, 100, DIM), first=[0, 0])
    TORCH.quantize_oldest(storage, [10, 10])
    twin = storage.take([1, 0])
    before = [contents(twin, segment)[0].clone() for segment in range(2)]
    drop(TORCH, storage, [Drop(0, 90)] * 2)
    TORCH.append(storage, *torch.randn(2, 2, 2, 5, DIM), first=[100, 100])
    twin.check()
    assert all(torch.equal(contents(twin, segment)[0], before[segment]) for segment in range(2))
