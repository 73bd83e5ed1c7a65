"""A report begins with what its rows show, in words."""

from collections.abc import Callable

from agentkv_tasks.report.spread import spreads
from agentkv_tasks.report.summary import summarize
from agentkv_tasks.report.verdict import Verdict, verdict
from agentkv_tasks.results import Row

MakeRow = Callable[..., Row]
MIB = 2**20


def verdict_on(rows: list[Row], *, planned: int | None = None) -> Verdict:
    summaries = summarize(rows)
    return verdict(summaries, spreads(summaries), planned=planned)


def run_of(row: MakeRow, policies: dict[str, int], *, tasks: int = 75) -> list[Row]:
    """Rows of a run in which each policy fails the first tasks."""
    costs = {
        "full": {"kv_peak_bytes": 9 * MIB},
        "lookback": {"kv_peak_bytes": 3 * MIB, "kv_cold_bytes": 3 * MIB},
    }
    return [
        row(policy=policy, task_id=task, success=task >= failed, **costs.get(policy, {}))
        for task in range(tasks)
        for policy, failed in policies.items()
    ]


def test_policies_that_differ_by_more_than_chance_are_told_from_the_others(row: MakeRow) -> None:
    found = verdict_on(run_of(row, {"full": 10, "lookback": 11, "window": 40, "oracle": 0}))
    assert found.headline == (
        "full solved 65 of 75 episodes. Compared with it, oracle solved more, and more than chance "
        "explains; window solved fewer, and chance does not explain it; lookback differed by no "
        "more than chance can explain."
    )
    sentences = dict(found.policies)
    assert sentences["full"].startswith("solved 65 of 75 episodes (86.7 %, 95 % interval ")
    assert sentences["lookback"] == (
        "solved 64 of 75 episodes with a cache of 6.0 MiB (3.0 MiB hot, 3.0 MiB cold), 1.5 times "
        "smaller; its hot part is 3.0 times smaller. Against full it won 0 and lost 1, which can "
        "be chance (p = 1.000). It is shown to lose less than 5 points."
    )
    assert sentences["window"].endswith(
        "Against full it won 0 and lost 30, more than chance explains (p < 0.001)."
    )


def test_few_equal_tasks_show_little(row: MakeRow) -> None:
    sentence = dict(verdict_on(run_of(row, {"full": 1, "window": 1}, tasks=3)).policies)["window"]
    assert sentence.endswith(
        "Against full it solved exactly the same. 3 tasks are too few to show that it loses less "
        "than 5 points, which takes 72."
    )


def test_one_policy_is_compared_with_nothing(row: MakeRow) -> None:
    found = verdict_on(run_of(row, {"full": 1}, tasks=3))
    assert found.headline == (
        "full solved 2 of 3 episodes. There is no other policy to compare it with."
    )
    assert found.cautions == ()


def test_episodes_without_a_score_are_not_called_unsolved(row: MakeRow) -> None:
    rows = [
        row(task_id=task, success=False, score=None, status=status)
        for task, status in enumerate(("unjudged", "unjudged", "crash"))
    ]
    found = verdict_on(rows)
    assert found.headline.startswith("No episode was scored: 1 crash, 2 unjudged.")
    assert found.policies == ()


def test_failures_of_the_harness_and_unfinished_runs_are_said(row: MakeRow) -> None:
    rows = run_of(row, {"full": 0, "window": 0}, tasks=4)
    rows[-1] = row(policy="window", task_id=3, success=False, score=0.0, status="timeout")
    assert verdict_on(rows, planned=8).cautions[0] == (
        "1 episode ended for a reason outside the agent (1 timeout) and counts as not solved."
    )
    assert verdict_on(rows, planned=10).cautions[0] == (
        "The run is not finished: 8 of 10 episodes are done, and the same command plays the others."
    )
    unequal = verdict_on(rows[:-1])
    assert unequal.cautions[0].startswith("The policies have different numbers of episodes (full 4")
    assert ", on the 3 episodes that both ran, it" in dict(unequal.policies)["window"]


def test_policies_without_a_common_episode_are_not_compared(row: MakeRow) -> None:
    found = verdict_on([row(task_id=0), row(task_id=1, policy="window")])
    assert "shares no episode with full" in dict(found.policies)["window"]
    assert found.headline == "full solved 1 of 1 episode."
