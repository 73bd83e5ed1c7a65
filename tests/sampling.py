"""Grids of cases of which CI runs a sample."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any
from zlib import crc32

import pytest


def sampled(cases: Iterable[Any], *, every: int, first: int = 0) -> list[Any]:
    """Return the cases of a grid as parameters of which one in `every` belongs to the sample.

    The others are marked `exhaustive`: `make test-exhaustive` alone runs them. Grids that share
    cases should begin at different ones, so that each case is in the sample of some test.

    Args:
        cases: values of one parameter, tuples of several, or what `pytest.param` returns.
        first: index of the first case of the sample.
    """
    parameters = []
    for index, case in enumerate(cases):
        marks = () if index % every == first % every else (pytest.mark.exhaustive,)
        if isinstance(case, _PARAMETERS):
            values, marks, id = case.values, (*case.marks, *marks), case.id
        else:
            values, id = case if isinstance(case, tuple) else (case,), None
        parameters.append(pytest.param(*values, marks=marks, id=id))
    return parameters


_PARAMETERS = type(pytest.param())


def mark_rest_of_grids(items: list[pytest.Item]) -> None:
    """Mark the cases `exhaustive` that no sample of a test marked `sample` needs.

    Cases that are marked slow or exhaustive already count for no sample.

    The sample of `sample("pairs")` holds every value of each parameter together with every value of
    each other one; that of `sample("values")` holds every value once. Tests begin to choose at
    different cases, so that tests with the same parameters have different samples.
    """
    grids: dict[str, list[pytest.Function]] = {}
    for item in items:
        is_apart = any(mark.name in ("slow", "exhaustive") for mark in item.iter_markers())
        if isinstance(item, pytest.Function) and item.get_closest_marker("sample") and not is_apart:
            grids.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, grid in grids.items():
        mark = grid[0].get_closest_marker("sample")
        assert mark is not None
        first = crc32(name.encode()) % len(grid)
        rotated = grid[first:] + grid[:first]
        needed = covering(
            [item.callspec.params for item in rotated], {"values": 1, "pairs": 2}[mark.args[0]]
        )
        for number, item in enumerate(rotated):
            if number not in needed:
                item.add_marker(pytest.mark.exhaustive)


def covering(cases: Sequence[Mapping[str, Any]], size: int) -> set[int]:
    """Return the places of cases that hold every combination of `size` values among all cases.

    Args:
        cases: the value of each parameter by its name; objects count as equal if they are the same.
        size: 1 for every value, 2 for every pair of values of two parameters.
    """
    values = [{(name, id(value)) for name, value in case.items()} for case in cases]
    combined = [set(combinations(sorted(of_case), size)) for of_case in values]
    missing, chosen = set().union(*combined), set()
    uses: Counter[tuple[str, int]] = Counter()

    def merit(place: int) -> tuple[int, int]:
        """How much is missing that the case has; of equal ones, rare values count more."""
        return len(combined[place] & missing), -sum(uses[value] for value in values[place])

    while missing:
        best = max(range(len(cases)), key=merit)
        chosen.add(best)
        missing -= combined[best]
        uses.update(values[best])
    return chosen
