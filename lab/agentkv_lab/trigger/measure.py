"""`agentkv_lab trigger`: which signal finds the tokens at which a look pays, at equal shares.

Tokens of one text train the learned triggers, tokens of another test all signals. What was read is
kept in a folder, so that a measurement goes on where it was ended, and another fit reads nothing.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file, save_file

from agentkv.build import check_language_model, load_run_model, make_policy
from agentkv.cache.cache import Cache
from agentkv.files import write_atomic
from agentkv.models.local import LocalModel
from agentkv.policies.recall import AtRandom
from agentkv_lab.trigger.rank import area, gain_share, interval, resampled, signals
from agentkv_lab.trigger.read import ReadTokens, read_tokens, trial_policy
from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.bench.host import threads_of_torch
from agentkv_tasks.bench.matched import window_bytes
from agentkv_tasks.bench.stream import of_file
from agentkv_tasks.progress import progress_on
from agentkv_tasks.provenance import commit, processor, versions
from agentkv_tasks.settings import RunSettings

SHARES = (0.05, 0.15, 0.3)
"""Shares of the tokens that would look."""
KEPT = 0.15
"""Share of the tokens whose look is kept, at random."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerBench:
    """Settings of the measurement; of `settings`, the model and the first policy count."""

    settings: RunSettings
    train: Path
    test: Path
    num_train: int
    """Continuations of the training text."""
    num_test: int
    reads: bool
    """False: take only the continuations that `work` holds."""
    seen: int
    num_tokens: int
    """Tokens of a continuation."""
    entries: int
    """Entries of the window whose bytes the cache has."""
    threads: int | None
    work: Path
    """Folder of what was read."""
    out: Path
    command: str


@dataclass(frozen=True, slots=True)
class TriggerRow:
    """One signal on the test's tokens."""

    signal: str
    gain: str
    """"kl": decrease of KL(full || policy); "nll": of the next token's negative log-likelihood."""
    area: float
    """Mean share of the gain over all shares of the tokens; 0.5 by chance."""
    shares: tuple[float, ...]
    """Of the tokens."""
    gain_shares: tuple[float, ...]
    """Share of the gain that these tokens have."""
    intervals: tuple[tuple[float, float], ...]
    """95 %, by bootstrap over continuations."""
    over_confidence: tuple[tuple[float, float], ...]
    """95 % intervals of the difference from the share that the lowest confidences have."""


def run_bench(bench: TriggerBench, console: Console) -> list[TriggerRow]:
    """Read what was not read yet, fit, write rows, and print a table.

    Raises:
        ValueError: a policy that does not look back, or a text that is too short.
    """
    check_language_model(bench.settings)
    trial_policy(make_policy(bench.settings.policies[0]))
    bench.work.mkdir(parents=True, exist_ok=True)
    with threads_of_torch(bench.threads):
        train = _read(bench, bench.train, bench.num_train, console)
        test = _read(bench, bench.test, bench.num_test, console)
        counts = [len(each.entropy) for each in test]
        rows, lines = _rows(joined(train), joined(test), counts)
    head = {
        "model": bench.settings.model,
        "policy": bench.settings.policies[0].row_name,
        "train": bench.train.name,
        "test": bench.test.name,
        "train_tokens": sum(len(each.entropy) for each in train),
        "sample_tokens": counts,
        "seen": bench.seen,
        "entries": bench.entries,
        "command": bench.command,
        "commit": commit(),
        "processor": processor(),
        "versions": versions(),
    }
    written = [json.dumps(head), *(json.dumps(asdict(row)) for row in rows), *lines]
    write_atomic(bench.out, ("\n".join(written) + "\n").encode())
    console.print(table(rows))
    return rows


def joined(parts: Sequence[ReadTokens]) -> ReadTokens:
    """Return the tokens of all continuations, one after the other."""
    names = [field.name for field in fields(ReadTokens)]
    return ReadTokens(**{name: torch.cat([getattr(x, name) for x in parts]) for name in names})


def table(rows: Sequence[TriggerRow]) -> Table:
    """Return a line for each signal."""
    found = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    found.add_column("signal")
    for name in ("gain", "area", *(f"{100 * share:g} %" for share in SHARES), "95 %"):
        found.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        low, high = row.intervals[SHARES.index(KEPT)]
        gains = (f"{100 * gain:.0f} %" for gain in row.gain_shares)
        found.add_row(
            row.signal, row.gain, f"{row.area:.2f}", *gains, f"{100 * low:.0f} to {100 * high:.0f}"
        )
    return found


def _rows(
    train: ReadTokens, test: ReadTokens, counts: Sequence[int]
) -> tuple[list[TriggerRow], list[str]]:
    """Return the rows, and a line with the figures of every token."""
    gains = {"kl": -test.divergence.diff().squeeze(1), "nll": -test.nll.diff().squeeze(1)}
    scores, rows = signals(test, train, counts), []
    for kind, gain in gains.items():
        base = [resampled(scores["confidence"], gain, share, counts) for share in SHARES]
        for name, signal in scores.items():
            draws = [resampled(signal, gain, share, counts) for share in SHARES]
            differences = [each - other for each, other in zip(draws, base, strict=True)]
            rows.append(
                TriggerRow(
                    signal=name,
                    gain=kind,
                    area=area(signal, gain),
                    shares=SHARES,
                    gain_shares=tuple(gain_share(signal, gain, share) for share in SHARES),
                    intervals=tuple(map(interval, draws)),
                    over_confidence=tuple(map(interval, differences)),
                )
            )
    known = {**scores, **gains, "full_nll": test.full_nll, "nll_without": test.nll[:, 0]}
    tokens = {name: [round(x, 6) for x in values.tolist()] for name, values in known.items()}
    return rows, [json.dumps({"tokens": tokens})]


def _read(bench: TriggerBench, text: Path, count: int, console: Console) -> list[ReadTokens]:
    """Return the tokens of each continuation of a text."""
    paths = [bench.work / f"{text.stem}-{number:02}.safetensors" for number in range(count)]
    if not bench.reads:
        paths = [path for path in paths if path.exists()]
        if not paths:
            raise BenchError(f"{bench.work} holds nothing of {text.name}; leave --no-read out")
    elif not all(path.exists() for path in paths):
        local = load_run_model(bench.settings)
        assert local is not None, "scripts are refused"
        with progress_on(console) as progress:
            bar = progress.add_task(text.name, total=count)
            for number, path in enumerate(paths):
                if not path.exists():
                    tokens = _read_sample(bench, local, text, count, number)
                    # not a file that a reader could find half written
                    save_file(tokens, path.with_suffix(".part"))
                    path.with_suffix(".part").rename(path)
                progress.advance(bar)
    return [ReadTokens(**load_file(path)) for path in paths]


def _read_sample(
    bench: TriggerBench, local: LocalModel, text: Path, count: int, number: int
) -> dict[str, torch.Tensor]:
    settings, length = bench.settings, bench.seen + bench.num_tokens
    stream = of_file(text, local.template, count, length)
    cache = Cache.for_model(
        local.model,
        policy=trial_policy(make_policy(settings.policies[0])),
        budget=f"{window_bytes(bench.entries, settings, local)}B",
        chunk=settings.chunk,
        dtype=local.dtype_of(settings),
    )
    ids = stream.ids[number * length : (number + 1) * length]
    found = read_tokens(local.model, cache, ids, bench.seen, AtRandom(KEPT, number))
    return {field.name: getattr(found, field.name).contiguous() for field in fields(ReadTokens)}
