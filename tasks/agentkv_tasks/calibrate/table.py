"""The table of a calibration; it fits 80 columns."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from agentkv.policies.recall import Unsure
from agentkv_tasks.report.summary import human_bytes

if TYPE_CHECKING:
    from agentkv_tasks.calibrate.calibrate import Outcome

_CAPTION = (
    "Tokens that were written after the first eviction, {recordings}. looks: share of them that "
    "look back. nll: mean negative log-likelihood in nats. top-1: share that is the likeliest "
    "token. peak: largest cache without the cold tier. *: chosen, the lowest nll."
)


def table(outcomes: Sequence["Outcome"], chosen: "Outcome", *, num_recordings: int) -> Table:
    """Return a line for each outcome."""
    recordings = "of one recording" if num_recordings == 1 else f"of {num_recordings} recordings"
    found = Table(
        box=None,
        padding=(0, 1, 0, 0),
        header_style="bold",
        caption=_CAPTION.format(recordings=recordings),
        caption_justify="left",
    )
    found.add_column("policy", overflow="fold", max_width=24)
    for name in ("threshold", "looks", "nll", "top-1", "peak", "cold"):
        found.add_column(name, justify="right", no_wrap=True)
    for outcome in outcomes:
        when = None if outcome.recall is None else outcome.recall.when
        found.add_row(
            Text(f"{outcome.label}{' *' * (outcome is chosen)}"),
            f"{when.threshold:.5f}" if isinstance(when, Unsure) else "-",
            "-" if outcome.looks is None else f"{100 * outcome.looks:.1f} %",
            f"{outcome.nll:.4f}",
            f"{100 * outcome.agreement:.2f} %",
            human_bytes(outcome.peak_bytes),
            human_bytes(outcome.cold_bytes) if outcome.cold_bytes else "-",
        )
    return found
