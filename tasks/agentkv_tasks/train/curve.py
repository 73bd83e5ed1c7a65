"""The page of a training: its losses and its exact replies over the steps."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agentkv.files import write_atomic
from agentkv_tasks.report.html import template_environment
from agentkv_tasks.report.plot import (
    Axis,
    Figure,
    Plot,
    Series,
    from_zero,
    line_plot,
    percentages,
    spanning,
)

PAGE = "curve.html"
_LOSSES = {"loss": "learned", "held_loss": "held-out replies", "text_loss": "held-out text"}


def write_curve(log: Path, *, title: str) -> Path:
    """Draw the log of a training on a page beside it, and return the page's path.

    Raises:
        WriteError: the page could not be written.
    """
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    last = lines[-1]
    facts = [("step", str(last["step"])), ("tokens", f"{last['tokens']:,}")]
    plots, caption = [_losses(lines)], "Losses in nats per id."
    if last["held_loss"] is not None:
        facts += [
            ("loss on held-out replies", f"{last['held_loss']:.3f}"),
            ("exact replies", f"{100 * last['held_exact']:.0f} % of {last['held_replies']}"),
        ]
        plots.append(_exact(lines))
        caption = "Losses in nats per id, and the share of held-out replies that are exact."
    text = (
        template_environment()
        .get_template("bench.html")
        .render(
            title=title,
            num_rows=len(lines),
            source=log.name,
            written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
            command="",
            facts=facts,
            settings=[],
            figures=[Figure(caption, tuple(plots))],
            tables=[],
        )
    )
    page = log.with_name(PAGE)
    write_atomic(page, text)
    return page


def _losses(lines: Sequence[Mapping[str, Any]]) -> Plot:
    drawn = [_series(lines, name, label, n) for n, (name, label) in enumerate(_LOSSES.items())]
    series = [each for each in drawn if each.points]
    most = max(loss for each in series for _, loss in each.points)
    return line_plot("loss", series, x=_steps(lines), y=from_zero(most), x_title="step")


def _exact(lines: Sequence[Mapping[str, Any]]) -> Plot:
    series = [_series(lines, "held_exact", "held-out replies", 1)]
    return line_plot("exact replies, %", series, x=_steps(lines), y=percentages(), x_title="step")


def _series(lines: Sequence[Mapping[str, Any]], name: str, label: str, style: int) -> Series:
    points = tuple((line["step"], line[name]) for line in lines if line[name] is not None)
    return Series(label, points, style, f"{points[-1][1]:.3f}" if points else "")


def _steps(lines: Sequence[Mapping[str, Any]]) -> Axis:
    return spanning(0.0, max(1, lines[-1]["step"]))
