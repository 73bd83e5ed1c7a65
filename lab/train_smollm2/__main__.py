"""`python -m train_smollm2`: write the recordings, then train the adapter or continue to.

python -m train_smollm2 --work FOLDER --minutes 60
python -m train_smollm2 --work FOLDER --minutes 120               # goes on for another hour
python -m train_smollm2 --work FOLDER --minutes 36 --rows 4 --miniwob
python -m train_smollm2 --work FOLDER --minutes 9 --device cuda --rows 16 --whole
"""

import argparse
from pathlib import Path

from rich.console import Console

from agentkv_tasks.train import command
from agentkv_tasks.train.settings import TrainSettings
from train_smollm2.export import export
from train_smollm2.recordings import MINIWOB, pack, write_recordings
from train_smollm2.settings import add_machine_options, train_settings


def recordings_path(options: argparse.Namespace) -> Path:
    """Return the path of the recordings, which is another for each choice of them."""
    chosen = [name for name in ("short", "whole", "miniwob") if getattr(options, name)]
    return options.work / ("-".join(["recordings", *chosen]) + ".jsonl")


def settings(options: argparse.Namespace) -> TrainSettings:
    """Return the settings of the training."""
    return train_settings(
        recordings_path(options),
        options.work / "adapter",
        rows=options.rows,
        start=options.start,
        minutes=options.minutes,
        dtype=options.dtype,
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
    add_machine_options(parser)
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
