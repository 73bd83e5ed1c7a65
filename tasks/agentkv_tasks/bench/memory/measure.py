"""`agentkv bench memory`: peak memory of whole processes with checked caches."""

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
    """Settings of the measurement."""

    settings: RunSettings
    """Only the model with its dtype and device, the policies, the budget and the chunk count."""
    shape: str | None = None
    """Shape of random weights to use instead of the model."""
    num_layers: int | None = None
    """Layers of the shape; None: as many as fit."""
    lengths: tuple[int, ...]
    """Tokens of the prompt."""
    num_decoded: int
    """Tokens decoded after the prompt."""
    against: tuple[str, ...] = ()
    """Contenders besides the baseline."""
    threads: int | None = None
    """Threads of torch; None: unchanged."""
    command: str = ""
    out: Path
    """File of the rows."""
    fresh: bool = False
    """Overwrite the file."""

    @property
    def most_tokens(self) -> int:
        """Tokens that the model must be able to read."""
        return max(max(self.lengths) + self.num_decoded, num_checked(self.settings))


def check(bench: Bench) -> None:
    """Check the options without loading a model.

    Raises:
        ValueError: an option is wrong; the message names valid values.
    """
    check_choice(
        bench.settings, shape=bench.shape, num_layers=bench.num_layers, against=bench.against
    )
    if "llama.cpp" in bench.against:
        raise BenchError(
            "--against llama.cpp: its process would hold the weights twice, once for transformers; "
            "bench speed compares with it"
        )
    if not bench.lengths or min(bench.lengths) < 1:
        raise BenchError(f"--seen must be 1 or more; found {', '.join(map(str, bench.lengths))}")
    require_file(bench.out)
    if bench.out.exists() and not bench.fresh:
        raise BenchError(f"{bench.out} exists already; give another --out, or --fresh")


def run_bench(bench: Bench, console: Console) -> list[MemoryRow]:
    """Check the contenders, run a process for each cache and length, write its row at its end, and
    print the table and a summary in JSON.

    Raises:
        ValueError: as `check`; a budget that a policy does not fit into; too few positions; too
            little memory.
        WrongError: a contender computes wrong results.
        EpisodeError: a process was killed.
        KeyboardInterrupt: the rows of finished processes are written and printed.
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
    """Measure, and add each row to `rows` and to the file."""
    about, labels, checked = _checked(bench, console, progress)
    # the processes need the memory of the device
    gc.collect()
    torch.cuda.empty_cache()
    policies = {chosen.row_name: chosen for chosen in bench.settings.policies}
    bar = progress.add_task("", total=len(bench.lengths) * len(labels))
    shortest: dict[str, MemoryRow] = {}
    for seen in sorted(bench.lengths):
        for label, known in labels.items():
            progress.update(bar, description=f"{label}, {seen} tokens")
            use = in_a_process(
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
            growth, base = use.peak_bytes - use.loaded_bytes, shortest.get(label)
            row = MemoryRow(
                label=label,
                seen=seen,
                num_decoded=bench.num_decoded,
                growth_bytes=growth,
                ratio=use.peak_bytes / base.peak_bytes if base else 1.0,
                growth_ratio=growth / base.growth_bytes if base and base.growth_bytes else 1.0,
                checked=checked[label],
                finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
                **known,
                **asdict(use),
                **about,
            )
            shortest.setdefault(label, row)
            _write(bench, row, is_first=not rows)
            rows.append(row)
            progress.advance(bar)


def _checked(
    bench: Bench, console: Console, progress: Progress
) -> tuple[dict[str, Any], dict[str, dict[str, Any]], dict[str, dict[str, float]]]:
    """Check the contenders. Return the fields that all rows share, the fields of each contender by
    label, and the distances found by label. The model is freed at the end."""
    settings = bench.settings
    with threads_of_torch(bench.threads), torch.inference_mode():
        loaded = load_model(
            settings,
            shape=bench.shape,
            num_layers=bench.num_layers,
            num_positions=bench.most_tokens,
        )
        contenders, missing = make_contenders(settings, bench.against, loaded.model)
        # one full cache, and its copy while it grows
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
    """Append a row to the file, which the first row creates."""
    append_line(bench.out, row.to_json().encode() + b"\n", fresh=is_first)
