"""The table of a calibration; it fits 80 columns."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from agentkv.terminal import human_bytes

if TYPE_CHECKING:
    from agentkv_tasks.calibrate.trial import Outcome

_CAPTION = (
    "Tokens that were written after the first eviction, {recordings}. {meaning}nll: mean negative "
    "log-likelihood in nats. top-1: share that is the likeliest token. peak: largest cache without "
    "the cold tier. *: chosen, the lowest nll."
)


def table(
    outcomes: Sequence["Outcome"],
    chosen: "Outcome",
    *,
    alarms: tuple[str, str] | None,
    num_recordings: int,
) -> Table:
    """Return a line for each outcome.

    Args:
        alarms: name and meaning of the share of alarms; None: there are none.
    """
    recordings = "of one recording" if num_recordings == 1 else f"of {num_recordings} recordings"
    meaning = "" if alarms is None else f"{alarms[0]}: {alarms[1]}. "
    found = Table(
        box=None,
        padding=(0, 1, 0, 0),
        header_style="bold",
        caption=_CAPTION.format(recordings=recordings, meaning=meaning),
        caption_justify="left",
    )
    found.add_column("policy", overflow="fold", max_width=24)
    fitted_names = () if alarms is None else ("threshold", alarms[0])
    for name in (*fitted_names, "nll", "top-1", "peak", "cold"):
        found.add_column(name, justify="right", no_wrap=True)
    for outcome in outcomes:
        fitted = (
            "-" if outcome.threshold is None else f"{outcome.threshold:.5f}",
            "-" if outcome.share is None else f"{100 * outcome.share:.1f} %",
        )
        found.add_row(
            Text(f"{outcome.label}{' *' * (outcome is chosen)}"),
            *fitted[: len(fitted_names)],
            f"{outcome.nll:.4f}",
            f"{100 * outcome.agreement:.2f} %",
            human_bytes(outcome.peak_bytes),
            human_bytes(outcome.cold_bytes) if outcome.cold_bytes else "-",
        )
    return found
