"""`agentkv bench calls`: the likelihood of right function calls, each policy on the same ones.

Functions are read and compressed before the policy sees a request. Answers are given to the model,
so that all policies read the same conversation.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress

from agentkv.build import load_run_model
from agentkv_tasks.bench.calls.conversations import Conversation, read_conversations
from agentkv_tasks.bench.calls.read import Encoded, Read, encoded, read
from agentkv_tasks.bench.calls.rows import CallsRow
from agentkv_tasks.bench.calls.table import tables
from agentkv_tasks.bench.errors import BenchError
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
from agentkv_tasks.bench.tables import FULL
from agentkv_tasks.provenance import commit

if TYPE_CHECKING:
    from agentkv.models.local import ActingModel, LocalModel


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsBench(ModelBenchSettings):
    """Settings of the measurement. Rows of the file are not measured again.

    Of `settings`, only the model with its dtype and device, the policies, the budget and the chunk
    count.
    """

    source: Path
    """Wheel of `bfcl-eval`, or the folder of its content."""
    entries: int | None = None
    """Entries of the window whose bytes policies with a budget get, instead of the settings'
    budget; None: the settings' budget."""
    num_samples: int
    """Conversations."""
    num_tokens: int
    """Most tokens of a conversation."""


def check(bench: CallsBench) -> list[Conversation]:
    """Check the options without loading a model, and return all conversations.

    Raises:
        ValueError: an option is wrong; the message names valid values.
    """
    labels = check_policies(bench.settings, bench.entries)
    if FULL not in labels:
        raise BenchError(
            f"--policies {','.join(labels)} lacks full, with which the others are compared; give "
            "it as well"
        )
    _file(bench)
    return read_conversations(bench.source)


def run_bench(bench: CallsBench, console: Console) -> list[CallsRow]:
    """Measure, write each row at once, and print the table and a summary in JSON.

    Raises:
        ValueError: as `check`; a budget that a policy does not fit into; more tokens than the model
            has positions, or too few for as many conversations; rows of another measurement.
        KeyboardInterrupt: finished rows are written and printed.
    """
    conversations, file = check(bench), _file(bench)
    with threads_of_torch(bench.threads):
        local = load_run_model(bench.settings)
        assert local is not None, "scripts are refused by `check`"
        chosen = _chosen(bench, local, conversations)
        settings = with_window_bytes(bench.settings, local, bench.entries)
        acting, parameters = acting_models(settings, local)
        alike = _alike(bench, local, chosen)
        file.require_same(
            lambda row: {**alike, "parameters": parameters.get(row.label, row.parameters)}
        )
        return measured(
            console,
            file,
            partial(_measure, bench, chosen, acting, parameters, alike, file),
            tables=tables,
        )


def _chosen(
    bench: CallsBench, local: "LocalModel", conversations: Sequence[Conversation]
) -> list[Encoded]:
    """Return conversations that fit, spread evenly over all that do.

    Raises:
        BenchError: the model has fewer positions, or too few conversations fit.
    """
    positions = local.max_positions
    if positions is not None and bench.num_tokens > positions:
        raise BenchError(
            f"--tokens {bench.num_tokens}: {local.name} has {positions} positions; give at most "
            "that"
        )
    template = words_template(local) or local.template
    found = [encoded(each, template) for each in conversations]
    fitting = [each for each in found if each.num_tokens <= bench.num_tokens]
    if len(fitting) < bench.num_samples:
        least = sorted(each.num_tokens for each in found)[: bench.num_samples]
        raise BenchError(
            f"--tokens {bench.num_tokens}: {len(fitting)} of {len(found)} conversations fit; "
            f"--samples {bench.num_samples} needs --tokens {max(least)}, or give fewer"
        )
    return [fitting[n * len(fitting) // bench.num_samples] for n in range(bench.num_samples)]


def _measure(
    bench: CallsBench,
    chosen: Sequence[Encoded],
    acting: Mapping[str, "ActingModel"],
    parameters: Mapping[str, Any],
    alike: Mapping[str, Any],
    file: RowFile[CallsRow],
    progress: Progress,
) -> Iterator[CallsRow]:
    """Yield the missing rows."""
    about = {**alike, "commit": commit(), "command": bench.command}
    left = [label for label in acting if label not in file.keys]
    bar = progress.add_task("", total=len(left) * len(chosen))
    for label in left:
        progress.update(bar, description=label)
        model, began, found = acting[label], perf_counter(), []
        for each in chosen:
            found.append(read(model.local.model, model.new_cache(), each))
            progress.advance(bar)
        yield CallsRow(
            label=label,
            parameters=parameters[label],
            seconds=round(perf_counter() - began, 1),
            **_summary(found),
            **about,
        )


def _summary(found: Sequence[Read]) -> dict[str, Any]:
    """Return the fields of a row that come from its conversations."""
    nll = [each for read in found for each in read.nll]
    exact = [each for read in found for each in read.exact]
    hot = [each for read in found for each in read.hot_bytes]
    cold = [each for read in found for each in read.cold_bytes]
    return {
        "num_answer_tokens": [len(each.nll) for each in found],
        "hits": [sum(each.hits) for each in found],
        "num_answers": [len(each.exact) for each in found],
        "exact": [sum(each.exact) for each in found],
        "sum_nll": [sum(each.nll) for each in found],
        "hit_share": sum(sum(each.hits) for each in found) / len(nll),
        "exact_share": fmean(exact),
        "nll": fmean(nll),
        "mean_bytes": fmean(hot),
        "peak_bytes": max(each.peak_bytes for each in found),
        "cold_bytes": fmean(cold),
        "all_bytes": fmean(hot) + fmean(cold),
        "look_share": sum(each.num_looks for each in found) / sum(each.num_fed for each in found),
    }


def _file(bench: CallsBench) -> RowFile[CallsRow]:
    return RowFile(bench.out, CallsRow, lambda row: row.label, fresh=bench.fresh)


def _alike(bench: CallsBench, local: "LocalModel", chosen: Sequence[Encoded]) -> dict[str, Any]:
    """Return the fields that all rows of a file share."""
    digest = hashlib.sha256("\n".join(each.digest for each in chosen).encode())
    return {
        "source": bench.source.name,
        "names": [each.name for each in chosen],
        "prompts_sha256": digest.hexdigest(),
        "num_tokens": [each.num_tokens for each in chosen],
        **fields_of(bench.settings, local, entries=bench.entries),
    }
