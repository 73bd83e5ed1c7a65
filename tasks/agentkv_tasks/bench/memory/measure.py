"""`agentkv bench memory`: peak memory of whole processes with checked caches."""

import gc
import tempfile
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from agentkv.files import append_line, require_file
from agentkv_tasks.bench.contenders.contender import Contender
from agentkv_tasks.bench.contenders.gguf_file import write_gguf
from agentkv_tasks.bench.contenders.left_out import LeftOut, Say
from agentkv_tasks.bench.contenders.llama_cpp import sizes_of
from agentkv_tasks.bench.contenders.prepare import (
    ContenderBenchSettings,
    check_choice,
    check_contenders,
    make_contenders,
    num_checked,
    random_ids,
)
from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.bench.frame import print_results
from agentkv_tasks.bench.host import require_memory, threads_of_torch
from agentkv_tasks.bench.memory import episode, llama_episode
from agentkv_tasks.bench.memory.episode import MemoryEpisode
from agentkv_tasks.bench.memory.llama_episode import LlamaEpisode
from agentkv_tasks.bench.memory.process import MemoryUse, in_a_process
from agentkv_tasks.bench.memory.rows import MemoryRow
from agentkv_tasks.bench.memory.table import figures, process_table, table
from agentkv_tasks.progress import progress_on
from agentkv_tasks.provenance import commit


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBench(ContenderBenchSettings):
    """Settings of the measurement; the lengths are those of the prompt."""

    num_decoded: int
    """Tokens decoded after the prompt."""

    @property
    def most_tokens(self) -> int:
        """Tokens that the model must be able to read."""
        return max(max(self.lengths) + self.num_decoded, num_checked(self.settings))


def check(bench: MemoryBench) -> None:
    """Check the options without loading a model.

    Raises:
        ValueError: an option is wrong; the message names valid values.
    """
    check_choice(bench)
    require_file(bench.out)
    if bench.out.exists() and not bench.fresh:
        raise BenchError(f"{bench.out} exists already; give another --out, or --fresh")


def run_bench(bench: MemoryBench, console: Console) -> list[MemoryRow]:
    """Check the contenders, run a process for each cache and length, write its row at its end, and
    print the table and a summary in JSON.

    Raises:
        ValueError: as `check`; a budget that a policy does not fit into; too few positions; too
            little memory.
        WrongError: a contender computes wrong results.
        EpisodeError: a process of agentkv or of the baseline was killed.
        KeyboardInterrupt: the rows of finished processes are written and printed.
    """
    check(bench)
    rows: list[MemoryRow] = []
    ended: BaseException | None = None
    try:
        with progress_on(console) as progress:
            _measure(bench, console, progress, rows)
    except (KeyboardInterrupt, RuntimeError) as error:
        ended = error
    shown = [table(rows)] if rows else []
    beside = process_table(rows)
    if beside is not None:
        shown.append(beside)
    if isinstance(ended, RuntimeError):
        console.print(*shown)
        raise ended
    print_results(
        console,
        MemoryRow,
        rows,
        bench.out,
        tables=shown,
        figures=figures(rows) if rows else (),
        interrupted=ended is not None,
        resume="",
    )
    return rows


@dataclass(frozen=True, slots=True)
class _Checked:
    """What is known of contenders that were checked."""

    about: Mapping[str, Any]
    """Fields that all rows share."""
    known: Mapping[str, Mapping[str, Any]]
    """Fields of each contender, by label."""
    distances: Mapping[str, Mapping[str, float]]
    """Distances found by the checks, by label."""
    of_llama: LlamaEpisode | None
    """Task of a contender of llama.cpp with the longest prompt; None without such contenders."""


def _measure(
    bench: MemoryBench, console: Console, progress: Progress, rows: list[MemoryRow]
) -> None:
    """Measure, and add each row to `rows` and to the file."""
    with tempfile.TemporaryDirectory(prefix="agentkv-") as folder:
        found = _checked(bench, Path(folder) / "model.gguf", console, progress)
        # the processes need the memory of the device
        gc.collect()
        torch.cuda.empty_cache()
        bar = progress.add_task("", total=len(bench.lengths) * len(found.known))
        shortest: dict[str, MemoryRow] = {}
        left_out = LeftOut(_shown_on(console))
        for seen in sorted(bench.lengths):
            for label in found.known:
                progress.update(bar, description=f"{label}, {seen} tokens")
                use = None
                with left_out.if_it_fails(
                    label, found.known[label]["kind"], where=f"after {seen} tokens"
                ):
                    use = _use(bench, found, label, seen)
                progress.advance(bar)
                if use is None:
                    continue
                growth, base = use.peak_bytes - use.loaded_bytes, shortest.get(label)
                row = MemoryRow(
                    label=label,
                    seen=seen,
                    num_decoded=bench.num_decoded,
                    growth_bytes=growth,
                    ratio=use.peak_bytes / base.peak_bytes if base else 1.0,
                    growth_ratio=growth / base.growth_bytes if base and base.growth_bytes else 1.0,
                    checked=found.distances[label],
                    **found.known[label],
                    **asdict(use),
                    **found.about,
                )
                shortest.setdefault(label, row)
                append_line(bench.out, row.to_json().encode() + b"\n", fresh=not rows)
                rows.append(row)


def _use(bench: MemoryBench, found: _Checked, label: str, seen: int) -> MemoryUse:
    """Run an episode of a contender in a new process. Raises EpisodeError."""
    if found.known[label]["kind"] == "llama.cpp":
        longest = found.of_llama
        assert longest is not None
        task = replace(longest, label=label, prompt=longest.prompt[:seen])
        return in_a_process(llama_episode.measured, task)
    return in_a_process(
        episode.measured,
        MemoryEpisode(
            bench=bench,
            num_positions=bench.most_tokens,
            label=label,
            seen=seen,
            num_decoded=bench.num_decoded,
        ),
    )


def _checked(
    bench: MemoryBench, model_file: Path, console: Console, progress: Progress
) -> _Checked:
    """Check the contenders. The model is freed at the end, and for llama.cpp it is in
    `model_file`."""
    settings = bench.settings
    with threads_of_torch(bench.threads), torch.inference_mode():
        loaded = bench.load(bench.most_tokens)
        contenders, missing = make_contenders(settings, bench.against, loaded)
        # one full cache, and its copy while it grows
        require_memory(loaded.model, max(bench.lengths), 2)
        say = _shown_on(console)
        for line in missing:
            say(line)
        started_at = commit()
        checked = check_contenders(settings, contenders, loaded.model, [1], progress, say)
        contenders = [each for each in contenders if each.label in checked]
        about = {**bench.about(loaded), "commit": started_at, "command": bench.command}
        of_llama = None
        if any(each.kind == "llama.cpp" for each in contenders):
            if loaded.file is None:
                write_gguf(loaded.served, model_file)
            prompt = random_ids(loaded.model, 1, max(bench.lengths))
            of_llama = LlamaEpisode(
                label="",
                path=loaded.file or model_file,
                sizes=sizes_of(loaded.model),
                prompt=array("i", prompt[0].tolist()),
                chunk=settings.chunk,
                num_decoded=bench.num_decoded,
                num_threads=torch.get_num_threads(),
            )
        return _Checked(about, _known(contenders), checked, of_llama)


def _shown_on(console: Console) -> Say:
    return lambda line: console.print(Text(line), soft_wrap=True)


def _known(contenders: Sequence[Contender]) -> dict[str, dict[str, Any]]:
    return {
        each.label: {
            "kind": each.kind,
            "parameters": dict(each.parameters),
            "form": each.form,
        }
        for each in contenders
    }
