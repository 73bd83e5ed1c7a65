"""`agentkv bench serve`: time to the first token and bytes of the cache over many turns.

All contenders say the same messages and take turns: each round begins new conversations, and within
a turn the contenders follow one another, beginning with another one each time.
"""

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from agentkv.build import check_language_model, load_run_model, make_policy, resolved_parameters
from agentkv_tasks.bench.frame import ModelBenchSettings, measured
from agentkv_tasks.bench.host import measured_on, threads_of_torch
from agentkv_tasks.bench.serve.contenders import ServeContender, ServeTurn, contenders
from agentkv_tasks.bench.serve.rows import ServeRow
from agentkv_tasks.bench.serve.table import figures, table
from agentkv_tasks.bench.stream import check_source, read_stream
from agentkv_tasks.provenance import commit


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeBench(ModelBenchSettings):
    """Settings of the measurement.

    Of `settings`, the model, its device, the policies, the budget and the chunk count.
    """

    num_turns: int
    num_new: int
    """Tokens of a message."""
    num_reply: int
    """Maximum tokens of a reply."""
    num_rounds: int
    text: Path | None = None
    """File of the messages; None: the world."""


def run_bench(bench: ServeBench, console: Console) -> None:
    """Measure, print the table, and write the rows and their page.

    Raises:
        BenchError: the file of rows exists.
        ValueError: no such model, policy or text.
        KeyboardInterrupt: interrupted; nothing was written.
    """
    check_language_model(bench.settings)
    for policy in bench.settings.policies:
        make_policy(policy)
    check_source(bench.settings, bench.text)
    file = bench.new_file(ServeRow, lambda row: (row.label, row.turn))

    with threads_of_torch(bench.threads):
        measured(
            console,
            file,
            partial(_measure, bench),
            tables=lambda rows: [table(rows)],
            figures=figures,
            resume="; run the same command to begin again",
        )


def _measure(bench: ServeBench, progress: Progress) -> list[ServeRow]:
    settings = bench.settings
    local = load_run_model(settings)
    assert local is not None, "the model is no script"
    template = local.template
    stream = read_stream(settings, bench.text, template, bench.num_turns * bench.num_new, progress)
    texts = [
        template.decode(stream.ids[start : start + bench.num_new])
        for start in range(0, bench.num_turns * bench.num_new, bench.num_new)
    ]
    bar = progress.add_task("talking", total=bench.num_rounds * bench.num_turns)
    turns: dict[str, list[list[ServeTurn]]] = {}
    with (
        tempfile.TemporaryDirectory() as store,
        contenders(local, settings, bench.num_reply, Path(store)) as all_contenders,
    ):
        for each in all_contenders:  # compile what is compiled
            each.begin()
            each.turn(texts[0])
        for number in range(bench.num_rounds):
            _round(all_contenders, texts, number, turns, lambda: progress.advance(bar))
    about: dict[str, Any] = {
        "settings": {
            "num_new": bench.num_new,
            "num_reply": bench.num_reply,
            "num_rounds": bench.num_rounds,
            "chunk": settings.chunk,
        },
        **measured_on(local.model),
        "commit": commit(),
        "model": settings.model,
        "source": stream.source,
        "command": bench.command,
    }
    parameters = {
        policy.row_name: resolved_parameters(settings, policy) for policy in settings.policies
    }
    return [
        _row(label, turn, turns, parameters.get(label, {}), about)
        for turn in range(bench.num_turns)
        for label in turns
    ]


def _round(
    all_contenders: Sequence[ServeContender],
    texts: Sequence[str],
    number: int,
    measured: dict[str, list[list[ServeTurn]]],
    on_turn: Any,
) -> None:
    """Hold one conversation with each contender, and append what was measured."""
    for each in all_contenders:
        each.begin()
        measured.setdefault(each.label, []).append([])
    for turn, text in enumerate(texts):
        first = (turn + number) % len(all_contenders)
        for each in [*all_contenders[first:], *all_contenders[:first]]:
            measured[each.label][-1].append(each.turn(text))
        on_turn()


def _row(
    label: str,
    turn: int,
    measured: dict[str, list[list[ServeTurn]]],
    parameters: Any,
    about: dict[str, Any],
) -> ServeRow:
    own = [turns[turn] for turns in measured[label]]
    base = [turns[turn] for turns in measured["re-read"]]
    seconds = [each.first_token_s for each in own]
    pairs = zip(own, base, strict=True)
    peak = max(each.peak_bytes for each in own)
    return ServeRow(
        label=label,
        parameters=parameters,
        turn=turn + 1,
        num_prompt=own[0].num_prompt,
        num_read=own[0].num_read,
        num_written=own[0].num_written,
        first_token_s=statistics.median(seconds),
        first_token_rounds_s=[round(each, 5) for each in seconds],
        reply_s=statistics.median(each.reply_s for each in own),
        first_token_ratio=statistics.median(a.first_token_s / b.first_token_s for a, b in pairs),
        peak_bytes=peak,
        bytes_ratio=peak / max(each.peak_bytes for each in base),
        cold_bytes=max(each.cold_bytes for each in own),
        **about,
    )
