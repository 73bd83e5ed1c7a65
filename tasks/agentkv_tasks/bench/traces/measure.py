"""`agentkv bench traces`: what the server reads of the prompts of agents.

Every policy and way of edits gets the same requests, one after the other, with the server's own
replies in place of recorded ones.
"""

import contextlib
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from agentkv.build import check_language_model, load_run_model, make_policy, resolved_parameters
from agentkv.dialog.messages import MessageTemplate
from agentkv.models.load import end_ids_of
from agentkv.models.local import LocalModel
from agentkv.serve.command import prepare, serving_in_thread
from agentkv.serve.settings import ServeSettings
from agentkv.settings import PoliciesSettings
from agentkv_tasks.bench.frame import ModelBenchSettings, measured
from agentkv_tasks.bench.host import measured_on, threads_of_torch
from agentkv_tasks.bench.traces.replay import Replay, Replayed
from agentkv_tasks.bench.traces.rows import TraceRow
from agentkv_tasks.bench.traces.table import table
from agentkv_tasks.bench.traces.trace import TraceRequest, made, read_trace
from agentkv_tasks.provenance import commit
from agentkv_tasks.settings import RunSettings


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


def run_bench(bench: TraceBench, console: Console) -> None:
    """Measure, print the table, and write the rows and their page.

    Raises:
        BenchError: the file of rows exists, or the trace is none.
        ValueError: no such model or policy.
        KeyboardInterrupt: interrupted; what was measured is written.
    """
    check_language_model(bench.settings)
    for policy in bench.settings.policies:
        make_policy(policy)
    requests = _requests(bench)
    file = bench.new_file(TraceRow, lambda row: (row.policy, row.edits, row.kind))
    with threads_of_torch(bench.threads):
        measured(
            console,
            file,
            partial(_measure, bench, requests),
            tables=lambda rows: [table(rows)],
            resume="; run the same command to begin again",
        )


def _requests(bench: TraceBench) -> list[TraceRequest]:
    if bench.trace is not None:
        return read_trace(bench.trace)
    return list(
        made(
            bench.num_sessions,
            seed=bench.seed,
            num_turns=bench.num_turns,
            num_words=bench.num_words,
        )
    )


def _measure(
    bench: TraceBench, requests: Sequence[TraceRequest], progress: Progress
) -> Iterator[TraceRow]:
    settings = bench.settings
    local = load_run_model(settings)
    assert local is not None, "the model is no script"
    template = MessageTemplate(
        local.source_tokenizer, end_ids=end_ids_of(local.model), texts=local.template.texts
    )
    about: dict[str, Any] = {
        "settings": {
            "num_turns": bench.num_turns,
            "num_words": bench.num_words,
            "num_reply": bench.num_reply,
            "seed": bench.seed,
            "chunk": settings.chunk,
        },
        **measured_on(local.model),
        "commit": commit(),
        "model": settings.model,
        "source": "made" if bench.trace is None else bench.trace.name,
        "command": bench.command,
    }
    ways = [(policy, edits) for policy in settings.policies for edits in bench.edits]
    bar = progress.add_task("replaying", total=len(ways) * len(requests))
    for policy, edits in ways:
        name, answers = policy.row_name, []
        # each way has a server of its own, which knows nothing of the others' sessions
        with _serving(settings, local) as port:
            replay = Replay(
                ("127.0.0.1", port), template, policy=name, edits=edits, num_reply=bench.num_reply
            )
            for request in requests:
                answers.append((request, replay.send(request)))
                progress.advance(bar)
        parameters = resolved_parameters(settings, policy)
        about |= {"policy": name, "edits": edits, "parameters": parameters}
        yield from _rows(answers, about)


@contextlib.contextmanager
def _serving(run: RunSettings, local: LocalModel) -> Iterator[int]:
    """Serve a model under the policies of a run; yield the port."""
    with tempfile.TemporaryDirectory() as store:
        settings = ServeSettings(
            **run.chosen(PoliciesSettings), port=0, store=Path(store), name=Path(run.model).name
        )
        with prepare(local, settings) as api, serving_in_thread(api, settings) as port:
            yield port


def _rows(
    answers: Sequence[tuple[TraceRequest, Replayed]], about: dict[str, Any]
) -> Iterator[TraceRow]:
    """Yield a row for each kind of session."""
    for kind in dict.fromkeys(request.kind for request, _ in answers):
        own = [answer for request, answer in answers if request.kind == kind]
        seconds = sorted(each.first_token_s for each in own)
        yield TraceRow(
            kind=kind,
            num_sessions=len({request.session for request, _ in answers if request.kind == kind}),
            num_requests=len(own),
            num_prompt=sum(each.num_prompt for each in own),
            num_read=sum(each.num_read for each in own),
            num_prefix_read=sum(each.num_prefix_read for each in own),
            ways=dict(Counter(each.how for each in own)),
            first_token_s=statistics.median(seconds),
            first_token_p95_s=seconds[min(len(seconds) - 1, int(0.95 * len(seconds)))],
            **about,
        )
