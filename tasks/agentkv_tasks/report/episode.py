"""The page of an episode in the report."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote

import jinja2
from PIL import Image

from agentkv.terminal import human_bytes
from agentkv.trace import Step, Trace
from agentkv_tasks.report.forgotten import Forgotten, Memory, Piece, reply_tokens, span_name
from agentkv_tasks.report.grid import goal_of, outcome_of
from agentkv_tasks.report.html import kib
from agentkv_tasks.report.parameters import parameters_in_words
from agentkv_tasks.report.parting import Parting, find_parting
from agentkv_tasks.report.plot import Figure, Series, counting, from_zero, line_plot
from agentkv_tasks.results import Row

_MOST_BOXES = 400
"""Boxes drawn over a screenshot, at most (our choice)."""


@dataclass(frozen=True, slots=True)
class _StepView:
    """One step as the template shows it."""

    step: Step
    looks: str
    page: tuple[Piece, ...]
    tokens: tuple[tuple[str, float | None], ...]
    forgotten: tuple[Forgotten, ...]
    num_evicted: int
    size: tuple[int, int] | None
    """Width and height of the screenshot in pixels; None if it cannot be read."""
    boxes: tuple[tuple[int, int, int, int, int], ...]
    acted_on: int | None
    """Number of the element that the action is on."""


@dataclass(frozen=True, slots=True)
class _Other:
    """Another episode of the same task and seed."""

    row: Row
    href: str
    parting: Parting


def episode_page(
    environment: jinja2.Environment,
    folder: Path,
    row: Row,
    trace: Trace,
    others: Sequence[tuple[Row, Trace]] = (),
) -> str:
    """Return the page of an episode.

    Args:
        folder: of the results; screenshots are next to the trace.
        others: episodes of the same task and seed under other policies.
    """
    budget, others_of = parameters_in_words(row.policy_parameters)
    facts = [
        ("policy", row.policy),
        ("budget", budget),
        ("parameters", others_of),
        ("model", row.model),
        ("seed", str(row.seed)),
        ("task", f"{row.task_id} of {row.suite}, world {row.world_seed}"),
        ("steps", str(row.steps)),
        ("time", f"{row.seconds:.1f} s"),
        ("hot bytes, peak", kib(row.kv_peak_bytes)),
        ("hot bytes, mean", kib(row.kv_mean_bytes)),
        ("cold tier", kib(row.kv_cold_bytes)),
        ("index of the cold tier", kib(row.kv_index_bytes)),
        ("hot and cold bytes", kib(row.kv_all_bytes)),
        ("looks back", "-" if row.looks is None else f"{row.looks} of {row.tokens_out} tokens"),
        ("looks that changed the likeliest token", _dashed(row.changing_looks)),
        ("bytes that looks read", human_bytes(row.look_bytes)),
        ("positions renumbered", _dashed(row.renumberings)),
        ("RSS", human_bytes(row.rss_peak_bytes)),
        ("replay", f"agentkv replay DIR {Path(row.trace).stem}"),
    ]
    playwright = Path(row.trace).with_suffix(".zip")
    if (folder / playwright).exists():
        facts.append(("Playwright's trace", f"playwright show-trace DIR/{playwright}"))
    memory = Memory(trace.steps)
    pictures = folder / Path(row.trace).with_suffix("")
    looks = looks_by_step(trace.steps)
    return environment.get_template("episode.html").render(
        row=row,
        kind=outcome_of(row),
        goal=goal_of(row, trace),
        facts=facts,
        steps=[
            _view(memory, number, step, looks[number], pictures)
            for number, step in enumerate(trace.steps)
        ],
        figure=_figure(memory, trace.steps),
        others=[
            _Other(
                other,
                quote(Path(other.trace).with_suffix(".html").name),
                find_parting(trace.steps, of_other.steps),
            )
            for other, of_other in others
        ],
        ended=trace.end is not None,
        pictures=quote(Path(row.trace).stem),
    )


def _view(memory: Memory, number: int, step: Step, looks: str, pictures: Path) -> _StepView:
    size = _size(pictures, step.screenshot)
    return _StepView(
        step=step,
        looks=looks,
        page=memory.page(number, after=number) if step.piece_ends else (),
        tokens=reply_tokens(step),
        forgotten=memory.forgotten(number),
        num_evicted=memory.num_evicted(number),
        size=size,
        boxes=() if size is None else step.boxes[:_MOST_BOXES],
        acted_on=step.element_id,
    )


def _size(folder: Path, name: str) -> tuple[int, int] | None:
    """Return the size of a screenshot, of which only the head is read."""
    if not name or Path(name).name != name:
        return None
    try:
        with Image.open(folder / name, formats=("JPEG", "PNG")) as image:
            return image.size
    except (OSError, ValueError, Image.DecompressionBombError):
        return None


def _figure(memory: Memory, steps: Sequence[Step]) -> Figure | None:
    """Plot the bytes after each step and the entries evicted in it; None without a cache."""
    if len(steps) < 2 or not any(step.seen_tokens for step in steps):
        return None
    sizes = [(number, step.cache_bytes / 1024) for number, step in enumerate(steps, start=1)]
    x = counting(len(steps))
    last = f"{kib(steps[-1].cache_bytes)} after the last step"
    plots = [
        line_plot(
            "cache, KiB",
            [Series("cache", tuple(sizes), 0, last)],
            x=x,
            y=from_zero(max(size for _, size in sizes)),
            x_title="step",
        )
    ]
    evicted = [(number + 1, float(memory.num_evicted(number))) for number in range(len(steps))]
    most = max(count for _, count in evicted)
    if most > 0:
        series = [Series("evicted", tuple(evicted), 0, f"{evicted[-1][1]:,.0f} in the last step")]
        plots.append(line_plot("entries evicted", series, x=x, y=from_zero(most), x_title="step"))
    return Figure("The cache after each step, and the entries evicted in it.", tuple(plots))


def _dashed(count: int | None) -> str:
    return "-" if count is None else str(count)


def looks_by_step(steps: Sequence[Step]) -> list[str]:
    """Say for each step which tokens looked back and what they fetched; empty for none."""
    texts: list[str] = []
    for before, step in pairwise([None, *steps]):
        assert step is not None
        looks, changing = step.num_looks, step.num_changing_looks
        fetched = Counter(step.fetched)
        if before is not None:
            looks, changing = looks - before.num_looks, changing - before.num_changing_looks
            fetched -= Counter(before.fetched)
        if not looks:
            texts.append("")
            continue
        shown = [
            f"{count:,} of {span_name(label) or 'other tokens'}"
            for label, count in fetched.most_common()
        ]
        others = f" and {len(shown) - 5} other spans" if len(shown) > 5 else ""
        texts.append(
            f"{looks} token{'s' * (looks != 1)} looked back, {changing} of them changed the "
            f"likeliest token; entries fetched over all layers: {', '.join(shown[:5])}{others}"
        )
    return texts
