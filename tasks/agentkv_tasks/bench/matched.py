"""The model and the policies of a measurement, and equal bytes for them."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from agentkv.build import check_language_model, make_acting, make_policy, resolved_parameters
from agentkv.cache.hf.families import describe
from agentkv.cache.storage.sizes import resting_bytes
from agentkv.models.adapter import digest_of
from agentkv.policies.registry import policy
from agentkv_tasks.bench.host import dtype_name, measured_on
from agentkv_tasks.settings import RunSettings

if TYPE_CHECKING:
    from agentkv.models.local import ActingModel, LocalModel


def check_policies(settings: RunSettings, entries: int | None) -> list[str]:
    """Check the policies without loading a model; return their names in rows.

    Args:
        entries: as in `with_window_bytes`.

    Raises:
        ValueError: no language model, a wrong policy or parameter, or a budget that a policy cannot
            keep. Budgets of `entries` depend on the model, and are checked later.
    """
    check_language_model(settings)
    for chosen in settings.policies:
        if entries is None:
            resolved_parameters(settings, chosen)
        else:
            make_policy(chosen)
    return [chosen.row_name for chosen in settings.policies]


def acting_models(
    settings: RunSettings, local: "LocalModel"
) -> tuple[dict[str, "ActingModel"], dict[str, Any]]:
    """Return a model under each policy, and each policy's parameters, by the names in rows.

    Raises:
        ValueError: a budget that a policy does not fit into.
    """
    chosen = {each.row_name: each for each in settings.policies}
    acting = {
        name: make_acting(settings, policy=each, model=local) for name, each in chosen.items()
    }
    return acting, {name: resolved_parameters(settings, each) for name, each in chosen.items()}


def fields_of(settings: RunSettings, local: "LocalModel", **measured: Any) -> dict[str, Any]:
    """Return the fields of a row that say which model was measured, how it reads, and on what.

    Args:
        measured: further settings of the measurement.
    """
    return {
        "model": local.name,
        "weights": digest_of(settings),
        "settings": {
            "prefill": settings.prefill,
            "chunk": settings.chunk,
            "dtype": dtype_name(local.model),
            "cache_dtype": local.dtype_of(settings),
            **measured,
        },
        **measured_on(local.model),
    }


def window_bytes(entries: int, settings: RunSettings, local: "LocalModel") -> int:
    """Return the bytes of a window of `entries`, stored as the settings say."""
    dtype = getattr(torch, local.dtype_of(settings))
    geometry = replace(describe(local.model), dtype=dtype)
    return resting_bytes(policy("window").fitted(entries), geometry, batch=1)


def with_window_bytes(
    settings: RunSettings, local: "LocalModel", entries: int | None
) -> RunSettings:
    """Return the settings with the bytes of a window of `entries` as their budget; None: as they
    are."""
    if entries is None:
        return settings
    return settings.model_copy(update={"budget": f"{window_bytes(entries, settings, local)}B"})
