"""`agentkv_lab perturbation`: how far the attention output of the first token after a prompt moves
when a policy has compressed the prompt.

A cache under each policy reads the prompt whole and evicts once. What its heads kept is held
against the attention of the next token over everything, layer by layer with the same inputs: the L1
norm of what each head's output lacks after the output projection. Then the next token is read with
the compressed cache, where errors of earlier layers add up, and its hidden states are compared.

Sources: CriticalKV (arXiv 2502.03805), definition 1, theorem 2, figures 2 and 3; Ada-KV (arXiv
2407.11550), equation 8 and theorem 2.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text
from torch import Tensor

from agentkv.build import make_policy
from agentkv.cache.cache import Cache
from agentkv.policies.policy import Policy
from agentkv_lab.outputs import LayerOutput, output_without, read_outputs
from agentkv_lab.texts import Sample, TextBench, TextRow, measure_texts, short, with_interval
from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.bench.tables import bench_table

if TYPE_CHECKING:
    from agentkv.models.local import LocalModel

_CRITICAL = "critical-"
_CLOSE = 1e-5
"""Relative error of a bound that float32 may cause."""
_CAPTION = (
    "Of the first token after the prompt, {budget} entries per layer and head kept. lower: % of "
    "the query heads (of the KV groups) whose output moves less than under the base, with a 95 % "
    "interval over the samples. ratio: sum of the L1 distances relative to the base. last: L1 "
    "distance of the last hidden state, relative. The base of a critical policy is the same "
    "without critical-; else it is the first. {what}"
)
_BOUNDED = (
    "loss: L1 distance of a layer's output, mean over layers and samples. Ada-KV, CriticalKV: % of "
    "the layers and of the query heads whose loss is within the bound, and loss as % of the bound, "
    "mean. tighter: % of the layers whose bound by Ada-KV is below the base's."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PerturbationBench(TextBench):
    """Settings of the measurement."""

    budgets: tuple[int, ...]
    """Entries per layer and head that stay, on average over the heads of a layer."""


@dataclass(frozen=True, slots=True)
class LayerLoss:
    """What one layer's output loses with the entries that a policy keeps."""

    by_head: tuple[float, ...]
    """L1 distance of each query head's output, after the projection."""
    by_group: tuple[float, ...]
    """The same of the query heads of each key-value head together."""
    layer: float
    """The same of the whole layer."""
    bound: float
    """Ada-KV's bound of `layer`."""
    bound_by_head: tuple[float, ...]
    """CriticalKV's bound of `by_head`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PerturbationRow(TextRow):
    """One policy with one budget. Lists are by sample, then by layer."""

    BENCH: ClassVar[str] = "perturbation"
    SUMMARY: ClassVar[tuple[str, ...]] = ("label", "budget")

    budget: int
    by_head: Sequence[Sequence[Sequence[float]]]
    by_group: Sequence[Sequence[Sequence[float]]]
    layer: Sequence[Sequence[float]]
    bound: Sequence[Sequence[float]]
    bound_by_head: Sequence[Sequence[Sequence[float]]]
    hidden: Sequence[Sequence[float]]
    """L1 distance of the hidden state after each layer, read with the compressed cache."""

    @property
    def place(self) -> tuple[int, str]:
        """The key of the row."""
        return self.budget, self.label


def loss_of(layer: LayerOutput, kept: Tensor) -> LayerLoss:
    """Return what a layer's output loses, and how much it may at most.

    Args:
        kept: (H, T) bool: entries that each key-value head keeps.
    """
    lost = output_without(layer, kept)  # (H, G, d)
    weights, norms = layer.weights, layer.projected.abs().sum(dim=-1)  # (H, G, T)
    mine = kept[:, None]
    held = (weights * mine).sum(dim=-1)  # (H, G)
    # theorem 2 of CriticalKV
    weighted = weights * norms
    bounds = weighted.sum(dim=-1) - (2 - 1 / held) * (weighted * mine).sum(dim=-1)
    # theorem 2 of Ada-KV: 2 h C - 2 C (attention held by all h heads)
    bound = 2 * norms.max() * (held.numel() - held.sum())
    return LayerLoss(
        by_head=tuple(lost.abs().sum(dim=-1).flatten().tolist()),
        by_group=tuple(lost.sum(dim=1).abs().sum(dim=-1).tolist()),
        layer=float(lost.sum(dim=(0, 1)).abs().sum()),
        bound=float(bound),
        bound_by_head=tuple(bounds.flatten().tolist()),
    )


def compressed(model: Any, policy: Policy, budget: int, ids: Sample) -> Cache:
    """Return a cache that has read a prompt whole and evicted once."""
    cache = Cache.for_model(model, policy=policy, budget=budget, prefill="whole")
    cache.feed(model, torch.tensor([ids], device=model.device))
    return cache


def kept_by(cache: Cache, layer: int, num_heads: int, num_entries: int) -> Tensor:
    """Return the entries that a cache of one sequence holds, and all later ones.

    Returns:
        (num_heads, num_entries) bool.
    """
    kept = torch.zeros(num_heads, num_entries, dtype=torch.bool)
    for head, positions in enumerate(cache.kept(layer)[0]):
        kept[head, positions.cpu()] = True
    kept[:, cache.seen :] = True
    return kept


def hidden_states(model: Any, cache: Cache, token: int) -> Tensor:
    """Feed a token; return its hidden state after each layer, (layers, d) float32."""
    ids = torch.tensor([[token]], device=model.device)
    outputs = model(input_ids=ids, past_key_values=cache, use_cache=True, output_hidden_states=True)
    return torch.stack([each[0, -1].float() for each in outputs.hidden_states[1:]])


@torch.inference_mode()
def run_bench(bench: PerturbationBench, console: Console) -> list[PerturbationRow]:
    """Measure, write the rows, and print the tables; raises as `measure_texts`."""
    policies = {each.row_name: make_policy(each) for each in bench.settings.policies}
    for label, policy in policies.items():
        if not policy.gate.evicts or policy.precision.format is not None:
            raise BenchError(f"--policies {label}: give policies that evict and do not quantize")
    if max(bench.budgets) >= bench.seen:
        raise BenchError(f"--budgets {max(bench.budgets)}: expected less than --seen {bench.seen}")

    def measure(
        local: "LocalModel", samples: Sequence[Sample], about: Mapping[str, Any], progress: Progress
    ) -> Iterator[PerturbationRow]:
        model = local.model
        places = [(budget, label) for budget in bench.budgets for label in policies]
        bar = progress.add_task("", total=len(samples) * len(places))
        losses: dict[tuple[int, str], list[list[LayerLoss]]] = {place: [] for place in places}
        hidden: dict[tuple[int, str], list[list[float]]] = {place: [] for place in places}
        for ids in samples:
            prompt, token = ids[:-1], ids[-1]
            layers = list(read_outputs(model, ids, 1))
            full = Cache.for_model(model, policy="full", prefill="whole")
            full.feed(model, torch.tensor([prompt], device=model.device))
            wanted = hidden_states(model, full, token)
            for budget, label in places:
                progress.update(bar, description=f"{label}, {budget}")
                cache = compressed(model, policies[label], budget, prompt)
                losses[budget, label].append(
                    [
                        loss_of(layer, kept_by(cache, i, layer.weights.shape[0], len(ids)))
                        for i, layer in enumerate(layers)
                    ]
                )
                moved = hidden_states(model, cache, token) - wanted
                hidden[budget, label].append(moved.abs().sum(dim=-1).tolist())
                progress.advance(bar)
        for place in places:
            found, (budget, label) = losses[place], place
            yield PerturbationRow(
                label=label,
                budget=budget,
                by_head=[[short(each.by_head) for each in sample] for sample in found],
                by_group=[[short(each.by_group) for each in sample] for sample in found],
                layer=[short([each.layer for each in sample]) for sample in found],
                bound=[short([each.bound for each in sample]) for sample in found],
                bound_by_head=[[short(each.bound_by_head) for each in sample] for sample in found],
                hidden=[short(sample) for sample in hidden[place]],
                **about,
            )

    return measure_texts(bench, PerturbationRow, measure, tables, console)


def base_of(row: PerturbationRow, rows: Sequence[PerturbationRow]) -> PerturbationRow:
    """Return the row that a row is compared with, of the same budget: the same policy without
    CriticalKV's selection, or the first one."""
    alike = {each.label: each for each in rows if each.budget == row.budget}
    plain = row.label.replace(_CRITICAL, "")
    is_paired = plain != row.label and plain in alike
    return alike[plain] if is_paired else next(iter(alike.values()))


def share_lower(
    found: Sequence[Sequence[Sequence[float]]], base: Sequence[Sequence[Sequence[float]]]
) -> tuple[float, float, float]:
    """Return the share of the heads whose loss is below the base's, and its 95 % interval over the
    samples."""
    shares = [
        fmean(a < b for a, b in zip(_flat(own), _flat(of_base), strict=True))
        for own, of_base in zip(found, base, strict=True)
    ]
    return with_interval(lambda drawn: fmean(shares[i] for i in drawn), len(shares))


def _flat(layers: Sequence[Sequence[float]]) -> list[float]:
    return [each for layer in layers for each in layer]


def tables(rows: Sequence[PerturbationRow]) -> Iterator[Table]:
    """Yield the perturbations, and the bounds."""
    rows = sorted(rows, key=lambda row: row.budget)
    budgets = " or ".join(map(str, dict.fromkeys(row.budget for row in rows)))
    moved = bench_table(
        _CAPTION.format(budget=budgets, what=rows[-1].what),
        *("lower", "95 %", "groups", "ratio", "last"),
        length="kept",
        label="policy",
    )
    bounded = bench_table(
        _BOUNDED, "loss", "Ada-KV", "CriticalKV", "tighter", length="kept", label="policy"
    )
    for row in rows:
        base = base_of(row, rows)
        cells = ["-"] * 5
        tighter = "-"
        if row is not base:
            value, low, high = share_lower(row.by_head, base.by_head)
            groups = share_lower(row.by_group, base.by_group)[0]
            cells = [
                f"{100 * value:.0f}%",
                f"{100 * low:.0f} to {100 * high:.0f}",
                f"{100 * groups:.0f}%",
                f"{_sum(row.by_head) / _sum(base.by_head):.3f}",
                f"{sum(x[-1] for x in row.hidden) / sum(x[-1] for x in base.hidden):.3f}",
            ]
            pairs = list(zip(_flat(row.bound), _flat(base.bound), strict=True))
            tighter = f"{100 * fmean(a < b for a, b in pairs):.0f}%"
        moved.add_row(str(row.budget), Text(row.label), *cells)
        bounded.add_row(
            str(row.budget),
            Text(row.label),
            f"{fmean(_flat(row.layer)):.2f}",
            _within(_flat(row.layer), _flat(row.bound)),
            _within(
                [x for sample in row.by_head for x in _flat(sample)],
                [x for sample in row.bound_by_head for x in _flat(sample)],
            ),
            tighter,
        )
    yield moved
    yield bounded


def _within(losses: Sequence[float], bounds: Sequence[float]) -> str:
    pairs = list(zip(losses, bounds, strict=True))
    within = fmean(loss <= bound * (1 + _CLOSE) + _CLOSE for loss, bound in pairs)
    part = fmean(loss / bound for loss, bound in pairs if bound > 0)
    return f"{100 * within:.0f}, {100 * part:.0f}%"


def _sum(samples: Sequence[Sequence[Sequence[float]]]) -> float:
    return sum(sum(_flat(sample)) for sample in samples)
