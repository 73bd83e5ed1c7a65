"""Equal bytes for all policies of a measurement."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from agentkv.cache.hf.families import describe
from agentkv.cache.storage.sizes import resting_bytes
from agentkv.policies.registry import policy
from agentkv_tasks.settings import RunSettings

if TYPE_CHECKING:
    from agentkv.models.local import LocalModel


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
