"""Grids of cases of which CI runs a sample."""

from collections.abc import Iterable
from typing import Any

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
