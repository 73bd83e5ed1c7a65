"""Compute from shapes how much memory the weights of a model and its cache will take."""

import bisect
import copy
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open

from agentkv.build import budget_for, make_policy
from agentkv.cache.budget import AMPLE, Allowance, Bytes, parse_budget
from agentkv.cache.geometry import Geometry
from agentkv.cache.hf.families import UnsupportedModel, describe
from agentkv.cache.hf.layer_kinds import state_nbytes
from agentkv.cache.numbering import why_limited
from agentkv.cache.refusals import why_refused
from agentkv.cache.storage.choose import cold_layout_for, layout_for
from agentkv.cache.storage.cold_tier import most_cold_nbytes
from agentkv.cache.storage.sizes import EntrySize, bytes_by_layer
from agentkv.models.find import (
    ModelError,
    check_files,
    default_cache_dtype,
    find_model,
    gguf_in_blocks,
    is_gguf,
    open_gguf_model,
    require_quantizable,
    weight_files,
)
from agentkv.policies.entries import PolicyError
from agentkv.policies.policy import Policy
from agentkv.policies.recall import LookBack
from agentkv.settings import PoliciesSettings, PolicySettings
from agentkv.weights.linear import QuantizedEmbedding, QuantizedLinear
from agentkv.weights.replace import quantize_linear
from agentkv_kernels.formats import BLOCK
from agentkv_kernels.layout import Layout

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
"""Dtypes of weights that are loaded in another dtype if one is given, as safetensors names them."""
_ENDLESS = 1 << 40
"""More tokens than fit anywhere."""
_PACKED_BYTES = {
    **{"F8_E4M3": 1, "F8_E5M2": 1, "BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2},
    **{"U32": 4, "I32": 4, "U64": 8, "I64": 8},
}
"""Bytes of all other values, which keep their size: quantized weights and their indices."""


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model that has not been loaded."""

    name: str
    geometry: Geometry
    """Shape of its attention; the dtype is the one in which its cache stores dense entries."""
    weights_nbytes: int
    """Bytes of the weights, in the dtype that the model computes in."""
    weights_form: str
    """That dtype, such as `float32`, or the formats of quantized weights."""
    is_on_host: bool
    """True if the model computes in the host's memory, where cold entries are as well."""


@dataclass(frozen=True, slots=True)
class CachePlan:
    """What a cache takes under one policy.

    The bytes at rest are an upper bound. The peak is an estimate, right within a few percent.
    """

    policy: str
    """Name in result rows."""
    num_entries: int
    """Entries per layer and key-value head after the last token, on average over the layers."""
    resting_nbytes: int
    """Bytes after the last token."""
    peak_nbytes: int
    """Bytes while a chunk of a page is read or a token looks back: new entries come on top."""
    cold_nbytes: int
    """Bytes of the evicted entries that may come back, the most that a bound of them allows; on the
    host. Unused capacity and what looks scan come on top."""
    most_cold_nbytes: int
    """An upper bound of all that the cold tier takes."""
    keeps_all: bool
    """True if nothing is evicted."""
    why_limited: str | None
    """Why an episode ends where the model's positions do; None if it can go on."""
    most: int
    """What fits into the memory beside the weights: tokens for a policy that keeps everything, else
    the largest budget in tokens; 0 if nothing does."""


def memory_of(device: str, given: str | None = None) -> int:
    """Return `given` in bytes, or all memory of a device if it is None.

    Args:
        device: `auto`, `cpu`, `mps` or `cuda`; without CUDA, the memory is that of the machine.
        given: a number of bytes such as `24GiB`.

    Raises:
        ValueError: `given` is no number of bytes.
    """
    if given is not None:
        parsed = parse_budget(given)
        if not isinstance(parsed, Bytes) or not parsed.count:
            raise PolicyError(f"memory is a number of bytes such as 24GiB; found {given!r}")
        return parsed.count
    if _computes_on_cuda(device):
        name = "cuda" if device == "auto" else device
        return int(torch.cuda.get_device_properties(name).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _computes_on_cuda(device: str) -> bool:
    return torch.cuda.is_available() and (device == "auto" or device.startswith("cuda"))


def plan_model(settings: PoliciesSettings) -> PlannedModel:
    """Read the shapes of the model of `settings`, which must be on this machine.

    Weights have the dtype that `load_model` gives them, and dense entries that of a run.

    Raises:
        ModelError: a ValueError; no such model, or its files cannot be read.
        UnsupportedModel: a ValueError; the cache does not know this family.
    """
    from transformers import AutoConfig, AutoModelForCausalLM  # takes seconds

    from agentkv.models.gguf.blocks import named_formats, nbytes_in_blocks

    source = find_model(settings.model)
    gguf = open_gguf_model(Path(source)) if is_gguf(source) else None
    folder = Path(source) if gguf else check_files(source)[0]
    try:
        if gguf is not None:
            config, model = gguf.config, gguf.empty
        else:
            options: Any = {"local_files_only": True, "trust_remote_code": False}
            config = AutoConfig.from_pretrained(source, **options)
            with torch.device("meta"):
                make: Any = AutoModelForCausalLM.from_config
                model = make(config, trust_remote_code=False)
        geometry = describe(model)
    except UnsupportedModel:
        raise
    except Exception as error:  # libraries raise all kinds of errors for malformed files
        message = " ".join(str(error).split())[:300]
        raise ModelError(
            f"{folder} cannot be read as a model: {type(error).__name__}: {message}"
        ) from error
    dtype: str | None = settings.dtype
    if dtype == "auto":
        dtype = None if _computes_on_cuda(settings.device) else "float32"
    own_dtype = str(getattr(config, "dtype", None) or torch.float32).removeprefix("torch.")
    hybrid = geometry.hybrid
    if hybrid is not None:
        states = state_nbytes(model.to(getattr(torch, dtype or own_dtype)))
        geometry = replace(geometry, hybrid=replace(hybrid, state_nbytes=states))
    stored: str = settings.cache_dtype
    if stored == "auto":
        stored = default_cache_dtype(settings.model)
    elif stored == "model":
        stored = dtype or own_dtype
    chosen = {
        "device": settings.device,
        "dtype": settings.dtype,
        "weights": settings.loaded_weights,
    }
    form = dtype or own_dtype
    if settings.weights in ("int8", "int4"):
        require_quantizable(settings.weights, device=settings.device, dtype=settings.dtype)
        form, nbytes = settings.weights, _quantized_nbytes(model, settings.weights)
    elif gguf is None:
        nbytes = _weights_nbytes(folder, None if dtype is None else getattr(torch, dtype))
    elif gguf_in_blocks(source, **chosen) is None:
        nbytes = gguf.num_values * getattr(torch, form).itemsize
    else:
        form, nbytes = named_formats(gguf), nbytes_in_blocks(gguf)
    return PlannedModel(
        settings.model,
        replace(geometry, dtype=getattr(torch, stored)),
        nbytes,
        form,
        is_on_host=not (settings.device.startswith("cuda") or _computes_on_cuda(settings.device)),
    )


def _quantized_nbytes(model: Any, weights: Literal["int8", "int4"]) -> int:
    """Return the bytes of the weights of a model (device meta) once they are quantized."""
    model = copy.deepcopy(model)
    with torch.device("meta"):
        quantize_linear(model, weights)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    total: int = sum(parameter.numel() * 4 for parameter in model.parameters())
    for module in model.modules():
        if isinstance(module, QuantizedLinear | QuantizedEmbedding):
            is_shared = module is head and module.codes is getattr(embedding, "codes", None)
            total += 0 if is_shared else module.packed.nbytes
    return total


def _weights_nbytes(folder: Path, dtype: torch.dtype | None) -> int:
    """Return the bytes of all weights in `dtype`; None: in their own. Raises ModelError."""
    total = 0
    for path in weight_files(folder):
        with safe_open(path, "pt") as file:
            for key in file.keys():  # noqa: SIM118  # safe_open returns no mapping
                part = file.get_slice(key)
                stored = part.get_dtype()
                if stored in _DTYPES:
                    size = (dtype or _DTYPES[stored]).itemsize
                elif stored in _PACKED_BYTES:
                    size = _PACKED_BYTES[stored]
                else:
                    raise ModelError(f"{path}: {key} has the dtype {stored}, which is not known")
                total += math.prod(part.get_shape()) * size
    return total


def without_refused(settings: PoliciesSettings, geometry: Geometry) -> tuple[PoliciesSettings, str]:
    """Return settings without the policies that a model refuses, and a line about these, empty if
    there are none."""
    refused = {
        asked.row_name: why
        for asked in settings.policies
        if (why := why_refused(make_policy(asked), geometry)) is not None
    }
    if not refused:
        return settings, ""
    left = tuple(each for each in settings.policies if each.row_name not in refused)
    said = "; ".join(f"{name} {why}" for name, why in refused.items())
    return settings.model_copy(update={"policies": left}), f"left out: {said}"


def plan_caches(
    settings: PoliciesSettings, model: PlannedModel, *, num_tokens: int, memory: int
) -> list[CachePlan]:
    """Return what a cache takes after `num_tokens` tokens under each policy of `settings`.

    Args:
        memory: bytes for weights and cache, for `CachePlan.most`.

    Raises:
        ValueError: an unknown policy, or a budget that a policy does not fit into.
    """
    return [
        _plan_of(settings, asked, model, num_tokens, memory - model.weights_nbytes)
        for asked in settings.policies
    ]


def _plan_of(
    settings: PoliciesSettings,
    asked: PolicySettings,
    model: PlannedModel,
    num_tokens: int,
    left: int,
) -> CachePlan:
    policy, geometry = make_policy(asked), model.geometry
    budget = budget_for(settings, policy)

    def planned(num_tokens: int, budget: int | str | None) -> CachePlan:
        return plan_cache(policy, budget, geometry, num_tokens=num_tokens, chunk=settings.chunk)

    def taken(plan: CachePlan) -> int:
        return plan.peak_nbytes + plan.cold_nbytes * model.is_on_host

    plan = planned(num_tokens, budget)
    if plan.keeps_all:
        most = _largest(_ENDLESS, lambda count: taken(planned(count, None)) <= left)
    elif budget is None:
        most = plan.num_entries if taken(plan) <= left else 0
    else:
        below = _least_budget(policy) - 1
        limit = max(1, num_tokens - below)

        def fits(count: int) -> bool:
            return taken(planned(num_tokens, below + count)) <= left

        # a budget of all tokens may take less than a smaller one, which has a cold tier
        more = limit if fits(limit) else _largest(limit, fits)
        most = below + more if more else 0
    why = why_limited(policy, geometry)
    return replace(plan, policy=asked.row_name, most=most, why_limited=why)


def _largest(limit: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number up to `limit` that fits, given that all smaller ones do; or 0."""
    return bisect.bisect_left(range(1, limit + 1), True, key=lambda n: not fits(n))


def _least_budget(policy: Policy) -> int:
    """Return the smallest budget that `policy` can keep."""

    def is_enough(budget: int) -> bool:
        try:
            policy.fitted(budget)
        except PolicyError:
            return False
        return True

    return bisect.bisect_left(range(1, AMPLE), True, key=is_enough) + 1


def plan_cache(
    policy: Policy, budget: int | str | None, geometry: Geometry, *, num_tokens: int, chunk: int
) -> CachePlan:
    """Return what a cache takes after `num_tokens` tokens of one sequence.

    What depends on the model's memory and positions is left open: `most` is 0, and `why_limited`
    None.

    Args:
        budget: as in `Cache.for_model`; None for a policy that keeps everything or brings its own.
        chunk: tokens of a page that are read at once.

    Raises:
        PolicyError: a ValueError; the policy does not fit into the budget.
    """
    allowance = Allowance(policy, parse_budget(budget), geometry)
    fitted = allowance.at(num_tokens)
    gate = fitted.gate
    held = most_held = num_tokens
    if gate.ceiling is not None:
        held = min(num_tokens, gate.ceiling + gate.slack)
        shares = allowance.layers(num_tokens) or (gate.ceiling,)
        most_held = min(num_tokens, max(shares) + gate.slack)

    def by_layer(num_entries: int) -> list[int]:
        return bytes_by_layer(fitted, geometry, num_entries, num_seen=num_tokens)

    states = 0 if geometry.hybrid is None else geometry.hybrid.state_nbytes
    resting = sum(by_layer(held)) + states
    layouts = [
        layout_for(
            layer,
            fitted if i in geometry.policy_layers else None,
            dtype=geometry.dtype,
            num_q_heads=geometry.num_q_heads,
        )
        for i, layer in enumerate(geometry.layers)
    ]
    cold = most_cold = num_fetched = 0
    if isinstance(fitted.recall, LookBack):
        recall, num_cold = fitted.recall, num_tokens - held
        if recall.cold is not None:
            num_cold = min(num_cold, recall.cold)
        colds = [cold_layout_for(layouts[i], recall.format) for i in geometry.policy_layers]
        cold = num_cold * sum(map(_entry_nbytes, colds))
        least = 0 if policy.allocator.learns else min(allowance.layers(num_tokens, 1.0) or (0,))
        if num_tokens > least:
            most_cold = sum(most_cold_nbytes(each, recall, num_tokens=num_tokens) for each in colds)
        num_fetched = min(max(recall.blocks * recall.block, recall.repair), num_cold)
    # A chunk, or what a look fetches, is dense until the eviction after it. A table that grows is
    # copied: the keys or the values of one layer.
    num_dense = max(min(chunk, num_tokens), num_fetched)
    dense_nbytes = num_dense * sum(_entry_nbytes(layout, dense=True) for layout in layouts)
    copied_nbytes = max(by_layer(most_held + num_dense)) // 2
    return CachePlan(
        policy=policy.name,
        num_entries=held,
        resting_nbytes=resting,
        peak_nbytes=resting + dense_nbytes + copied_nbytes,
        cold_nbytes=cold,
        most_cold_nbytes=most_cold,
        keeps_all=gate.ceiling is None,
        why_limited=None,
        most=0,
    )


def _entry_nbytes(layout: Layout, *, dense: bool = False) -> int:
    """Return the bytes of one token in a layer, quantized unless it is dense."""
    size = EntrySize.of(layout)
    entry = size.dense if dense or not size.quantized else size.quantized
    return layout.segments_per_sequence * (entry + size.metadata + math.ceil(size.block / BLOCK))
