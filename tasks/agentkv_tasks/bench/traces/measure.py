"""`agentkv bench traces`: what servers read of the prompts of agents.

Each contender gets the same requests, with its own replies in place of recorded ones. All of them
answer a request before the next one is sent, beginning with another one each time.
"""

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from agentkv.build import check_language_model, load_run_model, make_policy
from agentkv.dialog.messages import MessageTemplate
from agentkv.models.load import end_ids_of
from agentkv.models.local import LocalModel
from agentkv_tasks.bench.frame import ModelBenchSettings, measured
from agentkv_tasks.bench.host import measured_on, threads_of_torch
from agentkv_tasks.bench.row_file import RowFile
from agentkv_tasks.bench.traces.contenders import TraceContender, check_against, contenders
from agentkv_tasks.bench.traces.replay import Replay, Replayed
from agentkv_tasks.bench.traces.rows import TraceRow
from agentkv_tasks.bench.traces.table import table
from agentkv_tasks.bench.traces.trace import TraceRequest, made, read_trace
from agentkv_tasks.provenance import commit

GROUP = 20
"""Made sessions of a group, four of each kind: each group is written when it ends, and begins with
servers that know nothing (our choice)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceBench(ModelBenchSettings):
    """Settings of the measurement.

    Of `settings`, the model, its device, the policies, the budget and the chunk count.
    """

    edits: Sequence[str]
    num_sessions: int
    num_turns: int
    """Median turns of a made session."""
    num_words: int
    """Median words of an output in a made session."""
    num_reply: int
    """Maximum tokens of a reply."""
    seed: int
    trace: Path | None = None
    """File of the requests; None: they are made."""
    against: Sequence[str] = ()
    """Contenders besides agentkv."""
    memory: str = "4GiB"
    """Bytes of all entries that a server may have in memory."""
    context: int | None = None
    """Tokens of the context that llama.cpp's server reserves; None: the model's positions."""


def run_bench(bench: TraceBench, console: Console) -> None:
    """Measure, print the table, and write the rows of each group of sessions and their page.

    Raises:
        BenchError: the file has rows of another measurement, the trace is none, or a contender
            cannot be started.
        ValueError: no such model or policy.
        KeyboardInterrupt: interrupted; the groups that ended are written.
    """
    check_language_model(bench.settings)
    for policy in bench.settings.policies:
        make_policy(policy)
    labels = check_against(bench.against, bench.settings)
    groups = _groups(bench)
    file = RowFile(bench.out, TraceRow, _key, fresh=bench.fresh)
    with threads_of_torch(bench.threads):
        local = load_run_model(bench.settings)
        assert local is not None, "the model is no script"
        found = contenders(
            local, bench.settings, bench.edits, labels, bench.memory, context=bench.context
        )
        alike = _alike(bench, local)
        parameters = {each.label: each.parameters for each in found}
        file.require_same(
            lambda row: {**alike, "parameters": parameters.get(row.label, row.parameters)}
        )
        measured(
            console,
            file,
            partial(_measure, bench, local, found, groups, alike, file),
            tables=lambda rows: [table(rows)],
        )


def _key(row: TraceRow) -> tuple[str, str, str]:
    return row.label, row.edits, row.session


def _groups(bench: TraceBench) -> list[list[TraceRequest]]:
    if bench.trace is not None:
        return [read_trace(bench.trace)]
    numbers = range(bench.num_sessions)
    return [
        list(
            made(
                numbers[first : first + GROUP],
                seed=bench.seed,
                num_turns=bench.num_turns,
                num_words=bench.num_words,
            )
        )
        for first in numbers[::GROUP]
    ]


def _alike(bench: TraceBench, local: LocalModel) -> dict[str, Any]:
    """Return the fields that all rows of a file share."""
    file = None if bench.trace is None else hashlib.sha256(bench.trace.read_bytes()).hexdigest()
    return {
        "settings": {
            "num_turns": bench.num_turns,
            "num_words": bench.num_words,
            "num_reply": bench.num_reply,
            "seed": bench.seed,
            "chunk": bench.settings.chunk,
            "memory": bench.memory,
            "context": bench.context,
            "group": GROUP,
            "trace_sha256": file,
        },
        **measured_on(local.model),
        "model": bench.settings.model,
        "source": "made" if bench.trace is None else bench.trace.name,
    }


def _measure(
    bench: TraceBench,
    local: LocalModel,
    found: Sequence[TraceContender],
    groups: Sequence[Sequence[TraceRequest]],
    alike: Mapping[str, Any],
    file: RowFile[TraceRow],
    progress: Progress,
) -> Iterator[TraceRow]:
    """Yield the rows of the groups that lack some."""
    template = MessageTemplate(
        local.source_tokenizer, end_ids=end_ids_of(local.model), texts=local.template.texts
    )
    about = {**alike, "commit": commit(), "command": bench.command}
    left = [
        (number, requests)
        for number, requests in enumerate(groups)
        if not _keys(found, requests) <= file.keys
    ]
    bar = progress.add_task("replaying", total=sum(len(requests) for _, requests in left))
    for number, requests in left:
        with contextlib.ExitStack() as servers:
            replays = [
                Replay(
                    each,
                    servers.enter_context(each.serving()),
                    template,
                    num_reply=bench.num_reply,
                )
                for each in found
            ]
            answers: list[list[Replayed]] = [[] for _ in replays]
            for turn, request in enumerate(requests):
                for place in range(len(replays)):
                    place = (place + turn) % len(replays)
                    answers[place].append(replays[place].send(request))
                progress.advance(bar)
            for replay, own in zip(replays, answers, strict=True):
                pairs = list(zip(requests, own, strict=True))
                yield from _rows(replay, pairs, {**about, "group": number})


def _keys(
    found: Sequence[TraceContender], requests: Sequence[TraceRequest]
) -> set[tuple[str, str, str]]:
    return {(each.label, each.edits, request.session) for each in found for request in requests}


def _rows(
    replay: Replay, answers: Sequence[tuple[TraceRequest, Replayed]], about: Mapping[str, Any]
) -> Iterator[TraceRow]:
    """Yield a row for each conversation of a group."""
    contender, used = replay.contender, replay.server.used()
    for session, kind in dict.fromkeys((request.session, request.kind) for request, _ in answers):
        own = [answer for request, answer in answers if request.session == session]
        yield TraceRow(
            label=contender.label,
            edits=contender.edits,
            session=session,
            kind=kind,
            parameters=contender.parameters,
            num_prompt=[each.num_prompt for each in own],
            num_read=[each.num_read for each in own],
            num_prefix_read=[each.num_prefix_read for each in own],
            how=[each.how for each in own],
            first_token_s=[round(each.first_token_s, 5) for each in own],
            sum_prompt=sum(each.num_prompt for each in own),
            sum_read=sum(each.num_read for each in own),
            sum_prefix_read=sum(each.num_prefix_read for each in own),
            memory_bytes=contender.memory_bytes,
            reserved_bytes=contender.reserved_bytes,
            cache_peak_bytes=used.cache_peak_bytes,
            process_peak_bytes=used.process_peak_bytes,
            num_spills=used.num_spills,
            **about,
        )
