"""The verdict of `tests.soak.endurance` on samples of a run."""

import os
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.soak.endurance import LEAST_SAMPLES, Sample, medians, memory, verdict


def samples(
    memory: Callable[[int], float] = lambda episode: 100.0,
    ports: Callable[[int], int] = lambda episode: 3,
    last: int = 400,
) -> list[Sample]:
    return [
        Sample(episode, episode * 2.0, {"worker": memory(episode)}, {"ports": ports(episode)})
        for episode in range(20, last + 1, 20)
    ]


def test_memory_that_grows_only_at_the_beginning_is_flat() -> None:
    is_flat, line = verdict(samples(memory=lambda episode: min(episode, 100)))
    assert is_flat and line.startswith("flat from episode 120 to 400")


def test_memory_that_goes_on_growing_is_named() -> None:
    is_flat, line = verdict(samples(memory=lambda episode: 100 + episode / 5))
    assert not is_flat and line.endswith("memory of worker from 132 to 172 MiB")


@pytest.mark.parametrize(("every", "is_leak"), [(20, True), (1000, False)])
def test_a_count_that_grows_by_more_than_one_is_a_leak(every: int, is_leak: bool) -> None:
    is_flat, line = verdict(samples(ports=lambda episode: episode // every))
    assert is_flat is not is_leak and ("ports from" in line) is is_leak


def test_one_large_sample_changes_nothing() -> None:
    found = samples()
    found[-1] = replace(found[-1], rss_mib={"worker": 900.0}, counts={"ports": 40})
    assert verdict(found)[0]


def test_a_kind_of_process_that_appears_later_counts() -> None:
    found = samples()
    found[-6:] = [replace(each, rss_mib={**each.rss_mib, "other": 50.0}) for each in found[-6:]]
    is_flat, line = verdict(found)
    assert not is_flat and "memory of other from 0 to 50 MiB" in line


def test_a_sample_has_the_median_of_what_each_kind_of_process_held() -> None:
    held = [{"runner": 10.0, "browser": 90.0}, {"runner": 30.0}, {"runner": 11.0, "browser": 95.0}]
    assert medians(held) == {"browser": 92.5, "runner": 11.0}
    assert 1 < memory(os.getpid())["runner"] < 100_000  # MiB


def test_few_samples_give_no_verdict() -> None:
    is_flat, line = verdict(samples(last=200))
    assert not is_flat and line.startswith("no verdict: 5 samples") and LEAST_SAMPLES == 6
