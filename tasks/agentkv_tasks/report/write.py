"""Write the HTML report of a run: OUT/report.html and a page for each episode.

The pages are static and self-contained, with screenshots by relative links.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import jinja2

from agentkv.files import make_folder, write_atomic
from agentkv.settings import SCRIPTED
from agentkv.terminal import human_bytes
from agentkv.trace import Trace
from agentkv_tasks.report.curves import (
    all_bytes,
    byte_plots,
    curves,
    seconds,
    seconds_plot,
    success_over_bytes,
    success_plot,
)
from agentkv_tasks.report.episode import episode_page
from agentkv_tasks.report.forgotten import span_name, sureness
from agentkv_tasks.report.grid import grid
from agentkv_tasks.report.html import kib, template_environment
from agentkv_tasks.report.parameters import policy_in_words, settings_in_words, shared_settings
from agentkv_tasks.report.parts import part_times
from agentkv_tasks.report.plot import Plot
from agentkv_tasks.report.pool import pooled, read_runs
from agentkv_tasks.report.spread import WHY, spreads
from agentkv_tasks.report.statistics import FEWEST, MARGIN
from agentkv_tasks.report.summary import (
    Summary,
    baseline_name,
    percent,
    stored_baseline,
    summarize,
)
from agentkv_tasks.report.tables import (
    BYTES,
    EXCLUDES_ZERO,
    WHEN_INT4,
    distance_bands,
    has_cold_tier,
    length_bands,
    looks_of,
    p_value,
    points,
    policy_lines,
    references,
    seem_to_disagree,
    tokens_of,
)
from agentkv_tasks.report.verdict import verdict
from agentkv_tasks.results import FAILURES, Row, Unit, trace_of, unreset_warning


@dataclass(frozen=True, slots=True)
class _LoadedRun:
    """Rows of one run or several, with traces and links by the key of their row."""

    rows: tuple[Row, ...]
    traces: Mapping[str, Trace]
    hrefs: Mapping[str, str]
    """Link from the report to an episode's page."""
    source: str


def write_report(
    *folders: Path,
    out: Path | None = None,
    against: Sequence[str] | None = None,
    planned: int | None = None,
) -> Path:
    """Write the report of the results in `folders`, and return its path.

    The report of one folder is written to that folder. Several folders are pooled: the pooled
    report is written to `out`, by default the parent of the first folder. Each folder also gets its
    own report, to which the pages of its episodes link.

    Args:
        planned: episodes of the whole run in the only folder; None if unknown.

    Raises:
        ResultsError: there are no results, a line is broken, the runs cannot be pooled, or no row
            belongs to a policy in `against` (see `policy_lines`).
        WriteError: a page could not be written; `agentkv report` writes all pages again.
    """
    environment = _environment()
    runs = {folder: _load(environment, folder, rows) for folder, rows in read_runs(folders).items()}
    several = len(runs) > 1
    pages = {
        folder: _report(environment, run, None if several else against, planned)
        for folder, run in runs.items()
    }
    if several:
        place = folders[0].resolve().parent if out is None else out
        page = _report(environment, _pooled(runs, place), against)
        make_folder(place)
        pages[place] = page
    for folder, page in pages.items():
        write_atomic(folder / "report.html", page)
    return next(reversed(pages)) / "report.html"


def _load(environment: jinja2.Environment, folder: Path, rows: Sequence[Row]) -> _LoadedRun:
    """Read the traces of a folder and write the pages of its episodes."""
    found = [(row, trace) for row in rows if (trace := trace_of(row, folder)) is not None]
    traces = {row.key: trace for row, trace in found}
    hrefs = {row.key: quote(str(Path(row.trace).with_suffix(".html"))) for row, _ in found}
    of_unit: dict[Unit, list[tuple[Row, Trace]]] = {}
    for row, trace in found:
        of_unit.setdefault(row.unit, []).append((row, trace))
    for row, trace in found:
        others = [each for each in of_unit[row.unit] if each[0] is not row]
        page = episode_page(environment, folder, row, trace, others)
        write_atomic(folder / Path(row.trace).with_suffix(".html"), page)
    return _LoadedRun(tuple(rows), traces, hrefs, "results.jsonl")


def _pooled(runs: Mapping[Path, _LoadedRun], place: Path) -> _LoadedRun:
    """Return one run with the rows of all, as `pooled` numbers them."""
    rows: list[Row] = []
    traces: dict[str, Trace] = {}
    hrefs: dict[str, str] = {}
    for folder, of_folder in pooled({folder: run.rows for folder, run in runs.items()}).items():
        run = runs[folder]
        prefix = quote(os.path.relpath(folder.resolve(), place.resolve()))
        for row, numbered in zip(run.rows, of_folder, strict=True):
            rows.append(numbered)
            if row.key in run.traces:
                traces[numbered.key] = run.traces[row.key]
                hrefs[numbered.key] = f"{prefix}/{run.hrefs[row.key]}"
    return _LoadedRun(tuple(rows), traces, hrefs, ", ".join(folder.name for folder in runs))


def _environment() -> jinja2.Environment:
    environment = template_environment()
    environment.globals.update(
        kib=kib,
        human=human_bytes,
        seconds=_seconds,
        policy_in_words=policy_in_words,
        fewest=FEWEST,
        when_int4=WHEN_INT4,
        bytes=BYTES,
        why_repeats=WHY,
        percent=percent,
        p_value=p_value,
        points=points,
        tokens_of=tokens_of,
        margin=MARGIN,
        looks_of=looks_of,
        span_name=span_name,
        sureness=sureness,
    )
    return environment


def _report(
    environment: jinja2.Environment,
    run: _LoadedRun,
    against: Sequence[str] | None,
    planned: int | None = None,
) -> str:
    rows = run.rows
    summaries = summarize(rows)
    lines = policy_lines(summaries, against)
    suites = sorted({row.suite for row in rows})
    models = sorted({row.model for row in rows})
    repeats = spreads(summaries)
    return environment.get_template("report.html").render(
        title=f"agentkv: {', '.join(suites)}",
        rows=rows,
        num_tasks=len({(row.suite, row.world_seed, row.task_id) for row in rows}),
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        source=run.source,
        is_own_suite="vwa75" in suites,
        is_script=models[0] in SCRIPTED,
        warning=unreset_warning(rows),
        models=models,
        facts=_facts(rows, models),
        settings=settings_in_words(rows),
        recorded=json.dumps(
            {
                "settings": shared_settings(rows),
                "policies": {
                    each.label: dict(each.rows[0].policy_parameters) for each in summaries
                },
            },
            indent=2,
            ensure_ascii=False,
        ),
        lines=lines,
        references=references(lines),
        distances=distance_bands(lines),
        lengths=length_bands(lines),
        cold=has_cold_tier(lines),
        success_plot=success_plot(lines),
        baseline=baseline_name(summaries),
        stored=stored_baseline(summaries),
        several_suites=len(suites) > 1,
        most_bytes=max((each.all_bytes or 0 for each in summaries), default=0),
        verdict=verdict(summaries, repeats, planned=planned),
        spreads=repeats,
        disagree=EXCLUDES_ZERO if seem_to_disagree(lines) else "",
        trade=success_over_bytes(summaries),
        plots=_bytes_over_steps(summaries, run.traces),
        timed=seconds_plot(curves(summaries, run.traces, seconds)),
        parts=part_times(rows),
        parts_by_policy={
            summary.label: {part.name: part for part in part_times(summary.rows)}
            for summary in summaries
        },
        categories=sorted({name for summary in summaries for name in summary.by_category}),
        failures=[row for row in rows if row.status in FAILURES],
        tasks=[
            (suite, of_suite, grid(of_suite, run.traces, run.hrefs))
            for suite in suites
            for of_suite in [[summary for summary in summaries if summary.suite == suite]]
        ],
    )


def _facts(rows: Sequence[Row], models: Sequence[str]) -> list[tuple[str, str]]:
    """Return the facts in the header that the figures depend on."""
    facts = [
        ("suite", _distinct(row.suite for row in rows)),
        ("model", ", ".join(models)),
        ("world seed", _distinct(str(row.world_seed) for row in rows)),
        ("seeds", _distinct(str(row.seed) for row in rows)),
        ("device", _distinct(row.device for row in rows)),
        ("commit", _distinct(row.commit for row in rows)),
        ("agentkv", _distinct(row.versions.get("agentkv", "") for row in rows)),
        ("scoring", _distinct(str(row.settings.get("scoring", "")) for row in rows)),
        ("decoding", _distinct(str(row.settings.get("decoding", "")) for row in rows)),
    ]
    return [(name, value) for name, value in facts if value]


def _bytes_over_steps(summaries: Sequence[Summary], traces: Mapping[str, Trace]) -> list[Plot]:
    """Plot hot bytes over the steps of episodes, and all bytes where they differ."""
    hot, whole = curves(summaries, traces), curves(summaries, traces, all_bytes)
    found = byte_plots("hot bytes", hot)
    return found if hot == whole else [*found, *byte_plots("hot and cold bytes", whole)[:1]]


def _seconds(count: float | None) -> str:
    return "–" if count is None else f"{count:.2f}"


def _distinct(values: Iterable[str]) -> str:
    return ", ".join(sorted({value for value in values if value}))
