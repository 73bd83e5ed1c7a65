"""`agentkv bench states`: what policies do to the rows of a long stream, and that to the model.

Every policy's cache reads the same tokens one by one, whatever it would have said itself, beside a
full cache of transformers' own, with which each next-token distribution is compared.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.text import Text
from torch import Tensor

from agentkv.build import (
    SCRIPTED,
    budget_for,
    check_model,
    load_run_model,
    make_policy,
    resolved_parameters,
)
from agentkv.config import RunSettings
from agentkv.files import AppendedFile, require_file
from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.bench.host import dtype_name, measured_on
from agentkv_tasks.bench.states.follow import Follower, Truth
from agentkv_tasks.bench.states.rows import StateRow
from agentkv_tasks.bench.states.stream import Stream, of_file, of_world
from agentkv_tasks.bench.states.table import tables
from agentkv_tasks.provenance import commit
from agentkv_tasks.run.preflight import find_browser

if TYPE_CHECKING:
    from agentkv.models.local import LocalModel

BLOCK = 128
"""Tokens that the full cache reads at once, and each policy then one by one: all logits of so many
tokens are held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What is to be measured."""

    settings: RunSettings
    """Of these the model, the policies, the budget and what loads the model count."""
    num_tokens: int
    """Read one by one."""
    num_prompt: int
    """Read at once before."""
    num_parts: int = 8
    """Of the stream, each with a row of its own."""
    text: Path | None = None
    """A file to read instead of the world."""
    out: Path
    """The file of the rows."""
    fresh: bool = False
    """Overwrite it."""


@dataclass(slots=True)
class _Full:
    """Transformers' own cache, which keeps everything."""

    model: Any
    cache: Any

    def prefill(self, ids: Tensor) -> None:
        self.model(input_ids=ids, past_key_values=self.cache, use_cache=True, logits_to_keep=1)

    def read(
        self, ids: Tensor, next_ids: Sequence[int], are_replies: Sequence[bool]
    ) -> list[Truth]:
        """Of each of some more tokens (1, n)."""
        said = self.model(input_ids=ids, past_key_values=self.cache, use_cache=True)
        return [
            Truth.of(logits, next_id, is_reply)
            for logits, next_id, is_reply in zip(said.logits[0], next_ids, are_replies, strict=True)
        ]


def check(bench: Bench) -> None:
    """Everything that can be checked without loading a model.

    Raises:
        ValueError: an option is wrong; the message says what can be used.
        BrowserMissing: the world is to be read, and there is no browser.
    """
    settings = bench.settings
    if settings.model in SCRIPTED:
        raise BenchError(f"--model {settings.model} is a script; give nano, a folder or a hub id")
    check_model(settings)
    for policy in settings.policies:
        resolved_parameters(settings, policy)
    if not 1 <= bench.num_parts <= bench.num_tokens:
        raise BenchError(
            f"--parts {bench.num_parts}: {bench.num_tokens} tokens have 1 to {bench.num_tokens}"
        )
    if bench.out.exists() and not bench.fresh:
        raise BenchError(f"{bench.out} is there already; give another --out, or --fresh")
    if bench.text is None:
        find_browser(settings.browser_path)
    elif not bench.text.is_file():
        raise BenchError(f"--text {bench.text} is not a file")
    require_file(bench.out)


def run_bench(bench: Bench, console: Console) -> list[StateRow]:
    """Measure, write the rows of each part when it is over, and print the tables.

    Raises:
        ValueError: as `check`; a budget that a policy or the model cannot have; a stream too short
            or longer than the model's positions.
    """
    check(bench)
    local = load_run_model(bench.settings)
    assert local is not None, "scripts were refused"
    num_all = bench.num_prompt + bench.num_tokens + 1  # the last one is only predicted
    if local.max_positions is not None and num_all - 1 > local.max_positions:
        raise BenchError(
            f"--prompt {bench.num_prompt} and --tokens {bench.num_tokens} are more than the "
            f"{local.max_positions} positions of {local.name}"
        )
    followers = _followers(bench, local)
    with Progress(console=console, transient=True) as progress:
        stream = _stream(bench, local, num_all, progress)
        rows = _measure(bench, local, stream, followers, progress)
    for table in tables([row for row in rows if row.is_whole]):
        console.print(table)
        console.print()
    console.print(Text(f"rows: {bench.out}"), soft_wrap=True)
    return rows


def _followers(bench: Bench, local: "LocalModel") -> list[Follower]:
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


def _stream(bench: Bench, local: "LocalModel", num_tokens: int, progress: Progress) -> Stream:
    if bench.text is not None:
        return of_file(bench.text, local.template, num_tokens)
    bar = progress.add_task("reading the world", total=num_tokens)
    settings = bench.settings
    stream = of_world(
        settings.world_seed,
        local.template,
        num_tokens,
        browser_path=settings.browser_path,
        on_page=lambda done: progress.update(bar, completed=done),
    )
    progress.remove_task(bar)
    return stream


@torch.inference_mode()
def _measure(
    bench: Bench,
    local: "LocalModel",
    stream: Stream,
    followers: Sequence[Follower],
    progress: Progress,
) -> list[StateRow]:
    from transformers import DynamicCache

    model, device = local.model, local.model.device
    ids = torch.tensor([stream.ids], device=device)
    reference = _Full(model, DynamicCache(config=model.config))
    prompt = ids[:, : bench.num_prompt]
    reference.prefill(prompt)
    for follower in followers:
        follower.prefill(model, prompt)
    about = _about(bench, local, stream)  # before others can change the source
    bar = progress.add_task("reading the stream", total=bench.num_tokens * len(followers))
    rows: list[StateRow] = []
    with contextlib.closing(AppendedFile(bench.out, truncate=True)) as file:

        def write(begin: int, end: int, *, is_whole: bool) -> None:
            place: dict[str, Any] = {
                "first": bench.num_prompt + begin,
                "is_whole": is_whole,
                "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
            }
            new = [follower.row(begin, end, **place, **about) for follower in followers]
            file.append("".join(row.to_json() + "\n" for row in new).encode())
            rows.extend(new)

        for part in range(bench.num_parts):
            begin = part * bench.num_tokens // bench.num_parts
            end = (part + 1) * bench.num_tokens // bench.num_parts
            for start in range(begin, end, BLOCK):
                first = bench.num_prompt + start
                last = bench.num_prompt + min(start + BLOCK, end)
                coming = slice(first + 1, last + 1)
                truths = reference.read(
                    ids[:, first:last], stream.ids[coming], stream.of_replies[coming]
                )
                for follower in followers:
                    progress.update(bar, description=follower.label)
                    for place, truth in enumerate(truths, start=first):
                        follower.step(model, ids[:, place : place + 1], truth)
                    progress.advance(bar, len(truths))
            write(begin, end, is_whole=False)
        write(0, bench.num_tokens, is_whole=True)
    return rows


def _about(bench: Bench, local: "LocalModel", stream: Stream) -> dict[str, Any]:
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
    }
