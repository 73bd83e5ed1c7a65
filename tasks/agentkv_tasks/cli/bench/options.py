"""Options that several measurements share."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from agentkv.settings import PoliciesSettings
from agentkv_tasks.cli.options import OptionError

OF_WORLD = (*PoliciesSettings.model_fields, "world_seed", "browser_path")
"""Settings of a measurement that reads the embedded world."""

Shape = Annotated[
    str | None,
    typer.Option(help="Random weights instead: tiny, gpt2, qwen3-14b, gpt-oss-20b and others."),
]
Layers = Annotated[int | None, typer.Option(help="Layers of the shape. [default: as many as fit]")]
Against = Annotated[
    str,
    typer.Option(
        help="Further contenders: static, quantized (fp8, and quanto and HQQ in 4 and 8 bits), "
        "kvpress, llama.cpp; or single ones of these by their labels, such as 'hqq int4'."
    ),
]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads of torch.")]
TextFile = Annotated[Path | None, typer.Option(help="Text file instead of the world.")]
Entries = Annotated[
    int | None,
    typer.Option(min=1, help="Entries of the window whose bytes all budgets have. [default: 512]"),
]
Out = Annotated[Path | None, typer.Option(help="File for the rows. [default: below runs/]")]
Overwrite = Annotated[bool, typer.Option("--fresh", help="Overwrite --out.")]
Resumable = Annotated[
    bool, typer.Option("--fresh/--resume", help="Overwrite --out, or continue it.")
]


def window_entries(given: Mapping[str, Any], entries: int | None) -> int | None:
    """Return the entries of the window whose bytes all budgets have; None: there is a budget.

    Raises:
        OptionError: both were given.
    """
    if "budget" not in given:
        return entries or 512
    if entries is not None:
        raise OptionError("give --entries or --budget; both set the budget")
    return None
