"""The queue of a run's episodes."""

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentkv.settings import PolicySettings
from agentkv_tasks.results import Attempt
from agentkv_tasks.run.job_queue import JobQueue
from agentkv_tasks.run.plan import Job

FAILED = Attempt(status="crash", error="gone", steps=1, seconds=1.0)


def job(key: str) -> Job:
    task: Any = None  # the queue does not read it
    return Job(task, PolicySettings(name="full"), {}, 0, key, key)


def test_jobs_that_need_the_same_site_are_taken_one_after_another() -> None:
    needs = {"a1": frozenset("a"), "a2": frozenset("a"), "b": frozenset("b"), "ab": frozenset("ab")}
    jobs = {key: job(key) for key in ("a1", "a2", "ab", "b", "free")}
    queue = JobQueue(jobs.values(), needs=needs)

    def taken() -> list[str]:
        return [each.key for each in iter(queue.take, None)]

    assert taken() == ["a1", "b", "free"] and not queue.is_over
    queue.end(jobs["b"])
    assert taken() == []
    queue.add(jobs["a1"], (FAILED,))  # it is played again, behind the others
    assert taken() == ["a2"]
    queue.end(jobs["a2"])
    assert taken() == ["ab"]
    queue.end(jobs["ab"])
    assert taken() == ["a1"] and queue.is_over
    assert queue.attempts_at(jobs["a1"]) == (FAILED,)
    queue.end(jobs["a1"])
    assert queue.attempts_at(jobs["a1"]) == ()


@given(
    st.lists(st.frozensets(st.sampled_from("abc")), max_size=8),
    st.lists(st.integers(0, 7), max_size=40),
)
def test_every_job_is_taken_once_and_no_two_hold_the_same(
    held: list[frozenset[str]], ends: list[int]
) -> None:
    needs: Mapping[str, frozenset[str]] = {str(i): each for i, each in enumerate(held)}
    queue = JobQueue(map(job, needs), needs=needs)
    playing: list[Job] = []
    played: list[str] = []
    for i in [*ends, *[0] * len(held)]:
        while (new := queue.take()) is not None:
            assert all(needs[new.key].isdisjoint(needs[other.key]) for other in playing)
            playing.append(new)
            played.append(new.key)
        if playing:
            queue.end(playing.pop(i % len(playing)))
    assert sorted(played) == sorted(needs) and queue.is_over
