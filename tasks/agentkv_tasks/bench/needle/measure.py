"""`agentkv bench needle`: find facts in a long page, by length and depth.

Every policy reads the same pages as an episode would, in chunks, and decodes its reply greedily. A
needle is found if the reply stops with exactly the right values; of a chat model, which answers in
words, if exactly these codes are in its answer.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress

from agentkv.build import (
    load_run_model,
    make_acting,
)
from agentkv.models.adapter import digest_of
from agentkv.policies.entries import PolicyError
from agentkv_env.sites.names import FIRST_TRAINING_SEED
from agentkv_tasks.bench.errors import BenchError, require_positive
from agentkv_tasks.bench.frame import ModelBenchSettings, measured
from agentkv_tasks.bench.host import dtype_name, measured_on, threads_of_torch
from agentkv_tasks.bench.matched import (
    acting_models,
    check_policies,
    window_bytes,
    with_window_bytes,
)
from agentkv_tasks.bench.needle.attempt import attempt_fields, find_needle, pages_digest
from agentkv_tasks.bench.needle.kinds import Kind, One
from agentkv_tasks.bench.needle.maps import heat_maps
from agentkv_tasks.bench.needle.page import (
    NONCE,
    NeedleSpot,
    Question,
    goal_of,
    make_needle,
    require_room,
)
from agentkv_tasks.bench.needle.rows import NeedleRow, Place, needle_file
from agentkv_tasks.bench.needle.table import tables
from agentkv_tasks.bench.needle.words import WordsTemplate, words_template
from agentkv_tasks.bench.row_file import RowFile
from agentkv_tasks.provenance import commit

if TYPE_CHECKING:
    from agentkv.models.local import ActingModel, LocalModel

SPARE = 16
"""Spare positions: the nonce of an episode may take more tokens than the one that was counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedleBench(ModelBenchSettings):
    """Settings of the measurement. Cells of the file are not measured again.

    Of `settings`, only the model with its dtype and device, the policies, the budget, the chunk,
    the pins and the decoding count.
    """

    entries: int | None = None
    """Entries of the window whose bytes policies with a budget get, instead of the settings'
    budget; None: the settings' budget."""
    kind: Kind = One()
    lengths: tuple[int, ...]
    """Tokens of goal and page."""
    depths: tuple[int, ...]
    """Depths in percent."""
    questions: tuple[Question, ...] = ("before",)
    """Where the question stands, before the page or after it; each place has its own rows."""
    num_needles: int
    """Needles of each question, length and depth."""
    seed: int = 0
    """Seed of names and pages."""
    against: str
    """Row name of the policy that the others are compared with."""


def reply_tokens(kind: Kind) -> int:
    """Return the maximum tokens of a reply: a quotation of each line that the answer needs, and the
    answer."""
    return 64 + 32 * kind.num_sought


def check(bench: NeedleBench) -> None:
    """Check the options without loading a model.

    Raises:
        ValueError: an option is wrong; the message names valid values.
    """
    settings = bench.settings
    labels = check_policies(settings, bench.entries)
    if bench.against not in labels:
        raise BenchError(f"--against {bench.against} is not among --policies {','.join(labels)}")
    require_positive("--lengths", bench.lengths)
    if not bench.depths or min(bench.depths) < 0 or max(bench.depths) > 100:
        found = ", ".join(map(str, bench.depths))
        raise BenchError(f"--depths must be percentages, 0 to 100; found {found}")
    if bench.num_needles < 1:
        raise BenchError(f"--needles {bench.num_needles}: expected at least 1")
    if not 0 <= bench.seed < FIRST_TRAINING_SEED:
        raise BenchError(
            f"--seed {bench.seed}: models are trained on names from seed {FIRST_TRAINING_SEED} "
            f"on; give 0 to {FIRST_TRAINING_SEED - 1}"
        )
    needle_file(bench.out, fresh=bench.fresh)


def run_bench(bench: NeedleBench, console: Console) -> list[NeedleRow]:
    """Measure, write each row at once, and print the tables and a summary in JSON.

    Raises:
        ValueError: as `check`; a budget that a policy or the pinned opening does not fit into; a
            length beyond the model's positions or too short for a needle; rows of another
            measurement.
        KeyboardInterrupt: finished rows are written and printed.
    """
    check(bench)
    file = needle_file(bench.out, fresh=bench.fresh)
    with threads_of_torch(bench.threads):
        local = load_run_model(bench.settings)
        assert local is not None, "scripts are refused by `check`"
        in_words = words_template(local)
        if in_words is not None:
            local = replace(local, template=in_words)
        _check_lengths(bench, local)
        bench = replace(bench, settings=with_window_bytes(bench.settings, local, bench.entries))
        acting, parameters = acting_models(bench.settings, local)
        _check_openings(bench, acting)
        alike = _alike(bench, local)
        file.require_same(
            lambda row: {**alike, "parameters": parameters.get(row.label, row.parameters)}
        )
        return measured(
            console,
            file,
            partial(_measure, bench, local, acting, {"parameters": parameters, **alike}, file),
            tables=partial(tables, against=bench.against),
            figures=lambda rows: (heat_maps(rows),),
            order=_sorted,
        )


def _sorted(rows: Sequence[NeedleRow]) -> list[NeedleRow]:
    """Sort rows by question, `before` first, then length, policy and depth."""
    labels = list(dict.fromkeys(row.label for row in rows))
    return sorted(
        rows,
        key=lambda row: (row.question == "after", row.length, labels.index(row.label), row.depth),
    )


def _check_lengths(bench: NeedleBench, local: "LocalModel") -> None:
    """Refuse pages beyond the model's positions, and pages too short for a needle."""
    longest, positions = max(bench.lengths), local.max_positions
    needed = bench.settings.max_new_tokens + SPARE
    if positions is not None and longest + needed > positions:
        raise BenchError(
            f"--lengths {longest}: {local.name} has {positions} positions, of which a reply may "
            f"take {needed}; give at most {positions - needed}"
        )
    for length, depth, question in _places(bench):
        for spot in _spots(bench, length, depth, question):
            require_room(local.template, spot)


def _check_openings(bench: NeedleBench, acting: Mapping[str, "ActingModel"]) -> None:
    """Refuse a budget that the pinned instruction and question do not fit into.

    Raises:
        BenchError: the message says how many tokens are pinned, and what would fit.
    """
    if not bench.settings.pins:
        return
    for label, model in acting.items():
        for length, depth, question in _places(bench):
            for spot in _spots(bench, length, depth, question):
                opening = model.template.opening(goal_of(model.template, spot), NONCE)
                try:
                    model.new_cache().label("goal", len(opening), pinned=True)
                except PolicyError as error:
                    raise BenchError(
                        f"{label}: the instruction and the question are {len(opening)} tokens, "
                        f"which are pinned, and the budget does not hold them ({error}). Give "
                        f"{_what_fits(bench, model.local, label, len(opening))}, or --no-pins, "
                        "which lets the policy evict them"
                    ) from error


def _what_fits(bench: NeedleBench, local: "LocalModel", label: str, num_pinned: int) -> str:
    """Return the option with the least budget of a power of two that holds the pinned tokens,
    among those up to the longest page."""
    [chosen] = [each for each in bench.settings.policies if each.row_name == label]
    entries = 1 << num_pinned.bit_length()
    while entries <= max(bench.lengths):
        num_bytes = window_bytes(entries, bench.settings, local)
        given: str | int = entries if bench.entries is None else f"{num_bytes}B"
        settings = bench.settings.model_copy(update={"budget": given})
        try:
            cache = make_acting(settings, policy=chosen, model=local).new_cache()
            cache.label("goal", num_pinned, pinned=True)
        except PolicyError:
            entries *= 2
        else:
            return f"--{'budget' if bench.entries is None else 'entries'} {entries}"
    return "another policy"


def _places(bench: NeedleBench) -> list[tuple[int, int, Question]]:
    """Return all lengths, depths and questions, shorter pages first."""
    return [
        (length, depth, question)
        for length in sorted(bench.lengths)
        for depth in sorted(bench.depths)
        for question in bench.questions
    ]


def _spots(bench: NeedleBench, length: int, depth: int, question: Question) -> list[NeedleSpot]:
    """Return what decides the needles of one place."""
    return [
        NeedleSpot(
            seed=bench.seed,
            number=number,
            length=length,
            depth=depth,
            question=question,
            kind=bench.kind,
        )
        for number in range(bench.num_needles)
    ]


def _measure(
    bench: NeedleBench,
    local: "LocalModel",
    acting: Mapping[str, "ActingModel"],
    about: Mapping[str, Any],
    file: RowFile[NeedleRow],
    progress: Progress,
) -> Iterator[NeedleRow]:
    """Yield the missing rows of each length, depth, question and policy, shorter pages first."""
    left = _left(bench, file)
    started_at = commit()
    alike = {name: value for name, value in about.items() if name != "parameters"}
    bar = progress.add_task("", total=bench.num_needles * sum(map(len, left.values())))
    for (length, depth, question), labels in left.items():
        spots = _spots(bench, length, depth, question)
        needles = [make_needle(local.template, spot) for spot in spots]
        digest = pages_digest(needles)
        _require_pages(file, (question, length, depth), digest)
        for label in labels:
            progress.update(
                bar, description=f"{label}, {length} tokens, depth {depth}, question {question}"
            )
            attempts = []
            for needle in needles:
                attempts.append(find_needle(acting[label], needle))
                progress.advance(bar)
            yield NeedleRow(
                label=label,
                parameters=about["parameters"][label],
                question=question,
                length=length,
                depth=depth,
                pages_sha256=digest,
                commit=started_at,
                command=bench.command,
                **attempt_fields(needles, attempts),
                **alike,
            )


def _require_pages(file: RowFile[NeedleRow], place: tuple[Question, int, int], digest: str) -> None:
    """Refuse rows of other pages of the same place. Raises BenchError."""
    for row in file.rows:
        if (row.question, row.length, row.depth) == place and row.pages_sha256 != digest:
            raise file.mismatch(f"pages of {row.length} tokens at depth {row.depth} have changed")


def _left(
    bench: NeedleBench, file: RowFile[NeedleRow]
) -> dict[tuple[int, int, Question], list[str]]:
    """Return the policies without a row, by length, depth and question."""
    labels = [policy.row_name for policy in bench.settings.policies]
    left: dict[tuple[int, int, Question], list[str]] = {}
    for length, depth, question in _places(bench):
        wanted: list[Place] = [(question, length, depth, label) for label in labels]
        missing = [place[3] for place in wanted if place not in file.keys]
        if missing:
            left[length, depth, question] = missing
    return left


def _alike(bench: NeedleBench, local: "LocalModel") -> dict[str, Any]:
    """Return the fields that all rows of a file share."""
    settings, is_in_words = bench.settings, isinstance(local.template, WordsTemplate)
    return {
        "model": local.name,
        "weights": digest_of(settings),
        "kind": bench.kind.name,
        "kind_parameters": asdict(bench.kind),
        "seed": bench.seed,
        "num_needles": bench.num_needles,
        "settings": {
            "prefill": settings.prefill,
            "chunk": settings.chunk,
            "decoding": "words" if is_in_words else settings.decoding,
            "pins": settings.pins,
            "dtype": dtype_name(local.model),
            "cache_dtype": local.dtype_of(settings),
            "max_new_tokens": settings.max_new_tokens,
        },
        **measured_on(local.model),
    }
