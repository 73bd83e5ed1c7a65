"""`agentkv bench memory`: what whole processes take, after each cache was checked."""

import gc
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from agentkv.config import RunSettings
from agentkv.files import append_line, require_file
from agentkv_tasks.bench.contenders.contender import Contender
from agentkv_tasks.bench.contenders.prepare import (
    check_choice,
    check_contenders,
    load_model,
    make_contenders,
    num_checked,
)
from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.bench.host import dtype_name, measured_on, require_memory, threads_of_torch
from agentkv_tasks.bench.memory.episode import Episode, in_a_process
from agentkv_tasks.bench.memory.rows import MemoryRow
from agentkv_tasks.bench.memory.table import table
from agentkv_tasks.bench.tables import print_results
from agentkv_tasks.provenance import commit


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What is to be measured."""

    settings: RunSettings
    """Of these the model, the policies, the budget and what loads the model count."""
    shape: str | None = None
    """Random weights in this shape instead of the model."""
    num_layers: int | None = None
    """Of the shape; None: as many as fit."""
    lengths: tuple[int, ...]
    """Tokens of the prompt."""
    num_decoded: int
    """Tokens decoded after it."""
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
        return max(max(self.lengths) + self.num_decoded, num_checked(self.settings))


def check(bench: Bench) -> None:
    """Everything that can be checked without loading a model.

    Raises:
        ValueError: an option is wrong; the message says what can be used.
    """
    check_choice(
        bench.settings, shape=bench.shape, num_layers=bench.num_layers, against=bench.against
    )
    if not bench.lengths or min(bench.lengths) < 1:
        raise BenchError(f"--seen must be 1 or more; found {', '.join(map(str, bench.lengths))}")
    require_file(bench.out)
    if bench.out.exists() and not bench.fresh:
        raise BenchError(f"{bench.out} is there already; give another --out, or --fresh")


def run_bench(bench: Bench, console: Console) -> list[MemoryRow]:
    """Check, let a process read under each cache at each length, write a row when it has ended,
    print the table, and last all rows in short as a line of JSON.

    Raises:
        ValueError: as `check`; a budget that a policy or the model cannot have; more tokens than
            the model has positions; more memory than there is.
        WrongError: a contender does not compute what it should.
        EpisodeError: a process was killed.
        KeyboardInterrupt: the rows of processes that had ended are written and shown.
    """
    check(bench)
    rows: list[MemoryRow] = []
    ended: BaseException | None = None
    try:
        with Progress(console=console, transient=True) as progress:
            _measure(bench, console, progress, rows)
    except (KeyboardInterrupt, RuntimeError) as error:
        ended = error
    shown = [table(rows)] if rows else []
    if isinstance(ended, RuntimeError):
        console.print(*shown)
        raise ended
    print_results(
        console,
        MemoryRow,
        rows,
        bench.out,
        tables=shown,
        interrupted=ended is not None,
        resume="",
    )
    return rows


def _measure(bench: Bench, console: Console, progress: Progress, rows: list[MemoryRow]) -> None:
    """Adds the rows to `rows` and to the file as they come."""
    about, labels, checked = _checked(bench, console, progress)
    # the processes need what was taken on the device
    gc.collect()
    torch.cuda.empty_cache()
    policies = {chosen.row_name: chosen for chosen in bench.settings.policies}
    bar = progress.add_task("", total=len(bench.lengths) * len(labels))
    shortest: dict[str, MemoryRow] = {}
    for seen in sorted(bench.lengths):
        for label, known in labels.items():
            progress.update(bar, description=f"{label}, {seen} tokens")
            taken = in_a_process(
                Episode(
                    settings=bench.settings,
                    shape=bench.shape,
                    num_layers=bench.num_layers,
                    num_positions=bench.most_tokens,
                    label=label,
                    chosen=policies.get(label),
                    against=bench.against,
                    seen=seen,
                    num_decoded=bench.num_decoded,
                    threads=bench.threads,
                )
            )
            growth, base = taken.peak_bytes - taken.loaded_bytes, shortest.get(label)
            row = MemoryRow(
                label=label,
                seen=seen,
                num_decoded=bench.num_decoded,
                growth_bytes=growth,
                ratio=taken.peak_bytes / base.peak_bytes if base else 1.0,
                growth_ratio=growth / base.growth_bytes if base and base.growth_bytes else 1.0,
                checked=checked[label],
                finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
                **known,
                **asdict(taken),
                **about,
            )
            shortest.setdefault(label, row)
            _write(bench, row, is_first=not rows)
            rows.append(row)
            progress.advance(bar)


def _checked(
    bench: Bench, console: Console, progress: Progress
) -> tuple[dict[str, Any], dict[str, dict[str, Any]], dict[str, dict[str, float]]]:
    """What all rows have in common; what each contender is, by label; and how far each was from
    right. The model is gone when this is over: others are to come."""
    settings = bench.settings
    with threads_of_torch(bench.threads), torch.inference_mode():
        loaded = load_model(
            settings,
            shape=bench.shape,
            num_layers=bench.num_layers,
            num_positions=bench.most_tokens,
        )
        contenders, missing = make_contenders(settings, bench.against, loaded.model)
        # one cache that keeps all, copied in being made longer
        require_memory(loaded.model, max(bench.lengths), 2)
        for line in missing:
            console.print(Text(line), soft_wrap=True)
        started_at = commit()
        checked = check_contenders(settings, contenders, loaded.model, [1], progress)
        about = {
            "model": loaded.name,
            "scaled": loaded.scaled,
            "weights": "own" if bench.shape is None else "random",
            "settings": {
                "chunk": settings.chunk,
                "dtype": dtype_name(loaded.model),
                "num_layers": loaded.model.config.num_hidden_layers,
            },
            **measured_on(loaded.model),
            "commit": started_at,
            "command": bench.command,
        }
        return about, _known(contenders), checked


def _known(contenders: Sequence[Contender]) -> dict[str, dict[str, Any]]:
    return {
        each.label: {"kind": each.kind, "parameters": dict(each.parameters)} for each in contenders
    }


def _write(bench: Bench, row: MemoryRow, *, is_first: bool) -> None:
    """Into the file at once; it is made when there is something to write."""
    append_line(bench.out, row.to_json().encode() + b"\n", fresh=is_first)
