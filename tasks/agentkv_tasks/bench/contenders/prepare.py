"""What is made ready before anything is measured: a model, the contenders, and a check of each."""

from collections.abc import Sequence
from typing import Any

import torch
from rich.progress import Progress
from torch import Tensor

from agentkv.build import SCRIPTED, budget_for, make_policy, resolved_parameters
from agentkv.cache.hf.attach import attach
from agentkv.config import PolicySettings, RunSettings
from agentkv.models.find import find_model
from agentkv_tasks.bench.contenders.contender import Contender, Ours
from agentkv_tasks.bench.contenders.models import SHAPES, Loaded, build, load, most_positions, twin
from agentkv_tasks.bench.contenders.others import AGAINST, others
from agentkv_tasks.bench.contenders.verify import NUM_STEPS, check_path
from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.bench.host import device_of

CHECKED = 1.5
"""Tokens that contenders are checked over, by the budget, so that rows go."""


def check_choice(
    settings: RunSettings, *, shape: str | None, num_layers: int | None, against: Sequence[str]
) -> None:
    """Of what is to be measured, all that can be checked without loading a model.

    Raises:
        ValueError: an option is wrong; the message says what can be used.
    """
    if shape is not None and shape not in SHAPES:
        raise BenchError(f"unknown shape {shape!r}; known: {', '.join(SHAPES)}")
    if shape is None and num_layers is not None:
        raise BenchError("--layers is for a --shape; a model has as many as it has")
    if shape is None:
        if settings.model in SCRIPTED:
            raise BenchError(f"--model {settings.model} is a script; give a model or a --shape")
        find_model(settings.model)
    for name in against:
        if name not in AGAINST:
            raise BenchError(f"--against {name!r} is unknown; known: {', '.join(AGAINST)}")
    for policy in settings.policies:
        if policy.row_name in AGAINST:
            raise BenchError(f"{policy.row_name} is the name of another contender; label it anew")
        resolved_parameters(settings, policy)
    device_of(settings.device)


def num_checked(settings: RunSettings) -> int:
    """Tokens that the contenders are checked over."""
    budget = settings.budget
    least = max(256, round(CHECKED * budget)) if isinstance(budget, int) else 768
    return min(least, 4096) + NUM_STEPS


def load_model(
    settings: RunSettings, *, shape: str | None, num_layers: int | None, num_positions: int
) -> Loaded:
    """The model of the settings, or random weights in a shape.

    Raises:
        ValueError: it is not here, or cannot read so many tokens.
    """
    device = device_of(settings.device)
    if shape is not None:
        return build(
            shape, device, settings.dtype, num_layers=num_layers, num_positions=num_positions
        )
    loaded = load(settings.model, device, settings.dtype)
    most = most_positions(loaded.model)
    if most is not None and num_positions > most:
        raise BenchError(
            f"{loaded.name} has {most} positions, and up to {num_positions} tokens would be read; "
            "lower --seen, --tokens or --budget, or give a --shape, which gets as many as it needs"
        )
    return loaded


def make_ours(
    settings: RunSettings, policies: Sequence[PolicySettings], plain: Any
) -> list[Contender]:
    """Our cache under each policy, over the same weights as `plain`.

    Raises:
        ValueError: a policy or the model cannot have the budget.
    """
    model = twin(plain, plain.config._attn_implementation)
    attach(model)
    found: list[Contender] = []
    for chosen in policies:
        policy = make_policy(chosen)
        parameters = resolved_parameters(settings, chosen)
        budget = budget_for(settings, policy)
        found.append(Ours(chosen.row_name, parameters, policy, model, budget, settings.chunk))
    return found


def make_contenders(
    settings: RunSettings, against: tuple[str, ...], plain: Any
) -> tuple[list[Contender], list[str]]:
    """The baseline first, then others, then ours; and a line for each of those not here."""
    found, missing = others(against, plain, chunk=settings.chunk, budget=settings.budget)
    return [*found, *make_ours(settings, settings.policies, plain)], missing


def check_contenders(
    settings: RunSettings,
    contenders: Sequence[Contender],
    plain: Any,
    batches: Sequence[int],
    progress: Progress,
) -> dict[str, dict[str, float]]:
    """By label, the distances found at worst; see `verify`.

    Raises:
        WrongError: a contender does not compute what it should.
    """
    checked: dict[str, dict[str, float]] = {}
    # two sequences in a batch are enough to be taken for each other
    for batch in sorted({min(batch, 2) for batch in batches}):
        ids = random_ids(plain, batch, num_checked(settings))
        bar = progress.add_task("", total=len(contenders))
        for contender in contenders:
            progress.update(bar, description=f"checking {contender.label}")
            found = check_path(contender, plain, ids, settings.chunk)
            before = checked.get(contender.label, {})
            worst = {name: max(value, before.get(name, 0.0)) for name, value in found.items()}
            checked[contender.label] = worst
            progress.advance(bar)
        progress.remove_task(bar)
    return checked


def random_ids(model: Any, batch: int, count: int) -> Tensor:
    """(batch, count) random tokens, always the same; shorter ones are how longer ones begin."""
    generator = torch.Generator().manual_seed(75)
    drawn = torch.randint(model.config.vocab_size, (count, batch), generator=generator)
    return drawn.T.contiguous().to(model.device)
