"""Identity of the model that a cache belongs to.

Stored keys and values only make sense to the weights that produced them, and nothing in the numbers
would show that another model reads them.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentkv.cache.checkpoint.file import CacheFileError

WITHOUT_EFFECT = frozenset(
    {
        "_name_or_path", "architectures", "bos_token_id", "chunk_size_feed_forward", "dtype",
        "eos_token_id", "id2label", "initializer_range", "label2id", "output_attentions",
        "output_hidden_states", "pad_token_id", "problem_type", "return_dict", "torch_dtype",
        "transformers_version", "use_cache",
    }
)  # fmt: skip
"""Settings that no key or value depends on, or that are compared separately."""

ROPE = ("rope_parameters", "rope_scaling", "rope_theta", "rope_local_base_freq")

NUM_SAMPLES = 4096
"""Numbers of each parameter that a fingerprint covers, evenly spread (our choice): it takes a
moment for models of any size, and any training step changes most numbers."""


def identity(model: PreTrainedModel) -> dict[str, str]:
    """Return metadata for a file, in the order of comparison: family, dtype, rope, config, weights.

    Raises:
        CacheFileError: weights are offloaded.
    """
    settings = json.loads(json.dumps(model.config.to_dict(), default=str))
    kept = {key: value for key, value in settings.items() if key not in WITHOUT_EFFECT}
    rope = {key: kept.pop(key) for key in ROPE if key in kept}
    return {
        "family": str(kept.pop("model_type", "")),
        "dtype": str(model.dtype).removeprefix("torch."),
        "rope": json.dumps(rope, sort_keys=True),
        "config": json.dumps(kept, sort_keys=True),
        "weights": fingerprint(model),
    }


def fingerprint(model: PreTrainedModel) -> str:
    """Return a hexadecimal digest of name, shape, dtype and sampled bytes of every parameter.

    Raises:
        CacheFileError: weights are offloaded.
    """
    digest = hashlib.blake2b(digest_size=16)
    for name, parameter in sorted(model.named_parameters()):
        weights = parameter.detach()
        if weights.device.type == "meta":
            raise CacheFileError(
                f"{name} has no weights at hand (device meta): it is offloaded, and a cache cannot "
                "be tied to it. Place the whole model on devices"
            )
        about = [name, str(weights.dtype), list(weights.shape)]
        digest.update(json.dumps(about).encode())
        sample = _sample(weights).cpu().contiguous().view(torch.uint8)
        digest.update(sample.numpy().data)
    return digest.hexdigest()


def _sample(weights: Tensor) -> Tensor:
    flat = weights.reshape(-1)
    count = flat.shape[0]
    if count <= NUM_SAMPLES:
        return flat
    # integer arithmetic, because rounded positions would differ between machines
    positions = torch.arange(NUM_SAMPLES, device=flat.device) * (count - 1) // (NUM_SAMPLES - 1)
    return flat[positions]


def require_same(path: str, found: Mapping[str, str], model: PreTrainedModel) -> None:
    """Compare the identity in a file with a model.

    Raises:
        CacheFileError: naming the first difference.
    """
    for key, ours in identity(model).items():
        theirs = found.get(key, "")
        if theirs == ours:
            continue
        what, saved, here = _difference(key, theirs, ours)
        raise CacheFileError(
            f"{path} was saved with another model: its {what} was {saved}, and this model's is "
            f"{here}. Load the model it was saved with, or start a new cache"
        )


def _difference(key: str, theirs: str, ours: str) -> tuple[str, str, str]:
    if key not in ("rope", "config"):
        return key, theirs, ours
    try:
        saved: Any = json.loads(theirs)
    except (ValueError, RecursionError):
        return key, "unreadable", ours
    here: Any = json.loads(ours)
    if isinstance(saved, dict):
        for setting in sorted({*saved, *here}):
            before, now = (repr(of.get(setting, "missing")) for of in (saved, here))
            if before != now:
                return f"{key} ({setting})", before, now
    return key, theirs, ours
