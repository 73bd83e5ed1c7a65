"""`agentkv bench ruler`: synthetic tasks of long contexts, each policy on the same cases.

A context is read and compressed before the policy sees a question. Replies are greedy.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.progress import Progress

from agentkv.build import (
    load_run_model,
)
from agentkv_tasks.bench.errors import BenchError, require_positive
from agentkv_tasks.bench.frame import ModelBenchSettings, measured
from agentkv_tasks.bench.host import threads_of_torch
from agentkv_tasks.bench.matched import (
    acting_models,
    check_policies,
    fields_of,
    with_window_bytes,
)
from agentkv_tasks.bench.needle.words import words_template
from agentkv_tasks.bench.row_file import RowFile
from agentkv_tasks.bench.ruler.ask import Asked, Reader
from agentkv_tasks.bench.ruler.prompts import Prompt, Prompts, Spot
from agentkv_tasks.bench.ruler.rows import RulerRow
from agentkv_tasks.bench.ruler.table import figures, tables
from agentkv_tasks.bench.ruler.tasks import MOST_QUESTIONS, TASKS, Mode
from agentkv_tasks.bench.tables import FULL
from agentkv_tasks.provenance import commit

if TYPE_CHECKING:
    from agentkv.models.local import ActingModel, LocalModel

Modes = Literal["requests", "turns", "both"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RulerBench(ModelBenchSettings):
    """Settings of the measurement. Rows of the file are not measured again.

    Of `settings`, only the model with its dtype and device, the policies, the budget and the chunk
    count.
    """

    entries: int | None = None
    """Entries of the window whose bytes policies with a budget get, instead of the settings'
    budget; None: the settings' budget."""
    tasks: tuple[str, ...]
    """Names in `TASKS`."""
    modes: Modes = "both"
    """How tasks with several questions ask them; other tasks have the mode `one`."""
    lengths: tuple[int, ...]
    """Tokens of a context, its questions and their replies."""
    num_samples: int
    """Contexts of each task and length."""
    num_questions: int
    """Questions about a context, of tasks that have several."""
    text: Path | None = None
    """File of the text around the needles of tasks over text."""
    seed: int = 0


def check(bench: RulerBench) -> None:
    """Check the options without loading a model.

    Raises:
        ValueError: an option is wrong; the message names valid values.
    """
    settings = bench.settings
    labels = check_policies(settings, bench.entries)
    if FULL not in labels:
        raise BenchError(
            f"--policies {','.join(labels)} lacks full, whose score says which tasks the model can "
            "do; give it as well"
        )
    require_positive("--lengths", bench.lengths)
    if not 2 <= bench.num_questions <= MOST_QUESTIONS:
        raise BenchError(f"--questions {bench.num_questions}: expected 2 to {MOST_QUESTIONS}")
    if bench.text is not None and not bench.text.is_file():
        raise BenchError(f"--text {bench.text} is not a file")
    _file(bench)


def run_bench(bench: RulerBench, console: Console) -> list[RulerRow]:
    """Measure, write each row at once, and print the tables and a summary in JSON.

    Raises:
        ValueError: as `check`; a budget that a policy does not fit into; a length beyond the
            model's positions or too short for a task; a text that is too short; rows of another
            measurement.
        KeyboardInterrupt: finished rows are written and printed.
    """
    check(bench)
    file = _file(bench)
    with threads_of_torch(bench.threads):
        local = load_run_model(bench.settings)
        assert local is not None, "scripts are refused by `check`"
        cases = _Cases(bench, local)
        settings = with_window_bytes(bench.settings, local, bench.entries)
        acting, parameters = acting_models(settings, local)
        alike = _alike(bench, local)
        file.require_same(
            lambda row: {**alike, "parameters": parameters.get(row.label, row.parameters)}
        )
        return measured(
            console,
            file,
            partial(_measure, bench, cases, acting, parameters, alike, file),
            tables=tables,
            figures=figures,
            order=_sorted,
        )


class _Cases:
    """Makes the cases, once all of them are known to have room.

    Raises:
        BenchError: a length is beyond the model's positions or too short for a task, or the text
            is too short.
    """

    def __init__(self, bench: RulerBench, local: "LocalModel") -> None:
        self._bench = bench
        self.template = words_template(local) or local.template
        self._prompts = Prompts(self.template, text=bench.text, num_samples=bench.num_samples)
        longest, positions = max(bench.lengths), local.max_positions
        if positions is not None and longest > positions:
            raise BenchError(
                f"--lengths {longest}: {local.name} has {positions} positions; give at most that"
            )
        for length, task in product(bench.lengths, bench.tasks):
            for spot in self._spots(length, task):
                self._prompts.require_room(spot)
        if any(TASKS[task].in_text for task in bench.tasks):
            self._prompts.require_text(longest)

    def make(self, length: int, task: str) -> list[Prompt]:
        """Return the cases of a task and length."""
        return [self._prompts.make(spot) for spot in self._spots(length, task)]

    def _spots(self, length: int, task: str) -> list[Spot]:
        bench = self._bench
        return [
            Spot(
                task=task,
                length=length,
                seed=bench.seed,
                number=number,
                num_questions=bench.num_questions,
            )
            for number in range(bench.num_samples)
        ]


def _measure(
    bench: RulerBench,
    cases: _Cases,
    acting: Mapping[str, "ActingModel"],
    parameters: Mapping[str, Any],
    alike: Mapping[str, Any],
    file: RowFile[RulerRow],
    progress: Progress,
) -> Iterator[RulerRow]:
    """Yield the missing rows, shorter contexts first; the modes of a task share what was read."""
    about = {**alike, "commit": commit(), "command": bench.command}
    left = [
        (length, task, missing)
        for length, task in product(sorted(bench.lengths), bench.tasks)
        if (missing := _missing(bench, file, length, task))
    ]
    _require_text(cases, file)
    bar = progress.add_task("", total=bench.num_samples * sum(len(each[2]) for each in left))
    for length, task, missing in left:
        prompts = cases.make(length, task)
        digest = _digest(prompts)
        _require_prompts(file, length, task, digest)
        for label, modes in missing.items():
            progress.update(bar, description=f"{label}, {task}, {length} tokens")
            asked: dict[Mode, list[Asked]] = {mode: [] for mode in modes}
            for prompt in prompts:
                model = acting[label]
                reader = Reader(model.local.model, cases.template, model.new_cache(), prompt)
                for mode, found in asked.items():
                    found.append(reader.ask(in_turns=mode == "turns"))
                progress.advance(bar)
            for mode, found in asked.items():
                yield RulerRow(
                    label=label,
                    parameters=parameters[label],
                    task=task,
                    mode=mode,
                    length=length,
                    prompts_sha256=digest,
                    **_summary(prompts, found),
                    **about,
                )


def _missing(
    bench: RulerBench, file: RowFile[RulerRow], length: int, task: str
) -> dict[str, list[Mode]]:
    """Return the modes without a row, by policy; policies that lack none are left out."""
    modes: list[Mode] = ["one"]
    if TASKS[task].has_several:
        modes = ["requests", "turns"] if bench.modes == "both" else [bench.modes]
    labels = [policy.row_name for policy in bench.settings.policies]
    missing = {
        label: [mode for mode in modes if (length, task, mode, label) not in file.keys]
        for label in labels
    }
    return {label: modes for label, modes in missing.items() if modes}


def _summary(prompts: Sequence[Prompt], found: Sequence[Asked]) -> dict[str, Any]:
    """Return the fields of a row that come from its cases."""
    sizes = [size for each in found for size in each.sizes]
    scores = [score for each in found for score in each.scores]
    return {
        "score": fmean(scores),
        "scores": [each.scores for each in found],
        "expected": [[list(q.question.expected) for q in prompt.questions] for prompt in prompts],
        "replies": [each.replies for each in found],
        "context_tokens": fmean(len(each.opening) + len(each.context) for each in prompts),
        "mean_bytes": fmean(size.hot for size in sizes),
        "peak_bytes": max(each.peak_bytes for each in found),
        "cold_bytes": fmean(size.cold for size in sizes),
        "cold_peak_bytes": max(size.cold + size.index for size in sizes),
        "index_bytes": fmean(size.index for size in sizes),
        "all_bytes": fmean(size.all for size in sizes),
        "all_peak_bytes": max(size.all for size in sizes),
        "look_share": sum(each.num_looks for each in found) / sum(each.num_fed for each in found),
        "reply_tokens": sum(each.num_sampled for each in found) / len(scores),
        "read_seconds": round(fmean(each.read_seconds for each in found), 3),
        "reply_seconds": round(fmean(each.reply_seconds for each in found), 3),
    }


def _digest(prompts: Sequence[Prompt]) -> str:
    return hashlib.sha256("\n".join(each.digest for each in prompts).encode()).hexdigest()


def _require_text(cases: _Cases, file: RowFile[RulerRow]) -> None:
    """Refuse rows of another text with the same name, by one of its tasks. Raises BenchError."""
    in_text = [(row.length, row.task) for row in file.rows if TASKS[row.task].in_text]
    if in_text:
        length, task = min(in_text)
        _require_prompts(file, length, task, _digest(cases.make(length, task)))


def _require_prompts(file: RowFile[RulerRow], length: int, task: str, digest: str) -> None:
    """Refuse rows of other cases of the same task and length. Raises BenchError."""
    for row in file.rows:
        if (row.length, row.task) == (length, task) and row.prompts_sha256 != digest:
            raise file.mismatch(f"contexts of {task} at {length} tokens have changed")


def _sorted(rows: Sequence[RulerRow]) -> list[RulerRow]:
    """Sort rows by length, task, mode and policy."""
    labels, tasks = list(dict.fromkeys(row.label for row in rows)), list(TASKS)
    return sorted(
        rows,
        key=lambda row: (row.length, tasks.index(row.task), row.mode, labels.index(row.label)),
    )


def _file(bench: RulerBench) -> RowFile[RulerRow]:
    return RowFile(bench.out, RulerRow, lambda row: row.place, fresh=bench.fresh)


def _alike(bench: RulerBench, local: "LocalModel") -> dict[str, Any]:
    """Return the fields that all rows of a file share."""
    more = {"entries": bench.entries, "questions": bench.num_questions}
    return {
        "seed": bench.seed,
        "num_samples": bench.num_samples,
        "source": "" if bench.text is None else bench.text.name,
        **fields_of(bench.settings, local, **more),
    }
