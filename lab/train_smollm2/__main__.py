"""`python -m train_smollm2`: write the recordings, then train the adapter or continue to.

python -m train_smollm2 --work FOLDER --minutes 60
python -m train_smollm2 --work FOLDER --minutes 120               # goes on for another hour
python -m train_smollm2 --work FOLDER --minutes 36 --rows 4 --miniwob
python -m train_smollm2 --work FOLDER --minutes 9 --device cuda --rows 16 --whole
"""

import argparse
from pathlib import Path

from rich.console import Console

from agentkv.files import json_line
from agentkv_tasks.train import command
from agentkv_tasks.train.settings import TrainSettings
from train_nano.record import RECORDINGS
from train_smollm2.export import export
from train_smollm2.recordings import (
    MINIWOB,
    MOST_STEPS,
    TAKEN,
    TAKEN_MINIWOB,
    TAKEN_SHORT,
    pack,
    recordings,
)

_CHECKED = 90
"""Rows between two measurements."""


def write_recordings(path: Path, *, is_whole: bool, is_short: bool, is_miniwob: bool) -> None:
    """Write the recordings unless the file is there.

    Args:
        is_whole: take all recordings.
        is_short: pages of our own sites lose most of what no reply needs.
        is_miniwob: take those of MiniWoB++ alone, and all that are short.
    """
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    taken = TAKEN_MINIWOB if is_miniwob else TAKEN_SHORT if is_short else TAKEN
    taken = dict.fromkeys(taken, 1.0) if is_whole else taken
    with partial.open("wb") as file:
        for each in recordings(RECORDINGS, seed=0, taken=taken, is_short=is_short):
            if len(each.steps) <= MOST_STEPS or not is_miniwob:
                file.write(json_line(each.to_json()))
    partial.replace(path)


def recordings_path(options: argparse.Namespace) -> Path:
    """Return the path of the recordings, which is another for each choice of them."""
    chosen = [name for name in ("short", "whole", "miniwob") if getattr(options, name)]
    return options.work / ("-".join(["recordings", *chosen]) + ".jsonl")


def settings(options: argparse.Namespace) -> TrainSettings:
    """Return the settings of the training, which were chosen on two cores: see the README."""
    return TrainSettings(
        model="smollm2",
        recordings=(recordings_path(options),),
        to=options.work / "adapter",
        start=options.start,
        minutes=options.minutes,
        rows=options.rows,
        row_tokens=3072,
        dtype=options.dtype,
        recompute=False,
        held_out=24,
        check_every=max(1, _CHECKED // options.rows),
        device=options.device,
        threads=options.threads,
        replay=options.replay,
        shuffle_seed=options.shuffle_seed,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m train_smollm2", description="Train smollm2.")
    parser.add_argument("--work", type=Path, default=Path("work/smollm2"))
    to_do = parser.add_mutually_exclusive_group(required=True)
    to_do.add_argument("--minutes", type=float, help="minutes of the training in all")
    to_do.add_argument("--export", type=Path, metavar="FOLDER", help="write the adapter there")
    to_do.add_argument(
        "--pack",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="take recordings of MiniWoB++ from there",
    )
    parser.add_argument("--rows", type=int, default=1, help="rows of a step (default: 1)")
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--dtype",
        choices=("bfloat16", "float32"),
        default="bfloat16",
        help="of the weights; float32 is faster on a processor that does not multiply bfloat16",
    )
    parser.add_argument("--threads", type=int)
    parser.add_argument("--replay", type=Path, help="text against forgetting")
    parser.add_argument("--shuffle-seed", type=int, default=0, help="order of the rows")
    parser.add_argument("--start", type=Path, help="adapter that the training begins with")
    parser.add_argument("--short", action="store_true", help="pages lose what no reply needs")
    parser.add_argument("--whole", action="store_true", help="take all recordings")
    parser.add_argument(
        "--miniwob", action="store_true", help="take short episodes of MiniWoB++ alone"
    )
    options = parser.parse_args()
    if options.miniwob and (options.short or options.whole):
        parser.error("--miniwob takes MiniWoB++ alone; leave --short and --whole out")
    if options.export:
        size = export(options.work / "adapter", options.export)
        print(f"{options.export}: {size / 1e6:.1f} MB")
        return
    if options.pack:
        print(f"{MINIWOB}: {pack(options.pack)} recordings")
        return
    chosen = settings(options)
    [path] = chosen.recordings
    write_recordings(
        path, is_whole=options.whole, is_short=options.short, is_miniwob=options.miniwob
    )
    command.run(command.prepare(chosen), Console())


if __name__ == "__main__":
    main()
