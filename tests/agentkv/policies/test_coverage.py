"""Every named policy takes part in the tests that all policies share."""

import pytest

from agentkv.policies.registry import NAMED
from tests.agentkv.cache.policies_under_test import CASES
from tests.agentkv.reference.test_reference import CASES as REFERENCES

PUBLISHED = {name: case for name, case in CASES.items() if case.is_published}


def test_the_cache_suite_runs_every_named_policy():
    assert set(PUBLISHED) == set(NAMED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_case_of_the_cache_suite_makes_the_policy_it_names(name):
    assert PUBLISHED[name].make().name == name


def test_the_reference_suite_runs_every_named_policy():
    assert set(REFERENCES) == set(NAMED)
