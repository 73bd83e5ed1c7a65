"""Rows and traces to pages a person reads: OUT/report.html and a page for each episode.

Static and self-contained: no scripts, no network, pictures by relative links. Everything that came
from a web page or a model is escaped.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from agentkv.build import SCRIPTED
from agentkv.trace import Trace, TraceError, read_trace
from agentkv_tasks.results import FAILURES, ResultsError, Row, read_rows
from agentkv_tasks.summary import BASELINE, Summary, human_bytes, percent, summarise

_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True, slots=True)
class _Cell:
    """One episode in the grid of tasks."""

    row: Row
    kind: str
    sign: str
    href: str


@dataclass(frozen=True, slots=True)
class _Line:
    """One task in the grid."""

    task_id: int
    goal: str
    category: str
    cells: tuple[tuple[_Cell, ...], ...]


def write_report(out: Path) -> Path:
    """Write the report of the results in folder `out`, and return its path.

    Raises:
        ResultsError: there are no results, or a line of them is broken.
    """
    rows = read_rows(out / "results.jsonl")
    if not rows:
        raise ResultsError(f"{out / 'results.jsonl'}: no finished episode yet")
    environment = _environment()
    traces: dict[str, Trace] = {}
    for row in rows:
        trace = _trace(out, row)
        if trace is not None:
            traces[row.key] = trace
            page = (out / row.trace).with_suffix(".html")
            page.write_text(_episode(environment, row, trace), encoding="utf-8")
    path = out / "report.html"
    path.write_text(_report(environment, rows, traces), encoding="utf-8")
    return path


def kib(count: float | None) -> str:
    """Bytes as KiB, the report's one unit for caches; a dash where there is no figure."""
    return "–" if count is None else f"{count / 1024:,.0f} KiB"


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = (_TEMPLATES / "style.css").read_text(encoding="utf-8")
    environment.globals.update(style=Markup(style), kib=kib, human=human_bytes, percent=percent)
    return environment


def _report(
    environment: jinja2.Environment, rows: Sequence[Row], traces: Mapping[str, Trace]
) -> str:
    summaries = summarise(rows)
    suites = sorted({row.suite for row in rows})
    models = sorted({row.model for row in rows})
    peaks = [summary.kv_peak_bytes for summary in summaries if summary.kv_peak_bytes]
    baseline = next((s.label for s in summaries if s.against is None), BASELINE)
    return environment.get_template("report.html").render(
        title=f"agentkv: {', '.join(suites)}",
        rows=rows,
        num_tasks=len({(row.suite, row.task_id) for row in rows}),
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        is_own_suite="vwa75" in suites,
        is_script=models[0] in SCRIPTED,
        models=models,
        facts=_facts(rows, models),
        settings=_settings(rows[0]),
        summaries=summaries,
        paired_summaries=[summary for summary in summaries if summary.against is not None],
        baseline=baseline,
        most_peak=max(peaks, default=0),
        categories=sorted({name for summary in summaries for name in summary.by_category}),
        failures=[row for row in rows if row.status in FAILURES],
        grid=_grid(rows, summaries, traces),
    )


def _facts(rows: Sequence[Row], models: Sequence[str]) -> list[tuple[str, str]]:
    """The header: what the figures depend on."""
    facts = [
        ("model", ", ".join(models)),
        ("world seed", _several(str(row.world_seed) for row in rows)),
        ("seeds", _several(str(row.seed) for row in rows)),
        ("device", _several(row.device for row in rows)),
        ("commit", _several(row.commit for row in rows)),
        ("agentkv", _several(row.versions.get("agentkv", "") for row in rows)),
        ("scoring", _several(str(row.settings.get("scoring", "")) for row in rows)),
        ("decoding", _several(str(row.settings.get("decoding", "")) for row in rows)),
    ]
    return [(name, value) for name, value in facts if value]


def _settings(row: Row) -> list[tuple[str, str]]:
    """What all rows share besides: settings, then versions."""
    shown = [
        (name.replace("_", " "), value if isinstance(value, str) else json.dumps(value))
        for name, value in row.settings.items()
        if value not in (None, {}, "")
    ]
    return [*shown, *row.versions.items()]


def _several(values: Iterable[str]) -> str:
    return ", ".join(sorted({value for value in values if value}))


def _grid(
    rows: Sequence[Row], summaries: Sequence[Summary], traces: Mapping[str, Trace]
) -> list[_Line]:
    goals = {row.task_id: _goal(row, traces.get(row.key)) for row in reversed(rows)}
    categories = {row.task_id: row.category for row in rows}
    lines = []
    for task_id in sorted(goals):
        cells = tuple(
            tuple(
                _cell(row, row.key in traces)
                for row in sorted(summary.rows, key=lambda row: row.seed)
                if row.task_id == task_id
            )
            for summary in summaries
        )
        lines.append(_Line(task_id, goals[task_id], categories[task_id], cells))
    return lines


def _cell(row: Row, has_trace: bool) -> _Cell:
    href = quote(str(Path(row.trace).with_suffix(".html"))) if has_trace else ""
    return _Cell(row, _kind(row), {"yes": "✓", "no": "✗", "broken": "!"}[_kind(row)], href)


def _kind(row: Row) -> str:
    if row.success:
        return "yes"
    return "broken" if row.status in FAILURES else "no"


def _goal(row: Row, trace: Trace | None) -> str:
    return str(trace.head.get("goal", "")) if trace is not None else f"task {row.task_id}"


def _episode(environment: jinja2.Environment, row: Row, trace: Trace) -> str:
    facts = [
        ("policy", row.policy),
        ("parameters", json.dumps(dict(row.policy_parameters))),
        ("model", row.model),
        ("seed", str(row.seed)),
        ("task", f"{row.task_id} of {row.suite}, world {row.world_seed}"),
        ("steps", str(row.steps)),
        ("time", f"{row.seconds:.1f} s"),
        ("cache peak", kib(row.kv_peak_bytes)),
        ("cache mean", kib(row.kv_mean_bytes)),
        ("RSS", human_bytes(row.rss_peak_bytes)),
        ("replay", f"agentkv replay DIR {Path(row.trace).stem}"),
    ]
    return environment.get_template("episode.html").render(
        row=row,
        kind=_kind(row),
        goal=_goal(row, trace),
        facts=facts,
        steps=trace.steps,
        ended=trace.end is not None,
        pictures=quote(Path(row.trace).stem),
    )


def _trace(out: Path, row: Row) -> Trace | None:
    path = out / row.trace
    if not row.trace or not path.resolve().is_relative_to(out.resolve()):
        return None  # a results file from elsewhere must not make us write beside `out`
    try:
        return read_trace(path)
    except (OSError, TraceError):
        return None  # the row counts without its trace
