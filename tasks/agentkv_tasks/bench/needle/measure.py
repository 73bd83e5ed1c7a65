"""`agentkv bench needle`: how often a model finds one fact in a long page, by length and depth.

Every policy reads the same pages as an episode does, in its chunks, and its reply is decoded
greedily. A needle is found when the reply stops with exactly the value that was asked for.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from agentkv.build import (
    SCRIPTED,
    check_model,
    load_run_model,
    make_acting,
    resolved_parameters,
)
from agentkv.config import RunSettings
from agentkv_env.sites.names import FIRST_TRAINING_SEED
from agentkv_tasks.bench.needle.file import Cell, NeedleFile
from agentkv_tasks.bench.needle.page import NeedleError, make_needle
from agentkv_tasks.bench.needle.rows import NeedleRow, summary
from agentkv_tasks.bench.needle.seek import cell, pages_digest, seek, weights_digest
from agentkv_tasks.bench.needle.table import tables
from agentkv_tasks.bench.speed.machine import threads_of_torch
from agentkv_tasks.provenance import commit, processor, versions

if TYPE_CHECKING:
    from agentkv.models.local import ActingModel, LocalModel

REPLY_TOKENS = 96
"""A reply may have: a line that quotes the page, and the answer."""
SPARE = 16
"""Positions that are left: the mark of an episode's fences may be longer than that of the count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What is to be measured."""

    settings: RunSettings
    """Of these the model, the policies, the budget, the decoding and what loads the model count."""
    lengths: tuple[int, ...]
    """Tokens of goal and page."""
    depths: tuple[int, ...]
    """Per cent."""
    num_needles: int
    """Of each length and depth."""
    seed: int = 0
    """Of names and pages."""
    against: str
    """The policy that the others are compared with, by its row name."""
    threads: int | None = None
    """Of torch; None: as they are."""
    command: str = ""
    out: Path
    """The file of the rows; what it holds already is not measured again."""
    fresh: bool = False
    """Overwrite it."""


def check(bench: Bench) -> None:
    """Everything that can be checked without loading a model.

    Raises:
        ValueError: an option is wrong; the message says what can be used.
    """
    settings = bench.settings
    if settings.model in SCRIPTED:
        raise NeedleError(f"--model {settings.model} is a script; give nano, a folder or a hub id")
    check_model(settings)
    for policy in settings.policies:
        resolved_parameters(settings, policy)
    labels = [policy.row_name for policy in settings.policies]
    if bench.against not in labels:
        raise NeedleError(
            f"--against {bench.against} is none of --policies {','.join(labels)}; name one of them"
        )
    if not bench.lengths or min(bench.lengths) < 1:
        raise NeedleError(f"--lengths must be 1 or more; found {_listed(bench.lengths)}")
    if not bench.depths or min(bench.depths) < 0 or max(bench.depths) > 100:
        raise NeedleError(f"--depths are per cent, 0 to 100; found {_listed(bench.depths)}")
    if bench.num_needles < 1:
        raise NeedleError(f"--needles {bench.num_needles}: at least 1 is needed")
    if not 0 <= bench.seed < FIRST_TRAINING_SEED:
        raise NeedleError(
            f"--seed {bench.seed}: names from {FIRST_TRAINING_SEED} on are those that models are "
            f"trained on; give 0 to {FIRST_TRAINING_SEED - 1}"
        )
    NeedleFile(bench.out, fresh=bench.fresh)


def run_bench(bench: Bench, console: Console) -> list[NeedleRow]:
    """Measure, write each row when it is over, print the tables, and last all rows in short as a
    line of JSON.

    Raises:
        ValueError: as `check`; a budget that a policy or the model cannot have; lengths that the
            model has no positions for, or that hold no needle; rows of another measurement.
        KeyboardInterrupt: the rows that were over are written and shown.
    """
    check(bench)
    file = NeedleFile(bench.out, fresh=bench.fresh)
    with threads_of_torch(bench.threads):
        local = load_run_model(bench.settings)
        assert local is not None, "scripts were refused"
        _check_lengths(bench, local)
        policies = bench.settings.policies
        acting = {
            chosen.row_name: make_acting(bench.settings, policy=chosen, model=local)
            for chosen in policies
        }
        parameters = {
            chosen.row_name: resolved_parameters(bench.settings, chosen) for chosen in policies
        }
        alike = _alike(bench, local)
        file.require(parameters=parameters, alike=alike)
        interrupted = False
        try:
            with Progress(console=console, transient=True) as progress:
                _measure(bench, local, acting, {"parameters": parameters, **alike}, file, progress)
        except KeyboardInterrupt:
            interrupted = True
    rows = file.rows
    if rows:
        for table in tables(rows, against=bench.against):
            console.print(table)
            console.print()
    if interrupted:
        kept = f"{len(rows)} rows measured so far: {bench.out}" if rows else "no rows yet"
        raise KeyboardInterrupt(f"interrupted; {kept}; start the same command again to go on")
    console.print(Text(f"rows: {bench.out}"), soft_wrap=True)
    console.print(Text(summary(rows, str(bench.out))), soft_wrap=True)
    return rows


def _check_lengths(bench: Bench, local: "LocalModel") -> None:
    """Refuse pages that the model has no room for, and those that have no room for a needle."""
    longest, positions = max(bench.lengths), local.max_positions
    if positions is not None and longest + REPLY_TOKENS + SPARE > positions:
        raise NeedleError(
            f"--lengths {longest}: {local.name} has {positions} positions, of which a reply may "
            f"take {REPLY_TOKENS + SPARE}; give at most {positions - REPLY_TOKENS - SPARE}"
        )
    shortest = min(bench.lengths)
    for depth in bench.depths:
        for number in range(bench.num_needles):
            make_needle(
                local.template, seed=bench.seed, number=number, length=shortest, depth=depth
            )


def _measure(
    bench: Bench,
    local: "LocalModel",
    acting: Mapping[str, "ActingModel"],
    about: Mapping[str, Any],
    file: NeedleFile,
    progress: Progress,
) -> None:
    """Adds a row of each policy, length and depth that has none; shorter pages first."""
    left = _left(bench, file)
    started_at = commit()
    alike = {name: value for name, value in about.items() if name != "parameters"}
    bar = progress.add_task("", total=bench.num_needles * sum(map(len, left.values())))
    for (length, depth), labels in left.items():
        needles = [
            make_needle(local.template, seed=bench.seed, number=number, length=length, depth=depth)
            for number in range(bench.num_needles)
        ]
        digest = pages_digest(needles)
        file.require_pages(length, depth, digest)
        for label in labels:
            progress.update(bar, description=f"{label}, {length} tokens, depth {depth}")
            sought = []
            for needle in needles:
                sought.append(seek(acting[label], needle))
                progress.advance(bar)
            file.add(
                NeedleRow(
                    label=label,
                    parameters=about["parameters"][label],
                    length=length,
                    depth=depth,
                    pages_sha256=digest,
                    commit=started_at,
                    command=bench.command,
                    finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
                    **cell(needles, sought),
                    **alike,
                )
            )


def _left(bench: Bench, file: NeedleFile) -> dict[tuple[int, int], list[str]]:
    """Of each length and depth, the policies that have no row yet."""
    labels = [policy.row_name for policy in bench.settings.policies]
    left: dict[tuple[int, int], list[str]] = {}
    for length in sorted(bench.lengths):
        for depth in sorted(bench.depths):
            wanted: list[Cell] = [(length, depth, label) for label in labels]
            missing = [place[2] for place in wanted if place not in file.cells]
            if missing:
                left[length, depth] = missing
    return left


def _alike(bench: Bench, local: "LocalModel") -> dict[str, Any]:
    """What all rows of a file have in common."""
    settings, device = bench.settings, local.model.device
    return {
        "model": local.name,
        "weights": weights_digest(local.model),
        "seed": bench.seed,
        "num_needles": bench.num_needles,
        "settings": {
            "prefill": settings.prefill,
            "chunk": settings.chunk,
            "decoding": settings.decoding,
            "dtype": str(local.model.dtype).removeprefix("torch."),
            "max_new_tokens": settings.max_new_tokens,
        },
        "versions": versions(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else processor(),
        "threads": torch.get_num_threads(),
    }


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))
