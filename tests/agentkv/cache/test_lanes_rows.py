"""What becomes of the rows of a layer's store: never made anew, merged, copied, given back."""

import pytest
import torch

from agentkv.cache.lanes import Lanes
from agentkv.cache.table import Meter
from agentkv.policies.rows import Drop
from tests.agentkv.cache.lanes_by_hand import CPU, DIM, contents, most_off, shape


@pytest.mark.parametrize("form", ["int8", "fp8", "int4", "nf4"])
def test_codes_of_survivors_are_never_made_anew(form):
    torch.manual_seed(0)
    lanes = Lanes(shape(form), batch=1, device=CPU, meter=Meter())
    lanes.append(*torch.randn(2, 1, 2, 256, DIM), None, first=[0])
    lanes.quantise_to([0])
    before = contents(lanes, 0)[0]
    lanes.apply([Drop(3, 4)])
    stays = torch.arange(255) % 2 == 0
    lanes.apply([stays[None]])  # two blocks of scales are allowed for each one filled
    index = torch.cat([torch.arange(3), torch.arange(4, 256)])[::2]
    assert torch.equal(contents(lanes, 0)[0], before[:, index])


def test_blocks_are_merged_as_their_rows_go_and_rows_keep_their_scales():
    torch.manual_seed(0)
    lanes = Lanes(shape(lanes=2, heads=1), batch=1, device=CPU, meter=Meter())
    keys = torch.randn(2, 1, 640, DIM) * 2.0 ** torch.randint(-6, 6, (2, 1, 640, 1))
    lanes.append(keys, -keys, None, first=[0])
    lanes.quantise_to([0])
    stays = torch.rand(2, 640) < 0.1
    lanes.apply([stays])
    lanes.check()
    for lane in range(2):
        kept = keys[lane][:, stays[lane]]
        part = lanes.parts(lane)[0]
        assert part.key_scales.shape[2] <= 4 < 10  # two for each block that 60 to 128 rows fill
        for which, original in enumerate((kept, -kept)):
            off = (contents(lanes, lane)[which] - original).abs()
            assert (off <= most_off(part, which, original)).all()


def test_dropping_everything_gives_all_memory_back():
    meter = Meter()
    lanes = Lanes(shape(lanes=2, heads=1), batch=2, device=CPU, meter=meter)
    lanes.append(*torch.randn(2, 4, 1, 300, DIM), None, first=[0, 0])
    lanes.quantise_to([40, 0])
    assert lanes.num_coded == [256, 256, 256, 256]
    lanes.apply([torch.zeros(2, 300, dtype=torch.bool), Drop(0, 300)])
    assert lanes.nbytes == meter.live == 0
    lanes.append(*torch.randn(2, 4, 1, 1, DIM), None, first=[300, 300])
    assert lanes.counts == [1, 1, 1, 1]
    lanes.check()


def test_a_copy_shares_nothing_with_its_original():
    lanes = Lanes(shape(), batch=2, device=CPU, meter=Meter())
    lanes.append(*torch.randn(2, 2, 2, 100, DIM), None, first=[0, 0])
    lanes.quantise_to([10, 10])
    twin = lanes.take([1, 0])
    before = [contents(twin, lane)[0].clone() for lane in range(2)]
    lanes.apply([Drop(0, 90)] * 2)
    lanes.append(*torch.randn(2, 2, 2, 5, DIM), None, first=[100, 100])
    twin.check()
    assert all(torch.equal(contents(twin, lane)[0], before[lane]) for lane in range(2))
