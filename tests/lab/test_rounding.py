"""Round-trip errors of the formats, on made-up keys."""

import pytest
import torch

from agentkv_kernels.formats import FORMATS
from agentkv_lab.rounding import error_after_merges, keys_and_values, rows
from tests.agentkv.reference.test_reference import model_of


@pytest.fixture(scope="module")
def found():
    draw = torch.Generator().manual_seed(0)
    layers = [tuple(torch.randn(2, 640, 16, generator=draw) for _ in range(2)) for _ in range(2)]
    return {(row.format, row.field): row for row in rows(layers)}


def test_every_format_has_a_row_for_keys_and_one_for_values(found):
    assert set(found) == {(name, field) for name in FORMATS for field in ("keys", "values")}


def test_the_errors_of_stored_entries_are_those_of_the_formats(found):
    stored = {name: found[name, "keys"].stored for name in FORMATS}
    known = {"int8": 0.0089, "int8-max": 0.0059, "fp8": 0.0265, "int4": 0.09, "nf4": 0.08}
    assert stored == pytest.approx(known, rel=0.15)


def test_blocks_merge_and_only_add_to_the_error(found):
    for name, form in FORMATS.items():
        row = found[name, "values"]
        if form.by_block:
            assert row.num_merges == 0 and row.random and row.fixed
        else:
            assert (row.random, row.fixed, row.num_merges) == (None, None, 0)


@pytest.mark.parametrize("name", ["int8", "int8-max"])
def test_entries_that_stay_through_merges_are_rounded_more_than_once(name):
    x = torch.randn(1, 1280, 16, generator=torch.Generator().manual_seed(0))
    alone, _ = error_after_merges(FORMATS[name], x, is_fixed=True, kept=1280)
    merged, num_merges = error_after_merges(FORMATS[name], x, is_fixed=True, kept=128)
    assert num_merges > 2 and alone < merged < 2.5 * alone


def test_keys_and_values_are_those_of_a_full_cache():
    found = keys_and_values(model_of("llama"), [1, 2, 3, 4, 5])
    assert [[tuple(x.shape) for x in both] for both in found] == [[(2, 5, 8)] * 2] * 3
