"""Samples of grids hold what they say."""

from itertools import combinations, product

import pytest

from tests.sampling import covering

SIZES = ((13, 3, 2), (8, 6), (5, 1, 4, 2))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("size", [1, 2])
def test_a_sample_holds_every_value_or_pair_and_few_cases_more(
    sizes: tuple[int, ...], size: int
) -> None:
    grid = list(product(*map(range, sizes)))
    names = "abcd"[: len(sizes)]
    chosen = covering([dict(zip(names, case, strict=True)) for case in grid], size)
    for places in combinations(range(len(sizes)), size):
        held = {tuple(grid[number][place] for place in places) for number in chosen}
        assert held == {tuple(case[place] for place in places) for case in grid}
    largest = sorted(sizes)[-size:]
    fewest = largest[0] * largest[-1] if size == 2 else largest[0]
    assert fewest <= len(chosen) <= 1.2 * fewest
