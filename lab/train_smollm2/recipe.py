"""`python -m train_smollm2.recipe`: train smollm2-web from the committed recordings.

python -m train_smollm2.recipe --work FOLDER --text wikitext-2-valid.txt
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from agentkv.models.adapter import WEIGHTS
from agentkv_tasks.train import command
from train_smollm2.export import export
from train_smollm2.recordings import write_recordings
from train_smollm2.settings import add_machine_options, train_settings

_ROWS = 4
"""Rows of a step."""


@dataclass(frozen=True, slots=True)
class Part:
    """One training of the recipe."""

    name: str
    steps: int
    shuffle_seed: int = 0
    """Seed of the order in which rows are read."""
    reads_text: bool = False
    """Whether a quarter of the rows is text, on which the adapter must not change predictions."""


PARTS = (
    Part("first", steps=227),
    Part("second", steps=242),
    Part("third", steps=62, shuffle_seed=1, reads_text=True),
)
"""The trainings of the shipped adapter, with the steps that they had by the clock."""


def follow(
    parts: Sequence[Part],
    recordings: Path,
    work: Path,
    text: Path,
    console: Console,
    **more: Any,
) -> Path:
    """Train one part after the other, and return the folder of the last adapter in bfloat16.

    A part that is done is left as it is, and one that was stopped goes on. Each begins with the
    adapter of the part before.

    Args:
        recordings: file of the recordings.
        work: folder with one folder for each part.
        text: file for the parts that read text.
        console: where each part says how it goes on.
        more: further settings, as `TrainSettings` has them.

    Raises:
        Exception: what `agentkv_tasks.train.command` raises.
    """
    start = None
    for part in parts:
        folder = work / part.name
        exported = folder / "bf16"
        if not (exported / WEIGHTS).exists():
            console.print(f"{part.name} training")
            chosen = train_settings(
                recordings,
                folder / "adapter",
                rows=_ROWS,
                start=start,
                steps=part.steps,
                shuffle_seed=part.shuffle_seed,
                replay=text if part.reads_text else None,
                **more,
            )
            command.run(command.prepare(chosen), console)
            export(folder / "adapter", exported)
        start = exported
    assert start is not None, "a recipe has parts"
    return start


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m train_smollm2.recipe",
        description="Train smollm2-web: 531 steps in three parts, three hours on two cores. "
        "The same command goes on where it was stopped.",
    )
    parser.add_argument("--work", type=Path, default=Path("work/smollm2-web"))
    parser.add_argument("--text", type=Path, required=True, help="text against forgetting")
    add_machine_options(parser)
    options = parser.parse_args()
    if not options.text.is_file():
        parser.error(f"--text: there is no file {options.text}")
    recordings = options.work / "recordings.jsonl"
    write_recordings(recordings, is_whole=False, is_short=False, is_miniwob=True)
    try:
        adapter = follow(
            PARTS,
            recordings,
            options.work,
            options.text,
            Console(),
            dtype=options.dtype,
            device=options.device,
            threads=options.threads,
        )
    except KeyboardInterrupt as stop:
        raise SystemExit(str(stop) or "interrupted; run the same command again") from None
    print(f"{adapter}: the adapter in bfloat16, as agentkv/models/smollm2-web holds it")


if __name__ == "__main__":
    main()
