"""A stopwatch splits its time into exclusive parts."""

import time

import pytest

from agentkv_env.timing import REST, Stopwatch, timed


class Clock:
    """A clock that tests advance."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_an_inner_part_interrupts_the_outer_one(clock: Clock) -> None:
    stopwatch = Stopwatch()
    clock.now += 1
    with stopwatch.part("browser"):
        clock.now += 2
        with stopwatch.part("walk"):
            clock.now += 4
        clock.now += 8
    clock.now += 16
    assert stopwatch.read() == {REST: 17, "browser": 10, "walk": 4}


def test_a_part_ends_when_its_block_raises(clock: Clock) -> None:
    stopwatch = Stopwatch()
    with pytest.raises(KeyError), stopwatch.part("walk"):
        clock.now += 1
        raise KeyError
    clock.now += 2
    assert stopwatch.read() == {REST: 2, "walk": 1}


def test_a_switch_charges_the_time_from_then_on(clock: Clock) -> None:
    stopwatch = Stopwatch()
    clock.now += 1
    stopwatch.switch("reading")
    clock.now += 2
    with stopwatch.part("grammar"):
        clock.now += 4
    clock.now += 8
    assert stopwatch.read() == {REST: 1, "reading": 10, "grammar": 4}


def test_work_beside_another_process_is_charged_what_it_adds(clock: Clock) -> None:
    stopwatch = Stopwatch()
    clock.now += 1
    asked = stopwatch.read()
    with stopwatch.part("screenshots"):
        clock.now += 6
    clock.now += 2
    stopwatch.attribute(asked, {"reading": 3.0, "decoding": 1.0})
    assert stopwatch.read() == {REST: 2, "screenshots": 3, "reading": 3, "decoding": 1}


def test_no_measurement_of_another_process_exceeds_the_time_that_passed(clock: Clock) -> None:
    stopwatch = Stopwatch()
    asked = stopwatch.read()
    clock.now += 2
    stopwatch.attribute(asked, {"reading": 3.0, "decoding": 1.0})
    assert stopwatch.read() == {REST: 0, "reading": 1.5, "decoding": 0.5}


def test_without_a_stopwatch_nothing_is_timed() -> None:
    with timed(None, "walk"):
        pass
