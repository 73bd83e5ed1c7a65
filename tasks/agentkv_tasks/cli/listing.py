"""Output of `agentkv policies` and `agentkv plan`."""

import inspect
import textwrap
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentkv.build import PARTS
from agentkv.defaults import POLICY
from agentkv.plan import CachePlan, PlannedModel
from agentkv.policies.gates import Unbounded
from agentkv.policies.policy import Policy
from agentkv.policies.recall import LookBack
from agentkv.policies.registry import NAMED, PRESETS, about, parameters_of, policy
from agentkv.terminal import UNITS, in_unit


def print_policies(console: Console) -> None:
    """Print a line for each policy, in groups."""
    groups: dict[str, list[str]] = {group: [] for group in _GROUPS.values()}
    for name in NAMED:
        made = policy(name)
        evicts, looks = not isinstance(made.gate, Unbounded), isinstance(made.recall, LookBack)
        groups[_GROUPS[evicts, looks]].append(name)
    groups["Presets: constants and schedules of papers"] = list(PRESETS)
    width = min(console.width, 100)
    for heading, names in groups.items():
        longest = max(map(len, PRESETS if names[0] in PRESETS else NAMED))
        console.print(Text(heading, style="bold"))
        for name in names:
            line = f"{name:<{longest}}  {about(name).paragraphs[0]}"
            console.print(Text(_cut(line, width)), soft_wrap=True)
        console.print()
    console.print(Text(f"The default is {POLICY}. `agentkv policies NAME` explains one policy;"))
    console.print(Text("`agentkv policies --long` prints the parts and parameters of all."))


_GROUPS = {
    (False, False): "Keep every entry, in fewer bits or as it is; no budget",
    (True, True): "Evict to a cold tier and look back; within a budget",
    (True, False): "Evict for good; within a budget",
}
"""Headings of policies by whether they evict, and whether they look back."""


def _cut(line: str, width: int) -> str:
    """Return the line, or as many of its words as fit with three dots."""
    if len(line) <= width:
        return line
    return line[: width - 3].rpartition(" ")[0].rstrip(",;:") + " ..."


def print_parts(console: Console) -> None:
    """Print every policy: what it keeps, its parts, parameters and source."""
    console.print(Text(f"{' / '.join(PARTS)}, parameters, source"))
    for name in (*NAMED, *PRESETS):
        description = about(name)
        console.print(Text(f"\n{name}", style="bold"))
        parts = " / ".join(type(part).__name__ for _, part in _parts(policy(name)))
        parameters = ", ".join(
            _assignment(key, value) for key, value in parameters_of(name).items()
        )
        for line in (
            description.paragraphs[0],
            parts,
            parameters or "(no parameters)",
            description.source,
        ):
            _print_indented(console, line, 4)


def print_policy(console: Console, name: str) -> None:
    """Print one policy: its parts, parameters and source. Raises PolicyError."""
    description = about(name)
    console.print(Text(name, style="bold"))
    for paragraph in description.paragraphs:
        _print_indented(console, paragraph, 4)
    console.print()
    for slot, part in _parts(policy(name)):
        _print_indented(console, f"{slot}: {type(part).__name__}", 4)
        _print_indented(console, (inspect.getdoc(part) or "").partition("\n\n")[0], 8)
    console.print()
    for key, parameter in description.declared.items():
        _print_indented(console, _assignment(key, parameter.default), 4)
        _print_indented(console, parameter.help, 8)
    if description.source:
        console.print()
        _print_indented(console, f"Source: {description.source}", 4)


def _parts(made: Policy) -> Iterator[tuple[str, object]]:
    for slot in PARTS:
        yield slot, getattr(made, slot)


def _assignment(key: str, value: object) -> str:
    """Write a parameter without spaces, so that lines break only between parameters."""
    return f"{key}={value!r}".replace(", ", ",")


def _print_indented(console: Console, text: str, columns: int) -> None:
    if not text:
        return
    indent = " " * columns
    lines = textwrap.wrap(
        text,
        min(console.width, 100),
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
    console.print(Text("\n".join(lines)), soft_wrap=True)


def print_plan(
    console: Console,
    model: PlannedModel,
    caches: Sequence[CachePlan],
    *,
    num_tokens: int,
    memory: int,
) -> None:
    """Print what weights and caches take, and what fits into `memory` bytes."""
    dtype = str(model.geometry.dtype).removeprefix("torch.")
    places = [cache.cold_nbytes * model.is_on_host for cache in caches]
    totals = [
        model.weights_nbytes + cache.peak_nbytes + cold
        for cache, cold in zip(caches, places, strict=True)
    ]
    unit = "GiB" if max(totals) >= 10_000 * UNITS["MiB"] else "MiB"

    def sized(num_bytes: int) -> str:
        return in_unit(num_bytes, unit) if num_bytes else "-"

    positions = model.geometry.max_positions
    for line in (
        f"{model.name}: weights {in_unit(model.weights_nbytes, unit)} {unit} in "
        f"{model.weights_form}, "
        + ("no limit of positions" if positions is None else f"{positions:,} positions"),
        *([] if model.geometry.sharing is None else [model.geometry.sharing]),
        f"cache after {num_tokens:,} tokens, dense entries in {dtype}, sizes in {unit}:",
    ):
        console.print(Text(line), soft_wrap=True)
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("policy")
    for heading in ("entries", "cache", "peak", "cold", "all"):
        table.add_column(heading, justify="right")
    table.add_column(f"fits {in_unit(memory, unit)}", justify="right")
    for cache, total in zip(caches, totals, strict=True):
        table.add_row(
            cache.policy,
            f"{cache.num_entries:,}",
            *map(sized, (cache.resting_nbytes, cache.peak_nbytes, cache.cold_nbytes, total)),
            f"{cache.most:,} tokens" if cache.keeps_all else f"budget {cache.most:,}",
        )
    console.print(table)
    if positions is not None and num_tokens > positions:
        for line in _beyond(caches, num_tokens, positions):
            console.print(Text(line, style="yellow"), soft_wrap=True)
    cold = "weights, peak and cold" if model.is_on_host else "weights and peak"
    where = "in the same memory here" if model.is_on_host else "in the host's memory"
    console.print(
        Text(
            "entries: per layer and KV head. peak: while a page is read or a token looks back. "
            f"cold: evicted entries that may come back, {where}. all: {cold}. fits: "
            "tokens of a policy that keeps everything, or the largest budget in tokens. "
            "Activations, logits and the libraries' own memory come on top."
        )
    )


def _beyond(caches: Sequence[CachePlan], num_tokens: int, positions: int) -> Iterator[str]:
    """Say which policies can go on where there are more tokens than positions."""
    yield f"{num_tokens:,} tokens are more than the {positions:,} positions of the model:"
    reasons: dict[str | None, list[str]] = {}
    for cache in caches:
        reasons.setdefault(cache.why_limited, []).append(cache.policy)
    for reason, names in reasons.items():
        end = "goes on, with positions numbered anew"
        if reason is not None:
            end = f"ends after {positions:,} tokens, because {reason}"
        yield f"  {', '.join(names)}: {end}"
