"""`agentkv bench speed`: contenders decode in turns from equal states, after each was checked."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.text import Text
from torch import Tensor

from agentkv.build import SCRIPTED, budget_for, make_policy
from agentkv.cache.attach import attach
from agentkv.config import RunSettings
from agentkv.models.find import find_model
from agentkv_tasks.bench.speed.cell import Cell, Timed, measure_cell
from agentkv_tasks.bench.speed.contenders import Contender, Ours
from agentkv_tasks.bench.speed.machine import (
    SpeedError,
    device_of,
    load_average,
    require_memory,
    threads_of_torch,
)
from agentkv_tasks.bench.speed.others import AGAINST, others
from agentkv_tasks.bench.speed.rows import SpeedRow, summary
from agentkv_tasks.bench.speed.shapes import SHAPES, Loaded, build, load, most_positions, twin
from agentkv_tasks.bench.speed.table import tables
from agentkv_tasks.bench.speed.verify import NUM_STEPS, check_path
from agentkv_tasks.plan import resolved_parameters
from agentkv_tasks.provenance import commit, processor, versions

WARM_UP = 2
"""Steps of each round before those that count."""
CHECKED = 1.5
"""Tokens that contenders are checked over, by the budget, so that rows go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What is to be measured."""

    settings: RunSettings
    """Of these the model, the policies, the budget and what loads the model count."""
    shape: str | None = None
    """Random weights in this shape instead of the model."""
    num_layers: int | None = None
    """Of the shape; None: as many as fit."""
    batches: tuple[int, ...]
    lengths: tuple[int, ...]
    """Tokens read before decoding is timed."""
    num_tokens: int
    """Steps of a round."""
    num_rounds: int
    num_split_rounds: int = 1
    """In which is asked where time goes; 0 for none."""
    against: tuple[str, ...] = ()
    """Beside the baseline, which is always there."""
    threads: int | None = None
    """Of torch; None: as they are."""
    command: str = ""
    out: Path
    """The file of the rows."""
    fresh: bool = False
    """Overwrite it."""

    @property
    def most_tokens(self) -> int:
        return max(max(self.lengths) + WARM_UP + self.num_tokens + 1, self.num_checked)

    @property
    def num_checked(self) -> int:
        """Tokens that the contenders are checked over."""
        budget = self.settings.budget
        least = max(256, round(CHECKED * budget)) if isinstance(budget, int) else 768
        return min(least, 4096) + NUM_STEPS


@dataclass(slots=True)
class _Run:
    """What has been found so far."""

    rows: list[SpeedRow] = field(default_factory=list)
    checked: dict[str, dict[str, float]] = field(default_factory=dict)


def check(bench: Bench) -> None:
    """Everything that can be checked without loading a model.

    Raises:
        ValueError: an option is wrong; the message says what can be used.
    """
    settings = bench.settings
    if bench.shape is not None and bench.shape not in SHAPES:
        raise SpeedError(f"unknown shape {bench.shape!r}; known: {', '.join(SHAPES)}")
    if bench.shape is None and bench.num_layers is not None:
        raise SpeedError("--layers is for a --shape; a model has as many as it has")
    if bench.shape is None:
        if settings.model in SCRIPTED:
            raise SpeedError(f"--model {settings.model} is a script; give a model or a --shape")
        find_model(settings.model)
    for name in bench.against:
        if name not in AGAINST:
            raise SpeedError(f"--against {name!r} is unknown; known: {', '.join(AGAINST)}")
    for what, numbers in (("--batches", bench.batches), ("--seen", bench.lengths)):
        if not numbers or min(numbers) < 1:
            raise SpeedError(f"{what} must be 1 or more; found {', '.join(map(str, numbers))}")
    if bench.num_tokens < 1 or bench.num_rounds < 1 or bench.num_split_rounds < 0:
        raise SpeedError("at least one token in at least one round is needed")
    if bench.threads is not None and bench.threads < 1:
        raise SpeedError(f"--threads {bench.threads}: at least 1 is needed")
    for policy in settings.policies:
        if policy.row_name in AGAINST:
            raise SpeedError(f"{policy.row_name} is the name of another contender; label it anew")
        resolved_parameters(settings, policy)
    if bench.out.exists() and not bench.fresh:
        raise SpeedError(f"{bench.out} is there already; give another --out, or --fresh")
    device_of(settings.device)


def conduct(bench: Bench, console: Console) -> list[SpeedRow]:
    """Check, measure, write the rows of each batch and length when it is over, print the tables,
    and last all rows in short as a line of JSON.

    Raises:
        ValueError: as `check`; a budget that a policy or the model cannot have; more tokens than
            the model has positions; more memory than there is.
        WrongError: a contender does not compute what it should.
        KeyboardInterrupt: with what was measured until then written, as far as whole rounds go.
    """
    check(bench)
    with threads_of_torch(bench.threads), torch.inference_mode():
        loaded = _load(bench)
        contenders, missing = _contenders(bench, loaded.model)
        require_memory(loaded.model, contenders, max(bench.lengths) * max(bench.batches))
        run, interrupted = _Run(), False
        for line in missing:
            console.print(Text(line), soft_wrap=True)
        try:
            with Progress(console=console, transient=True) as progress:
                _measure(bench, loaded, contenders, run, progress)
        except KeyboardInterrupt:
            interrupted = True
    for table in tables(run.rows):
        console.print(table)
        console.print()
    if interrupted:
        kept = f"{len(run.rows)} rows measured so far: {bench.out}" if run.rows else "no rows yet"
        raise KeyboardInterrupt(f"interrupted; {kept}")
    console.print(Text(f"rows: {bench.out}"), soft_wrap=True)
    console.print(Text(summary(run.rows, str(bench.out))), soft_wrap=True)
    return run.rows


def _load(bench: Bench) -> Loaded:
    settings, device = bench.settings, device_of(bench.settings.device)
    if bench.shape is not None:
        loaded = build(
            bench.shape,
            device,
            settings.dtype,
            num_layers=bench.num_layers,
            num_positions=bench.most_tokens,
        )
    else:
        loaded = load(settings.model, device, settings.dtype)
    most = most_positions(loaded.model)
    if most is not None and bench.most_tokens > most:
        raise SpeedError(
            f"{loaded.name} has {most} positions, and up to {bench.most_tokens} tokens would be "
            "read; lower --seen, --tokens or --budget"
        )
    return loaded


def _contenders(bench: Bench, plain: Any) -> tuple[list[Contender], list[str]]:
    settings = bench.settings
    budget, chunk = settings.budget, settings.chunk
    found, missing = others(bench.against, plain, chunk=chunk, budget=budget)
    ours = twin(plain, plain.config._attn_implementation)
    attach(ours)
    for chosen in settings.policies:
        policy = make_policy(chosen)
        parameters = resolved_parameters(settings, chosen)
        budget = budget_for(settings, policy)
        found.append(Ours(chosen.row_name, parameters, policy, ours, budget, chunk))
    return found, missing


def _measure(
    bench: Bench,
    loaded: Loaded,
    contenders: Sequence[Contender],
    run: _Run,
    progress: Progress,
) -> None:
    plain, device = loaded.model, loaded.model.device
    started_at = commit()
    # two sequences in a batch are enough to be taken for each other
    for batch in sorted({min(batch, 2) for batch in bench.batches}):
        ids = _ids(plain, batch, bench.num_checked, device)
        bar = progress.add_task("", total=len(contenders))
        for contender in contenders:
            progress.update(bar, description=f"checking {contender.label}")
            found = check_path(contender, plain, ids, bench.settings.chunk)
            before = run.checked.get(contender.label, {})
            worst = {name: max(value, before.get(name, 0.0)) for name, value in found.items()}
            run.checked[contender.label] = worst
            progress.advance(bar)
        progress.remove_task(bar)
    for batch in bench.batches:
        for seen in bench.lengths:
            cell = Cell(
                ids=_ids(plain, batch, seen + WARM_UP + bench.num_tokens, device),
                seen=seen,
                num_warm_up=WARM_UP,
                num_rounds=bench.num_rounds,
                num_split_rounds=bench.num_split_rounds,
            )
            load_before = load_average()
            for timed in measure_cell(cell, contenders, progress):
                about = _about(bench, loaded, run, timed, started_at, load_before)
                row = timed.row(batch=batch, seen=seen, num_tokens=bench.num_tokens, **about)
                _write(bench, row, is_first=not run.rows)
                run.rows.append(row)


def _write(bench: Bench, row: SpeedRow, *, is_first: bool) -> None:
    """Into the file at once; it is made when there is something to write."""
    bench.out.parent.mkdir(parents=True, exist_ok=True)
    with bench.out.open("w" if is_first else "a", encoding="utf-8") as file:
        file.write(row.to_json() + "\n")


def _about(
    bench: Bench,
    loaded: Loaded,
    run: _Run,
    timed: Timed,
    started_at: str,
    load_before: list[float],
) -> dict[str, Any]:
    settings, device = bench.settings, loaded.model.device
    return {
        "model": loaded.name,
        "scaled": loaded.scaled,
        "weights": "own" if bench.shape is None else "random",
        "checked": {**run.checked[timed.label], **timed.checked},
        "load_average": [*load_before, *load_average()],
        "settings": {
            "chunk": settings.chunk,
            "dtype": str(loaded.model.dtype).removeprefix("torch."),
            "num_layers": loaded.model.config.num_hidden_layers,
            "warm_up": WARM_UP,
            "num_split_rounds": bench.num_split_rounds,
        },
        "versions": versions(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else processor(),
        "threads": torch.get_num_threads(),
        "commit": started_at,
        "command": bench.command,
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _ids(model: Any, batch: int, count: int, device: torch.device) -> Tensor:
    """(batch, count) random tokens, always the same; shorter ones are how longer ones begin."""
    generator = torch.Generator().manual_seed(75)
    drawn = torch.randint(model.config.vocab_size, (count, batch), generator=generator)
    return drawn.T.contiguous().to(device)
