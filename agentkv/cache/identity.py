"""Which model a cache belongs to, written down so that another one can be told from it.

What is stored of a token is worth something to the weights that made it and to no others, and
nothing in the numbers themselves would show that they were given to the wrong ones.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentkv.cache.file import CacheFileError

WITHOUT_EFFECT = frozenset(
    {
        "_name_or_path", "architectures", "bos_token_id", "chunk_size_feed_forward", "dtype",
        "eos_token_id", "id2label", "initializer_range", "label2id", "output_attentions",
        "output_hidden_states", "pad_token_id", "problem_type", "return_dict", "torch_dtype",
        "transformers_version", "use_cache",
    }
)  # fmt: skip
"""What a configuration says that no key or value depends on, or that is compared by itself."""

ROPE = ("rope_parameters", "rope_scaling", "rope_theta", "rope_local_base_freq")

NUM_SAMPLES = 4096
"""Numbers of each parameter that its fingerprint covers, evenly spread (our choice): 400 parameters
of any size are looked through in a moment, and any training step moves most numbers."""


def identity(model: PreTrainedModel) -> dict[str, str]:
    """Words for a file's metadata: family, dtype, rope, config and weights, to be compared in this
    order.

    Raises:
        CacheFileError: weights that are not at hand.
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
    """Of name, shape, dtype and a sample of the bytes of every parameter, in hexadecimal.

    Raises:
        CacheFileError: weights that are not at hand.
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
    # in whole numbers: a rounded place would not be the same everywhere
    places = torch.arange(NUM_SAMPLES, device=flat.device) * (count - 1) // (NUM_SAMPLES - 1)
    return flat[places]


def require_same(path: str, found: Mapping[str, str], model: PreTrainedModel) -> None:
    """Compare what a file says with the model it is to be used with.

    Raises:
        CacheFileError: naming the first difference.
    """
    for key, ours in identity(model).items():
        theirs = found.get(key, "")
        if theirs == ours:
            continue
        what, saved, here = _difference(key, theirs, ours)
        raise CacheFileError(
            f"{path} was saved with another model: its {what} was {saved}, that of this model is "
            f"{here}. Load the model it was saved with, or start a new cache"
        )


def _difference(key: str, theirs: str, ours: str) -> tuple[str, str, str]:
    if key not in ("rope", "config"):
        return key, theirs, ours
    try:
        saved: Any = json.loads(theirs)
    except (ValueError, RecursionError):
        return key, "not readable", ours
    here: Any = json.loads(ours)
    if isinstance(saved, dict):
        for setting in sorted({*saved, *here}):
            before, now = (repr(of.get(setting, "not there")) for of in (saved, here))
            if before != now:
                return f"{key} ({setting})", before, now
    return key, theirs, ours
