"""`agentkv bench speed`: checked contenders decode in interleaved rounds from equal states."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from agentkv_tasks.bench.contenders.contender import Contender, Ours
from agentkv_tasks.bench.contenders.left_out import Say
from agentkv_tasks.bench.contenders.models import LoadedModel
from agentkv_tasks.bench.contenders.prepare import (
    ContenderBenchSettings,
    check_choice,
    check_contenders,
    make_contenders,
    num_checked,
    random_ids,
)
from agentkv_tasks.bench.errors import BenchError, require_positive
from agentkv_tasks.bench.frame import measured
from agentkv_tasks.bench.host import (
    load_average,
    require_memory,
    threads_of_torch,
)
from agentkv_tasks.bench.row_file import RowFile
from agentkv_tasks.bench.speed.cell import SpeedCell, measure_cell
from agentkv_tasks.bench.speed.rows import SpeedRow, speed_file
from agentkv_tasks.bench.speed.table import figures, tables
from agentkv_tasks.provenance import commit

WARM_UP = 2
"""Untimed steps at the start of each round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedBench(ContenderBenchSettings):
    """Settings of the measurement. Complete cells of the file are not measured again."""

    batches: tuple[int, ...]
    num_tokens: int
    """Timed steps per round."""
    num_rounds: int
    num_page: int = 0
    """Tokens of a page that every round reads as well; 0 for none."""
    num_split_rounds: int = 3
    """Rounds that measure the parts of a step; 0 for none."""

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
    check_choice(bench)
    require_positive("--batches", bench.batches)
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
        loaded = bench.load(bench.most_tokens)
        contenders, missing = make_contenders(bench.settings, bench.against, loaded)
        about = bench.about(
            loaded,
            cache_dtype=bench.settings.cache_dtype,
            warm_up=WARM_UP,
            num_split_rounds=bench.num_split_rounds,
        )
        left = _left(bench, file, contenders, about)
        # every contender has a saved state, and one at a time works on a copy
        num_full = sum(not isinstance(x, Ours) or not x.policy.gate.evicts for x in contenders)
        most = max((batch * seen for batch, seen in left), default=0)
        require_memory(loaded.model, most, num_full + 2)

        def say(line: str) -> None:
            console.print(Text(line), soft_wrap=True)

        for line in missing:
            say(line)

        def measure(progress: Progress) -> Iterable[SpeedRow]:
            return _measure(bench, loaded, contenders, left, about, progress, say) if left else ()

        return measured(console, file, measure, tables=tables, figures=figures)


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
    loaded: LoadedModel,
    contenders: Sequence[Contender],
    left: Sequence[tuple[int, int]],
    about: dict[str, Any],
    progress: Progress,
    say: Say,
) -> Iterator[SpeedRow]:
    plain, batches = loaded.model, [batch for batch, _ in left]
    started_at = commit()
    checked = check_contenders(bench.settings, contenders, plain, batches, progress, say)
    sound = [contender for contender in contenders if contender.label in checked]
    for batch, seen in left:
        cell = SpeedCell(
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
            yield timed.row(
                batch=batch,
                seen=seen,
                num_tokens=bench.num_tokens,
                num_page=bench.num_page,
                checked={**checked[timed.label], **timed.checked},
                load_average=[*load_before, *load_average()],
                commit=started_at,
                command=bench.command,
                **about,
            )
