"""Samples of `make soak`: whatever is typed or given as a file is read, or refused in one line."""

from tests.soak import actions


def test_hostile_actions_are_read_or_refused() -> None:
    for name, text in list(actions.cases())[::12]:
        verdict = actions.check(name, text)
        assert verdict.outcome == "held", verdict
