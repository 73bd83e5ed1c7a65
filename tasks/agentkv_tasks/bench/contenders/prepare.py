"""Prepare a measurement: load the model, make the contenders, and check each of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress
from torch import Tensor

from agentkv.build import budget_for, make_policy, resolved_parameters
from agentkv.cache.hf.attach import attach
from agentkv.models.find import find_model, half_dtype
from agentkv.settings import ADAPTED, SCRIPTED, PolicySettings
from agentkv_tasks.bench.contenders.contender import Contender, Ours
from agentkv_tasks.bench.contenders.left_out import LeftOut, Say
from agentkv_tasks.bench.contenders.models import (
    SHAPES,
    LoadedModel,
    build,
    load,
    load_blocks_of,
    most_positions,
    twin,
)
from agentkv_tasks.bench.contenders.others import AGAINST, LABELS, others
from agentkv_tasks.bench.contenders.verify import NUM_STEPS, check_path
from agentkv_tasks.bench.errors import BenchError, require_positive
from agentkv_tasks.bench.frame import ModelBenchSettings
from agentkv_tasks.bench.host import device_of, dtype_name, measured_on
from agentkv_tasks.settings import RunSettings

CHECKED = 1.5
"""Length of the check relative to the budget, so that contenders evict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContenderBenchSettings(ModelBenchSettings):
    """Settings of every benchmark of contenders.

    Of `settings`, only the model with its dtype and device, the policies, the budget and the chunk
    count.
    """

    shape: str | None = None
    """Shape of random weights to use instead of the model."""
    num_layers: int | None = None
    """Layers of the shape; None: as many as fit."""
    lengths: tuple[int, ...]
    """Tokens read before those that are measured."""
    against: tuple[str, ...] = ()
    """Contenders besides the baseline."""

    def load(self, num_positions: int) -> LoadedModel:
        """Load the model, or make random weights in the shape.

        Raises:
            ValueError: the model does not exist or has too few positions.
        """
        device = device_of(self.settings.device)
        if self.shape is not None:
            return build(
                self.shape,
                device,
                self.settings.dtype,
                weights=self.settings.weights,
                num_layers=self.num_layers,
                num_positions=num_positions,
            )
        settings = self.settings
        loaded = load(settings.model, device, settings.dtype, settings.weights)
        most = most_positions(loaded.model)
        if most is not None and num_positions > most:
            raise BenchError(
                f"{loaded.name} has {most} positions, and up to {num_positions} tokens would be "
                "read; lower --seen, --tokens or --budget, or give a --shape, which gets enough "
                "positions"
            )
        return loaded

    def load_served(self, num_positions: int) -> tuple[Any, Path | None]:
        """Load only what agentkv serves, and return the GGUF file that it is from, if any.

        Raises:
            ValueError: as `load`.
        """
        if self.shape is None:
            settings = self.settings
            device = device_of(settings.device)
            found = load_blocks_of(settings.model, device, settings.dtype, settings.weights)
            if found is not None:
                return found
        loaded = self.load(num_positions)
        return loaded.served, loaded.file

    def about(self, loaded: LoadedModel, **settings: Any) -> dict[str, Any]:
        """Return the fields that all rows of a file share, with further `settings`."""
        return {
            "model": loaded.name,
            "scaled": loaded.scaled,
            "weights": "own" if self.shape is None else "random",
            "settings": {
                "chunk": self.settings.chunk,
                "dtype": dtype_name(loaded.model),
                "weights": self.settings.weights,
                "num_layers": loaded.model.config.num_hidden_layers,
                **settings,
            },
            **measured_on(loaded.model),
        }


def check_choice(bench: ContenderBenchSettings) -> None:
    """Check the options of a measurement without loading a model.

    Raises:
        ValueError: an option is wrong; the message names valid values.
    """
    settings, shape = bench.settings, bench.shape
    if shape is not None and shape not in SHAPES:
        raise BenchError(f"unknown shape {shape!r}; known: {', '.join(SHAPES)}")
    if shape is None and bench.num_layers is not None:
        raise BenchError("--layers needs a --shape; the layers of a model cannot be changed")
    if shape is None:
        if settings.model in SCRIPTED:
            raise BenchError(f"--model {settings.model} is a script; give a model or a --shape")
        find_model(settings.model)
    if settings.has_adapter:
        raise BenchError(
            "a merged adapter changes no time and no bytes; measure the model without it: "
            f"--model {ADAPTED.get(settings.model, settings.model)}, no --adapter"
        )
    for name in bench.against:
        if name not in (*AGAINST, *LABELS):
            known = ", ".join(dict.fromkeys([*AGAINST, *LABELS]))
            raise BenchError(f"--against {name!r} is unknown; known: {known}")
    for policy in settings.policies:
        if policy.row_name in LABELS:
            raise BenchError(
                f"{policy.row_name} names another contender; give the policy another label"
            )
        resolved_parameters(settings, policy)
    require_positive("--seen", bench.lengths)
    device_of(settings.device)


def num_checked(settings: RunSettings) -> int:
    """Return the number of tokens that the check reads."""
    budget = settings.budget
    least = max(256, round(CHECKED * budget)) if isinstance(budget, int) else 768
    return min(least, 4096) + NUM_STEPS


def make_ours(
    settings: RunSettings, policies: Sequence[PolicySettings], served: Any
) -> list[Contender]:
    """Make a contender of agentkv for each policy, with the weights of `served`.

    Raises:
        ValueError: a policy does not fit into the budget.
    """
    model = twin(served, served.config._attn_implementation)
    attach(model)
    cache_dtype: str | None = settings.cache_dtype
    if cache_dtype == "auto":
        cache_dtype = half_dtype(dtype_name(served))
    elif cache_dtype == "model":
        cache_dtype = None
    found: list[Contender] = []
    for chosen in policies:
        policy = make_policy(chosen)
        parameters = resolved_parameters(settings, chosen)
        budget = budget_for(settings, policy)
        found.append(
            Ours(
                chosen.row_name,
                parameters,
                policy,
                model,
                budget,
                settings.chunk,
                cache_dtype,
            )
        )
    return found


def make_contenders(
    settings: RunSettings, against: tuple[str, ...], loaded: LoadedModel
) -> tuple[list[Contender], list[str]]:
    """Make the baseline, then other libraries' caches, then agentkv's; and a line for each that is
    missing."""
    found, missing = others(
        against,
        loaded.model,
        chunk=settings.chunk,
        budget=settings.budget,
        served=loaded.served,
        file=loaded.file,
    )
    return [*found, *make_ours(settings, settings.policies, loaded.served)], missing


def check_contenders(
    settings: RunSettings,
    contenders: Sequence[Contender],
    plain: Any,
    batches: Sequence[int],
    progress: Progress,
    say: Say,
) -> dict[str, dict[str, float]]:
    """Check all contenders and return their largest distances by label; see `verify`.

    Those of other libraries that fail are missing there, and `say` is called with a line for each.

    Raises:
        WrongError: a contender computes wrong results.
    """
    checked: dict[str, dict[str, float]] = {}
    left_out = LeftOut(say)
    # a batch of two is enough to find mixed-up sequences
    for batch in sorted({min(batch, 2) for batch in batches}):
        ids = random_ids(plain, batch, num_checked(settings))
        bar = progress.add_task("", total=len(contenders))
        for contender in contenders:
            progress.update(bar, description=f"checking {contender.label}")
            if contender.label not in left_out.labels:
                with left_out.if_it_fails(contender.label, contender.kind):
                    found = check_path(contender, plain, ids, settings.chunk)
                    before = checked.get(contender.label, {})
                    checked[contender.label] = {
                        name: max(value, before.get(name, 0.0)) for name, value in found.items()
                    }
            progress.advance(bar)
        progress.remove_task(bar)
    return {label: found for label, found in checked.items() if label not in left_out.labels}


def random_ids(model: Any, batch: int, count: int) -> Tensor:
    """Return (batch, count) random tokens, the same on every call; more tokens extend fewer."""
    generator = torch.Generator().manual_seed(75)
    drawn = torch.randint(model.config.vocab_size, (count, batch), generator=generator)
    return drawn.T.contiguous().to(model.device)
