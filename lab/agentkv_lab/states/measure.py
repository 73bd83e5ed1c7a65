"""`agentkv_lab states`: follow the entries of a long stream under each policy.

Every cache reads the same tokens one by one. Its next-token distributions are compared with those
of transformers' full cache.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from agentkv.build import (
    budget_for,
    check_language_model,
    load_run_model,
    make_policy,
    resolved_parameters,
)
from agentkv.cache.hf.compat import CACHE
from agentkv.files import require_file
from agentkv_lab.states.follow import Follower, ReferenceStep
from agentkv_lab.states.rows import StateRow
from agentkv_lab.states.table import figures, tables
from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.bench.frame import ModelBenchSettings, measured
from agentkv_tasks.bench.host import dtype_name, measured_on
from agentkv_tasks.bench.row_file import RowFile
from agentkv_tasks.bench.stream import Stream, check_source, read_stream
from agentkv_tasks.provenance import commit

if TYPE_CHECKING:
    from agentkv.models.local import LocalModel

BLOCK = 128
"""Tokens that the full cache reads at once before each policy reads them one by one; the logits of
all of them are held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBench(ModelBenchSettings):
    """Settings of the measurement.

    Of `settings`, only the model with its dtype and device, the policies and the budget count.
    """

    num_tokens: int
    """Tokens read one by one."""
    num_prompt: int
    """Tokens read at once before those."""
    num_parts: int = 8
    """Parts of the stream, each with its own row."""
    text: Path | None = None
    """File to read instead of the world."""


@dataclass(slots=True)
class _Full:
    """Transformers' DynamicCache, which keeps everything."""

    model: Any
    cache: Any

    def prefill(self, ids: Tensor) -> None:
        self.model(input_ids=ids, use_cache=True, logits_to_keep=1, **{CACHE: self.cache})

    def read(
        self, ids: Tensor, next_ids: Sequence[int], are_replies: Sequence[bool]
    ) -> list[ReferenceStep]:
        """Read tokens (1, n) and return the reference of each."""
        outputs = self.model(input_ids=ids, use_cache=True, **{CACHE: self.cache})
        return [
            ReferenceStep.of(logits, next_id, is_reply)
            for logits, next_id, is_reply in zip(
                outputs.logits[0], next_ids, are_replies, strict=True
            )
        ]


def check(bench: StateBench) -> None:
    """Check the options without loading a model.

    Raises:
        ValueError: an option is wrong; the message names valid values.
        BrowserMissing: the stream needs a browser, and none was found.
    """
    settings = bench.settings
    check_language_model(settings)
    for policy in settings.policies:
        resolved_parameters(settings, policy)
    if not 1 <= bench.num_parts <= bench.num_tokens:
        raise BenchError(
            f"--parts {bench.num_parts}: expected 1 to {bench.num_tokens}, the number of tokens"
        )
    if bench.out.exists() and not bench.fresh:
        raise BenchError(f"{bench.out} exists already; give another --out, or --fresh")
    check_source(settings, bench.text)
    require_file(bench.out)


def run_bench(bench: StateBench, console: Console) -> list[StateRow]:
    """Measure, write the rows of each part at its end, and print the tables.

    Raises:
        ValueError: as `check`; a budget that a policy does not fit into; a stream that is too
            short, or longer than the model's positions.
    """
    check(bench)
    local = load_run_model(bench.settings)
    assert local is not None, "scripts are refused by `check`"
    num_all = bench.num_prompt + bench.num_tokens + 1  # the last token is only predicted
    if local.max_positions is not None and num_all - 1 > local.max_positions:
        raise BenchError(
            f"--prompt {bench.num_prompt} and --tokens {bench.num_tokens} are more than the "
            f"{local.max_positions} positions of {local.name}"
        )
    followers = _followers(bench, local)
    file = RowFile(bench.out, StateRow, _place, fresh=True)

    def measure(progress: Progress) -> Iterator[StateRow]:
        stream = read_stream(bench.settings, bench.text, local.template, num_all, progress)
        return _measure(bench, local, stream, followers, progress)

    measured(
        console,
        file,
        measure,
        tables=tables,
        figures=lambda _: figures(file.rows),
        order=lambda rows: [row for row in rows if row.is_whole],
        resume="; run the same command with --fresh to begin again",
    )
    return file.rows


def _place(row: StateRow) -> tuple[str, int, bool]:
    return row.label, row.first, row.is_whole


def _followers(bench: StateBench, local: "LocalModel") -> list[Follower]:
    from agentkv.cache.cache import Cache

    settings, followers = bench.settings, []
    for chosen in settings.policies:
        policy = make_policy(chosen)
        cache = Cache.for_model(
            local.model,
            policy=policy,
            budget=budget_for(settings, policy),
            prefill=settings.prefill,
            chunk=settings.chunk,
        )
        parameters = resolved_parameters(settings, chosen)
        followers.append(Follower(chosen.row_name, parameters, cache))
    return followers


@torch.inference_mode()
def _measure(
    bench: StateBench,
    local: "LocalModel",
    stream: Stream,
    followers: Sequence[Follower],
    progress: Progress,
) -> Iterator[StateRow]:
    from transformers import DynamicCache

    model, device = local.model, local.model.device
    ids = torch.tensor([stream.ids], device=device)
    reference = _Full(model, DynamicCache(config=model.config))
    prompt = ids[:, : bench.num_prompt]
    reference.prefill(prompt)
    for follower in followers:
        follower.prefill(model, prompt)
    about = _about(bench, local, stream)  # before the source tree can change
    bar = progress.add_task("reading the stream", total=bench.num_tokens * len(followers))

    def rows(begin: int, end: int, *, is_whole: bool) -> Iterator[StateRow]:
        for follower in followers:
            first = bench.num_prompt + begin
            yield follower.row(begin, end, first=first, is_whole=is_whole, **about)

    for part in range(bench.num_parts):
        begin = part * bench.num_tokens // bench.num_parts
        end = (part + 1) * bench.num_tokens // bench.num_parts
        for start in range(begin, end, BLOCK):
            first = bench.num_prompt + start
            last = bench.num_prompt + min(start + BLOCK, end)
            coming = slice(first + 1, last + 1)
            references = reference.read(
                ids[:, first:last], stream.ids[coming], stream.of_replies[coming]
            )
            for follower in followers:
                progress.update(bar, description=follower.label)
                for place, reference_step in enumerate(references, start=first):
                    follower.step(model, ids[:, place : place + 1], reference_step)
                progress.advance(bar, len(references))
        yield from rows(begin, end, is_whole=False)
    yield from rows(0, bench.num_tokens, is_whole=True)


def _about(bench: StateBench, local: "LocalModel", stream: Stream) -> dict[str, Any]:
    """Return the fields that all rows of a file share."""
    machine = measured_on(local.model)
    return {
        "model": bench.settings.model,
        "source": stream.source,
        "stream_sha256": stream.digest,
        "num_prompt": bench.num_prompt,
        "settings": {
            "prefill": bench.settings.prefill,
            "chunk": bench.settings.chunk,
            "dtype": dtype_name(local.model),
            "num_tokens": bench.num_tokens,
        },
        "versions": machine["versions"],
        "device": machine["device"],
        "commit": commit(),
        "command": bench.command,
    }
