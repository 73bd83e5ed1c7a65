"""Grids of cases of which CI runs a sample."""

from collections.abc import Iterable
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

    The sample of `sample("pairs")` holds every value of each parameter together with every value of
    each other one; that of `sample("values")` holds every value once. Tests begin to choose at
    different cases, so that tests with the same parameters have different samples.
    """
    grids: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("sample"):
            grids.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, grid in grids.items():
        mark = grid[0].get_closest_marker("sample")
        assert mark is not None
        size = {"values": 1, "pairs": 2}[mark.args[0]]
        first = crc32(name.encode()) % len(grid)
        cases = [
            (item, set(combinations(sorted(values_of(item)), size)))
            for item in grid[first:] + grid[:first]
        ]
        missing = set().union(*(covered for _, covered in cases))
        while cases:
            case = max(cases, key=lambda case: len(case[1] & missing))
            cases.remove(case)
            if not case[1] & missing:
                case[0].add_marker(pytest.mark.exhaustive)
            missing -= case[1]


def values_of(item: pytest.Function) -> set[tuple[str, int]]:
    """Return the name of each parameter of a case with the identity of its value."""
    return {(name, id(value)) for name, value in item.callspec.params.items()}
