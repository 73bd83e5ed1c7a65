"""The verdict of a report: what its rows show, in sentences for people."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentkv.settings import SCRIPTED
from agentkv.terminal import human_bytes
from agentkv_tasks.report.spread import WHY, Spread, repeats_are_equal
from agentkv_tasks.report.statistics import FEWEST, MARGIN, Paired
from agentkv_tasks.report.summary import Summary, percent
from agentkv_tasks.report.tables import LEVEL, p_value
from agentkv_tasks.results import FAILURES, mixed_versions

_FEW = 10
"""Episodes below which an interval says nothing (our choice)."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the rows show."""

    headline: str
    """The outcome of the whole report."""
    policies: tuple[tuple[str, str], ...]
    """Label of each policy, the baseline first, and what it solved with which bytes."""
    cautions: tuple[str, ...]
    """What the sentences depend on: missing and failed episodes, repeats."""


def verdict(
    summaries: Sequence[Summary], spreads: Sequence[Spread], *, planned: int | None = None
) -> Verdict:
    """Return the verdict on the policies of a report.

    Args:
        summaries: result of `summarize`.
        spreads: result of `spreads`.
        planned: episodes of the whole run; None if unknown.
    """
    rows = [row for summary in summaries for row in summary.rows]
    if all(row.score is None for row in rows):
        said = (
            f"No episode was scored: {_ended(row.status for row in rows)}. The report says what "
            "the policies did and cost, not what they solved."
        )
        return Verdict(said, (), _unfinished(summaries, planned))
    places = dict.fromkeys((each.suite, each.model) for each in summaries)
    return Verdict(
        " ".join(
            _headline([each for each in summaries if (each.suite, each.model) == place])
            for place in places
        ),
        tuple((summary.label, _sentence(summary, summaries)) for summary in summaries),
        (
            *_unfinished(summaries, planned),
            *_failed(summaries),
            *_repeated(summaries, spreads),
            *(f"Other code can give other figures: {line}." for line in mixed_versions(rows)),
        ),
    )


def _headline(peers: Sequence[Summary]) -> str:
    """Say which policies of one suite and model differ from the baseline."""
    baseline = next(each for each in peers if each.against is None)
    said = f"{baseline.label} solved {_solved(baseline)}."
    others = [each for each in peers if each.against is not None and each.against.num_units]
    if len(peers) == 1:
        return f"{said} There is no other policy to compare it with."
    shown = [each for each in others if (1.0 if each.p_value is None else each.p_value) <= LEVEL]
    groups = (
        ("solved more, and more than chance explains", [e for e in shown if _gain(e) > 0]),
        ("solved fewer, and chance does not explain it", [e for e in shown if _gain(e) < 0]),
        ("differed by no more than chance can explain", [e for e in others if e not in shown]),
    )
    parts = [f"{_listed([each.label for each in of])} {what}" for what, of in groups if of]
    return f"{said} Compared with it, {'; '.join(parts)}." if parts else said


def _gain(summary: Summary) -> int:
    assert summary.against is not None
    return summary.against.only_second - summary.against.only_first


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _solved(summary: Summary) -> str:
    found = summary.success
    return f"{found.num_successes} of {found.num_episodes} episode{'s' * (found.num_episodes != 1)}"


def _sentence(summary: Summary, summaries: Sequence[Summary]) -> str:
    said = f"solved {_solved(summary)}"
    baseline = next(
        each
        for each in summaries
        if (each.suite, each.model) == (summary.suite, summary.model) and each.against is None
    )
    if summary is baseline:
        low, high = summary.interval
        if summary.success.num_episodes >= _FEW:
            share = percent(summary.success.value)
            said += f" ({share}, 95 % interval {100 * low:.0f} to {100 * high:.0f})"
        return f"{said}{_bytes(summary)}."
    return f"{said}{_bytes(summary)}{_less(summary)}. {_difference(summary, baseline)}"


def _bytes(summary: Summary) -> str:
    if summary.all_bytes is None or summary.hot_bytes is None:
        return ""
    if not summary.cold_bytes:
        return f" with a cache of {human_bytes(summary.all_bytes)}"
    return (
        f" with a cache of {human_bytes(summary.all_bytes)} ({human_bytes(summary.hot_bytes)} hot, "
        f"{human_bytes(summary.cold_bytes)} cold)"
    )


def _less(summary: Summary) -> str:
    if summary.all_ratio is None or summary.hot_ratio is None:
        return ""
    said = f", {_times(summary.all_ratio)}"
    return said + (f"; its hot part is {_times(summary.hot_ratio)}" if summary.cold_bytes else "")


def _times(ratio: float) -> str:
    return f"{ratio:.1f} times smaller" if ratio >= 1 else f"{1 / ratio:.1f} times larger"


def _difference(summary: Summary, baseline: Summary) -> str:
    pairs: Paired | None = summary.against
    assert pairs is not None
    if not pairs.num_units:
        return f"It shares no episode with {baseline.label}, so that the two cannot be compared."
    is_whole = pairs.num_units == len(summary.rows) == len(baseline.rows)
    said = f"Against {baseline.label}"
    if not is_whole:
        said += f", on the {pairs.num_units} episodes that both ran,"
    if not pairs.only_first + pairs.only_second:
        said += " it solved exactly the same."
        return f"{said} {_as_good(pairs)}"
    said += f" it won {pairs.only_second} and lost {pairs.only_first}"
    p = 1.0 if summary.p_value is None else summary.p_value
    shown = f"p {p_value(p)}" if p < 0.001 else f"p = {p_value(p)}"
    if p <= LEVEL:
        return f"{said}, more than chance explains ({shown})."
    return f"{said}, which can be chance ({shown}). {_as_good(pairs)}"


def _as_good(pairs: Paired) -> str:
    points = f"{100 * MARGIN:.0f} points"
    if pairs.is_as_good:
        return f"It is shown to lose less than {points}."
    count = len(pairs.clusters)
    if count < FEWEST:
        few = f"{count} task{' is' if count == 1 else 's are'} too few"
        return f"{few} to show that it loses less than {points}, which takes {FEWEST}."
    return f"It is not shown to lose less than {points} either."


def _unfinished(summaries: Sequence[Summary], planned: int | None) -> tuple[str, ...]:
    done = sum(len(summary.rows) for summary in summaries)
    if planned is not None and done < planned:
        return (
            f"The run is not finished: {done} of {planned} episodes are done, and the same command "
            "plays the others.",
        )
    counts = {summary.label: len(summary.rows) for summary in summaries}
    if len({summary.suite for summary in summaries}) == 1 and len(set(counts.values())) > 1:
        shown = ", ".join(f"{label} {count}" for label, count in counts.items())
        return (
            f"The policies have different numbers of episodes ({shown}); comparisons cover the "
            "common ones.",
        )
    return ()


def _failed(summaries: Sequence[Summary]) -> tuple[str, ...]:
    statuses = [
        row.status for summary in summaries for row in summary.rows if row.status in FAILURES
    ]
    if not statuses:
        return ()
    return (
        f"{len(statuses)} episode{'s' * (len(statuses) != 1)} ended for a reason outside the agent "
        f"({_ended(statuses)}) and count{'s' * (len(statuses) == 1)} as not solved.",
    )


def _repeated(summaries: Sequence[Summary], spreads: Sequence[Spread]) -> tuple[str, ...]:
    if spreads and not any(each.num_changed for each in spreads):
        return ("Repeats of the run solved the same tasks.",)
    if spreads:
        shown = "; ".join(
            f"{each.label} {each.least} to {each.most}"
            if each.least < each.most
            else f"{each.label} {each.most} each time"
            for each in spreads
        )
        return (f"Repeats of the run differ; solved in each: {shown}.",)
    rows = [row for summary in summaries for row in summary.rows]
    scripted = all(summary.model in SCRIPTED for summary in summaries)
    if len(summaries) < 2 or scripted or repeats_are_equal(rows):
        return ()
    return (f"A repeat of this run may give other figures. {WHY}",)


def _ended(statuses: Iterable[str]) -> str:
    counts = Counter(statuses)
    return ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
