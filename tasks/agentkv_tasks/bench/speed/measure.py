"""`agentkv bench speed`: checked contenders decode in interleaved rounds from equal states."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from agentkv_tasks.bench.contenders.contender import Contender, Ours
from agentkv_tasks.bench.contenders.left_out import Say
from agentkv_tasks.bench.contenders.models import Loaded
from agentkv_tasks.bench.contenders.prepare import (
    check_choice,
    check_contenders,
    load_model,
    make_contenders,
    num_checked,
    random_ids,
)
from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.bench.host import (
    dtype_name,
    load_average,
    measured_on,
    require_memory,
    threads_of_torch,
)
from agentkv_tasks.bench.row_file import RowFile
from agentkv_tasks.bench.speed.cell import Cell, measure_cell
from agentkv_tasks.bench.speed.rows import SpeedRow, speed_file
from agentkv_tasks.bench.speed.table import figures, tables
from agentkv_tasks.bench.tables import print_results
from agentkv_tasks.progress import progress_on
from agentkv_tasks.provenance import commit
from agentkv_tasks.settings import RunSettings

WARM_UP = 2
"""Untimed steps at the start of each round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedBench:
    """Settings of the measurement."""

    settings: RunSettings
    """Only the model with its dtype and device, the policies, the budget and the chunk count."""
    shape: str | None = None
    """Shape of random weights to use instead of the model."""
    num_layers: int | None = None
    """Layers of the shape; None: as many as fit."""
    batches: tuple[int, ...]
    lengths: tuple[int, ...]
    """Tokens read before the timed ones."""
    num_tokens: int
    """Timed steps per round."""
    num_rounds: int
    num_page: int = 0
    """Tokens of a page that every round reads as well; 0 for none."""
    num_split_rounds: int = 3
    """Rounds that measure the parts of a step; 0 for none."""
    against: tuple[str, ...] = ()
    """Contenders besides the baseline."""
    threads: int | None = None
    """Threads of torch; None: unchanged."""
    command: str = ""
    out: Path
    """File of the rows; complete cells in it are not measured again."""
    fresh: bool = False
    """Overwrite the file."""

    @property
    def num_after(self) -> int:
        """Tokens that may follow those seen: steps, or a page."""
        return max(WARM_UP + self.num_tokens, self.num_page)

    @property
    def most_tokens(self) -> int:
        """Tokens that the model must be able to read."""
        most = max(self.lengths) + self.num_after + 1
        return max(most, num_checked(self.settings))


def check(bench: SpeedBench) -> None:
    """Check the options without loading a model.

    Raises:
        ValueError: an option is wrong; the message names valid values.
    """
    check_choice(
        bench.settings, shape=bench.shape, num_layers=bench.num_layers, against=bench.against
    )
    for what, numbers in (("--batches", bench.batches), ("--seen", bench.lengths)):
        if not numbers or min(numbers) < 1:
            raise BenchError(f"{what} must be 1 or more; found {', '.join(map(str, numbers))}")
    if bench.num_tokens < 1 or bench.num_rounds < 1 or bench.num_split_rounds < 0:
        raise BenchError("expected at least one token in at least one round")
    if bench.num_page < 0:
        raise BenchError(f"--page {bench.num_page}: expected the tokens of a page, or 0 for none")
    if bench.threads is not None and bench.threads < 1:
        raise BenchError(f"--threads {bench.threads}: expected at least 1")
    speed_file(bench.out, fresh=bench.fresh)


def run_bench(bench: SpeedBench, console: Console) -> list[SpeedRow]:
    """Check and measure the contenders, write the rows of each batch and length at its end, and
    print the tables and a summary in JSON.

    Raises:
        ValueError: as `check`; a budget that a policy does not fit into; too few positions; too
            little memory; rows of another measurement.
        WrongError: a contender computes wrong results.
        KeyboardInterrupt: the results of complete rounds are written.
    """
    check(bench)
    file = speed_file(bench.out, fresh=bench.fresh)
    with threads_of_torch(bench.threads), torch.inference_mode():
        loaded = load_model(
            bench.settings,
            shape=bench.shape,
            num_layers=bench.num_layers,
            num_positions=bench.most_tokens,
        )
        contenders, missing = make_contenders(bench.settings, bench.against, loaded.model)
        about = _about(bench, loaded)
        left = _left(bench, file, contenders, about)
        # every contender has a saved state, and one at a time works on a copy
        num_full = sum(not isinstance(x, Ours) or not x.policy.gate.evicts for x in contenders)
        most = max((batch * seen for batch, seen in left), default=0)
        require_memory(loaded.model, most, num_full + 2)

        def say(line: str) -> None:
            console.print(Text(line), soft_wrap=True)

        for line in missing:
            say(line)
        interrupted = False
        try:
            with progress_on(console) as progress:
                if left:
                    _measure(bench, loaded, contenders, left, about, file, progress, say)
        except KeyboardInterrupt:
            interrupted = True
    rows = file.rows
    print_results(
        console,
        SpeedRow,
        rows,
        bench.out,
        tables=tables(rows),
        figures=figures(rows),
        interrupted=interrupted,
    )
    return rows


def _left(
    bench: SpeedBench,
    file: RowFile[SpeedRow],
    contenders: Sequence[Contender],
    about: dict[str, Any],
) -> list[tuple[int, int]]:
    """Return the batches and lengths for which a contender lacks rounds.

    Raises:
        BenchError: the file holds rows of other contenders or settings.
    """
    parameters = {contender.label: contender.parameters for contender in contenders}
    file.require_same(
        lambda row: {
            **about,
            "num_tokens": bench.num_tokens,
            "num_page": bench.num_page,
            "parameters": parameters.get(row.label),
        }
    )
    done: dict[tuple[int, int], set[str]] = {}
    for row in file.rows:
        if row.num_rounds >= bench.num_rounds:
            done.setdefault((row.batch, row.seen), set()).add(row.label)
    wanted = [(batch, seen) for batch in bench.batches for seen in bench.lengths]
    return [cell for cell in wanted if done.get(cell) != set(parameters)]


def _measure(
    bench: SpeedBench,
    loaded: Loaded,
    contenders: Sequence[Contender],
    left: Sequence[tuple[int, int]],
    about: dict[str, Any],
    file: RowFile[SpeedRow],
    progress: Progress,
    say: Say,
) -> None:
    plain, batches = loaded.model, [batch for batch, _ in left]
    started_at = commit()
    checked = check_contenders(bench.settings, contenders, plain, batches, progress, say)
    sound = [contender for contender in contenders if contender.label in checked]
    for batch, seen in left:
        cell = Cell(
            ids=random_ids(plain, batch, seen + bench.num_after),
            seen=seen,
            num_warm_up=WARM_UP,
            num_tokens=bench.num_tokens,
            num_page=bench.num_page,
            num_rounds=bench.num_rounds,
            num_split_rounds=bench.num_split_rounds,
        )
        load_before = load_average()
        for timed in measure_cell(cell, sound, progress, say):
            file.add(
                timed.row(
                    batch=batch,
                    seen=seen,
                    num_tokens=bench.num_tokens,
                    num_page=bench.num_page,
                    checked={**checked[timed.label], **timed.checked},
                    load_average=[*load_before, *load_average()],
                    commit=started_at,
                    command=bench.command,
                    finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
                    **about,
                )
            )


def _about(bench: SpeedBench, loaded: Loaded) -> dict[str, Any]:
    """Return the fields that all rows of a file share."""
    return {
        "model": loaded.name,
        "scaled": loaded.scaled,
        "weights": "own" if bench.shape is None else "random",
        "settings": {
            "chunk": bench.settings.chunk,
            "dtype": dtype_name(loaded.model),
            "cache_dtype": bench.settings.cache_dtype,
            "num_layers": loaded.model.config.num_hidden_layers,
            "warm_up": WARM_UP,
            "num_split_rounds": bench.num_split_rounds,
        },
        **measured_on(loaded.model),
    }
