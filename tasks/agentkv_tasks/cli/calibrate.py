"""`agentkv calibrate`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from agentkv.settings import ModelSettings
from agentkv_tasks.cli.options import for_people, takes
from agentkv_tasks.settings import RunSettings


@takes(RunSettings, *ModelSettings.model_fields, "pins")
def calibrate(
    given: dict[str, Any],
    folders: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders (--out) of runs of the model.", metavar="[DIR]..."),
    ] = None,
    text: Annotated[Path | None, typer.Option(help="Text file to read instead of runs.")] = None,
    fit: Annotated[
        str,
        typer.Option(
            help="looks: threshold, stretch and blocks of looks; draw: share of attention at which "
            "a block is fetched; weights: threshold and weights of the confidence; layers: shares "
            "of the first and the last layer."
        ),
    ] = "looks",
    policy: Annotated[
        str | None,
        typer.Option(
            help="Named policy that evicts. [default: lookback; for draw lookback-int4; for "
            "weights conf-kv-int8]"
        ),
    ] = None,
    share: Annotated[
        float,
        typer.Option(
            help="For looks and weights: wanted share of the written tokens that look back, or are "
            "unsure."
        ),
    ] = 0.1,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Number of episodes, the longest ones.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of torch.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="File of the policy. [default: FIT.toml]")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Overwrite --out.")] = False,
) -> None:
    """Fit a policy to a model, and write it to a file.

    The model reads recorded episodes, or a text, under several candidates with the same budget.
    With looks and weights, each gets the threshold of confidence at which the wanted share of
    tokens looks back, or keeps the loose budget. The candidate that predicts what was written best
    is written to --out, which stands for a policy's name in other commands.
    """
    with for_people() as console:
        from agentkv_tasks.calibrate.calibrate import Calibration
        from agentkv_tasks.calibrate.calibrate import calibrate as run_calibration

        others = {"draw": "lookback-int4", "weights": "conf-kv-int8"}
        policies = (policy or others.get(fit, "lookback"),)
        run_calibration(
            Calibration(
                settings=RunSettings.read(**given, policies=policies),
                fit=fit,
                share=share,
                runs=tuple(folders or ()),
                text=text,
                limit=limit,
                threads=threads,
                out=out or Path(f"{fit}.toml"),
                fresh=fresh,
            ),
            console,
        )
