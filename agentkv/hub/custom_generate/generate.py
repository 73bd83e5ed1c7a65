"""`generate` of transformers with a cache of agentkv, for `custom_generate`."""

import inspect
from typing import Any

import agentkv


def generate(
    model: Any,
    *,
    policy: Any = None,
    budget: int | str | None = None,
    cache_dtype: str | None = None,
    past_key_values: Any = None,
    cache: Any = None,
    logits_processor: Any = None,
    **options: Any,
) -> Any:
    """Generate as `model.generate` does, under a cache policy.

    Args:
        policy, budget: as in `agentkv.Cache.for_model`; None: its defaults.
        cache_dtype: in which the cache stores dense entries; None: the model's dtype.
        past_key_values, cache: an `agentkv.Cache` to go on with, in place of the three above; two
            names of one argument, of which transformers 5.24 gives the second.
        logits_processor: applied before the policy's gate, which changes no logits.
        options: all other arguments of `model.generate`.

    Returns:
        What `model.generate` returns. With `return_dict_in_generate=True`, `past_key_values` is the
        cache.

    Raises:
        ValueError: another kind of cache, a cache and a policy, or what `for_model` raises.
    """
    given = {"policy": policy, "budget": budget, "dtype": cache_dtype}
    given = {name: value for name, value in given.items() if value is not None}
    cache = past_key_values if cache is None else cache
    if cache is None:
        cache = agentkv.Cache.for_model(model, **given)
    elif not isinstance(cache, agentkv.Cache):
        raise ValueError(
            f"past_key_values is a {type(cache).__name__}; give an agentkv.Cache or leave it out"
        )
    elif given:
        raise ValueError(
            f"past_key_values has its own policy and budget; leave out {', '.join(given)}"
        )
    is_new = "cache" in inspect.signature(type(model).forward).parameters
    # a repository that brings this file has replaced the `generate` of its model
    return type(model).generate(
        model,
        **options,
        **{"cache" if is_new else "past_key_values": cache},
        logits_processor=[*(logits_processor or ()), cache.gate()],
    )
