"""Measure one batch and length: contenders read the prompt once, then decode from it in turns."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch
from rich.progress import Progress
from torch import Tensor

from agentkv_tasks.bench.contenders.contender import Contender, Ours, cold_bytes, pieces
from agentkv_tasks.bench.contenders.left_out import LeftOut, Say
from agentkv_tasks.bench.contenders.verify import check_logits, check_state, keeps_all
from agentkv_tasks.bench.speed.clock import Clock, percentile, undisturbed
from agentkv_tasks.bench.speed.rows import SpeedRow
from agentkv_tasks.bench.speed.split import (
    KEEPING,
    FrameCost,
    SplitStopwatch,
    parts_of,
    watched,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedCell:
    """Tokens and numbers of rounds of one batch and length."""

    ids: Tensor = field(repr=False)
    """(B, n) tokens, the same for all contenders: those seen, and enough for what follows them,
    steps or a page."""
    seen: int
    num_warm_up: int
    num_tokens: int
    """Timed steps."""
    num_page: int = 0
    """Tokens of a page; 0 for none."""
    num_rounds: int
    num_split_rounds: int

    @property
    def prompt(self) -> Tensor:
        """(B, seen) tokens."""
        return self.ids[:, : self.seen]

    @property
    def warm_up(self) -> Sequence[Tensor]:
        """Tokens (B, 1) before the timed ones."""
        return pieces(self.ids[:, self.seen : self.seen + self.num_warm_up], 1)

    @property
    def steps(self) -> Sequence[Tensor]:
        """Timed tokens (B, 1)."""
        first = self.seen + self.num_warm_up
        return pieces(self.ids[:, first : first + self.num_tokens], 1)

    @property
    def page(self) -> Tensor:
        """(B, page) tokens."""
        return self.ids[:, self.seen : self.seen + self.num_page]


def reads_pages(contender: Contender) -> bool:
    """Return False for kvpress, which reads what follows its prompt one by one."""
    return contender.kind != "kvpress"


@dataclass(slots=True)
class Timed:
    """Measurements of one contender."""

    contender: Contender
    prefill_seconds: float
    live_bytes: int
    cold_bytes: int
    kept_rows: float
    checked: dict[str, float]
    attention: str
    decoding: str
    rounds: list[list[float]] = field(default_factory=list)
    """Seconds of every step."""
    ratios: list[float] = field(default_factory=list)
    """Median step relative to the baseline's, per round."""
    whole_ratios: list[float] = field(default_factory=list)
    peak_bytes: int | None = None
    allocator_bytes: int | None = None
    pages: list[float] = field(default_factory=list)
    """Seconds of reading a page, per round."""
    look_shares: list[float] = field(default_factory=list)
    """Share of the timed tokens that looked back, per round; empty for caches that do not."""
    page_ratios: list[float] = field(default_factory=list)
    """The same relative to the baseline's."""
    splits: list[dict[str, float]] = field(default_factory=list)
    """Mean seconds of a step by part, per split round."""

    @property
    def label(self) -> str:
        """Name in rows."""
        return self.contender.label

    def row(self, *, batch: int, **about: Any) -> SpeedRow:
        """Return the row of this contender; `about` holds the fields that all rows share."""
        steps = [1e3 * seconds for of_round in self.rounds for seconds in of_round]
        names = dict.fromkeys(name for split in self.splits for name in split)
        parts = {
            name: 1e3 * percentile([split.get(name, 0.0) for split in self.splits], 0.5)
            for name in names
        }
        split = {name: parts.get(name, 0.0) for name in parts_of(self.decoding)} if parts else {}
        keeping = sum(split[name] for name in KEEPING) if set(KEEPING) <= set(split) else None
        speeds = [batch * len(of_round) / sum(of_round) for of_round in self.rounds]
        return SpeedRow(
            label=self.label,
            kind=self.contender.kind,
            parameters=dict(self.contender.parameters),
            attention=self.attention,
            decoding=self.decoding,
            form=self.contender.form,
            batch=batch,
            num_rounds=len(self.rounds),
            p20_ms=percentile(steps, 0.2),
            p50_ms=percentile(steps, 0.5),
            p80_ms=percentile(steps, 0.8),
            p99_ms=percentile(steps, 0.99),
            tokens_per_second=percentile(speeds, 0.5),
            ratio=percentile(self.ratios, 0.5),
            ratio_least=min(self.ratios),
            ratio_most=max(self.ratios),
            whole_ratio=percentile(self.whole_ratios, 0.5),
            round_p50_ms=[1e3 * percentile(of_round, 0.5) for of_round in self.rounds],
            split_ms=split,
            split_parts_ms=parts,
            keeping_share=None if keeping is None else keeping / sum(split.values()),
            page_ms=1e3 * percentile(self.pages, 0.5) if self.pages else None,
            page_ratio=percentile(self.page_ratios, 0.5) if self.page_ratios else None,
            prefill_seconds=self.prefill_seconds,
            look_share=fmean(self.look_shares) if self.look_shares else None,
            live_bytes=self.live_bytes,
            cold_bytes=self.cold_bytes,
            peak_bytes=self.peak_bytes,
            allocator_bytes=self.allocator_bytes,
            kept_rows=self.kept_rows,
            **about,
        )


def measure_cell(
    cell: SpeedCell, contenders: Sequence[Contender], progress: Progress, say: Say
) -> Iterator[Timed]:
    """Measure all contenders, and yield their results at the end, the baseline first.

    One of another library that fails is left out, and `say` is called with a line. An interrupt
    yields the results of complete rounds and is then raised again.

    Raises:
        WrongError: a contender has a wrong state; raised before anything is timed.
    """
    batch = cell.ids.shape[0]
    turns = len(contenders) * (1 + cell.num_rounds + cell.num_split_rounds)
    bar = progress.add_task("", total=turns)
    clock = Clock(cell.ids.device)
    found: list[Timed] = []
    left_out, where = LeftOut(say), f"after {cell.seen} tokens, batch {batch}"

    def measured() -> list[Timed]:
        return [timed for timed in found if timed.label not in left_out.labels]

    def guarded(contender: Contender) -> AbstractContextManager[None]:
        return left_out.if_it_fails(contender.label, contender.kind, where=where)

    def at(what: str, contender: Contender) -> None:
        text = f"{what} {contender.label}, batch {batch}, {cell.seen} tokens seen"
        progress.update(bar, description=text)

    try:
        expected: Tensor | None = None
        for contender in contenders:
            at("reading:", contender)
            with guarded(contender):
                timed, logits = _reach(cell, contender, clock)
                if expected is None:
                    expected = logits
                elif isinstance(contender, Ours) and keeps_all(contender):
                    check_logits(contender, logits, expected)
                found.append(timed)
            progress.advance(bar)
        for number in range(cell.num_rounds):
            for timed in measured():
                at(f"round {number + 1}:", timed.contender)
                with guarded(timed.contender):
                    timed.rounds.append(_round(cell, timed, clock))
                    if cell.num_page and reads_pages(timed.contender):
                        timed.pages.append(_page(cell, timed.contender, clock))
                progress.advance(bar)
        for _ in range(cell.num_split_rounds):
            for timed in measured():
                at("parts of", timed.contender)
                with guarded(timed.contender):
                    if parts_of(timed.decoding):
                        _split_round(cell, timed, clock)
                progress.advance(bar)
    except KeyboardInterrupt:
        yield from _compared(measured())
        raise
    finally:
        progress.remove_task(bar)
        for contender in contenders:
            contender.end()
    yield from _compared(measured())


def _compared(found: Sequence[Timed]) -> Iterator[Timed]:
    """Keep complete rounds only, and compare all contenders with the baseline, the first one."""
    num_whole = min((len(timed.rounds) for timed in found), default=0)
    if not num_whole:
        return
    num_split = min(len(timed.splits) for timed in found if parts_of(timed.decoding))
    for timed in found:
        del timed.rounds[num_whole:], timed.pages[num_whole:], timed.splits[num_split:]
        del timed.look_shares[num_whole:]
        for mine, base in zip(timed.rounds, found[0].rounds, strict=True):
            timed.ratios.append(percentile(mine, 0.5) / percentile(base, 0.5))
            timed.whole_ratios.append(sum(mine) / sum(base))
        # of the contenders, some read no pages
        both = zip(timed.pages, found[0].pages, strict=False)
        timed.page_ratios.extend(mine / base for mine, base in both)
    yield from found


def _reach(cell: SpeedCell, contender: Contender, clock: Clock) -> tuple[Timed, Tensor]:
    """Read the prompt, save the state, and check it."""
    logits: list[Tensor] = []
    contender.begin(cell.ids.shape[1], cell.ids.shape[0])
    seconds = clock.seconds(lambda: logits.append(contender.feed(cell.prompt)))
    timed = Timed(
        contender,
        prefill_seconds=seconds,
        live_bytes=contender.live_bytes,
        cold_bytes=cold_bytes(contender),
        kept_rows=contender.num_rows,
        checked={},
        attention=_attention(contender),
        decoding=contender.decoding,
    )
    contender.hold()
    if isinstance(contender, Ours):
        timed.checked = check_state(contender, cell.ids[:, cell.seen, None])
    return timed, logits[0]


def _attention(contender: Contender) -> str:
    if isinstance(contender, Ours):
        backends = {layer.backend.name for layer in contender.cache.cache_layers}
        return "+".join(sorted(backends))
    if contender.kind == "llama.cpp":
        return "ggml, fused" if contender.parameters["flash_attention"] else "ggml"
    return str(contender.model.config._attn_implementation)


def _round(cell: SpeedCell, timed: Timed, clock: Clock) -> list[float]:
    contender, device = timed.contender, cell.ids.device
    before = 0
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    contender.resume()
    for token in cell.warm_up:
        contender.feed(token)
    num_looks = _num_looks(contender)
    with undisturbed():
        seconds = [clock.seconds(lambda token=token: contender.feed(token)) for token in cell.steps]  # type: ignore[misc]
    if isinstance(contender, Ours) and contender.looks_back:
        num_tokens = len(cell.steps) * cell.ids.shape[0]
        timed.look_shares.append((_num_looks(contender) - num_looks) / num_tokens)
    timed.peak_bytes = contender.peak_bytes
    if device.type == "cuda":
        given = torch.cuda.max_memory_allocated(device) - before
        timed.allocator_bytes = max(given, timed.allocator_bytes or 0)
    contender.release()
    return seconds


def _num_looks(contender: Contender) -> int:
    return contender.cache.num_looks if isinstance(contender, Ours) else 0


def _page(cell: SpeedCell, contender: Contender, clock: Clock) -> float:
    """Return the seconds of reading a page from the saved state."""
    contender.resume()
    with undisturbed():
        seconds = clock.seconds(lambda: contender.feed(cell.page))
    contender.release()
    return seconds


def _split_round(cell: SpeedCell, timed: Timed, clock: Clock) -> None:
    contender = timed.contender
    contender.resume()
    for token in cell.warm_up:
        contender.feed(token)
    watch = SplitStopwatch(clock.wait, FrameCost.measure(clock.wait))
    with undisturbed(), watched(contender, watch) as feed:
        for token in cell.steps:
            feed(token)
    contender.release()
    count = len(cell.steps)
    timed.splits.append({name: seconds / count for name, seconds in watch.seconds.items()})
