"""Settings of smollm2's trainings, which were chosen on two cores: see the README."""

import argparse
from pathlib import Path
from typing import Any

from agentkv_tasks.train.settings import TrainSettings

_CHECKED = 90
"""Rows between two measurements."""


def train_settings(
    recordings: Path, to: Path, *, rows: int, model: str = "smollm2", **more: Any
) -> TrainSettings:
    """Return the settings of one training.

    Args:
        recordings: file of the recordings.
        to: folder of the adapter.
        rows: rows of a step.
        model: name or folder of the model.
        more: further settings, as `TrainSettings` has them.
    """
    return TrainSettings(
        model=model,
        recordings=(recordings,),
        to=to,
        rows=rows,
        row_tokens=3072,
        recompute=False,
        held_out=24,
        check_every=max(1, _CHECKED // rows),
        **more,
    )


def add_machine_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that depend on the machine: device, dtype and threads."""
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--dtype",
        choices=("bfloat16", "float32"),
        default="bfloat16",
        help="of the weights; float32 is faster on a processor that does not multiply bfloat16",
    )
    parser.add_argument("--threads", type=int)
