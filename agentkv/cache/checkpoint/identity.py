"""Identity of the model that a cache belongs to.

Stored keys and values only make sense to the weights that produced them, and nothing in the numbers
would show that another model reads them.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from agentkv.cache.checkpoint.file import CacheFileError
from agentkv.weights.linear import QuantizedEmbedding, QuantizedLinear

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
"""Numbers of each parameter that a fingerprint covers, evenly spread (our choice): cheap for models
of any size, and any training step changes most numbers."""


def identity(model: PreTrainedModel) -> dict[str, Any]:
    """Return everything that keys and values depend on, as JSON values in the order of comparison:
    family, dtype, rotary embedding, other settings, fingerprint of the weights.

    Raises:
        CacheFileError: weights are offloaded.
    """
    settings = json.loads(json.dumps(model.config.to_dict(), default=str))
    kept = {key: value for key, value in settings.items() if key not in WITHOUT_EFFECT}
    family = kept.pop("model_type", "")
    rope = {f"rope ({key})": kept.pop(key) for key in ROPE if key in kept}
    config = {f"config ({key})": kept[key] for key in sorted(kept)}
    dtype = str(model.dtype).removeprefix("torch.")
    return {"family": family, "dtype": dtype, **rope, **config, "weights": fingerprint(model)}


def fingerprint(model: PreTrainedModel) -> str:
    """Return a hexadecimal digest of name, shape, dtype and sampled bytes of every parameter, and
    of the tensors that hold quantized weights.

    Raises:
        CacheFileError: weights are offloaded.
    """
    digest = hashlib.blake2b(digest_size=16)
    for name, parameter in sorted([*model.named_parameters(), *_quantized(model)]):
        weights = parameter.detach()
        if weights.device.type == "meta":
            raise CacheFileError(
                f"{name} has no weights in memory (device meta) because it is offloaded, so no "
                "cache can be tied to this model; place the whole model on devices"
            )
        about = [name, str(weights.dtype), list(weights.shape)]
        digest.update(json.dumps(about).encode())
        sample, count = weights.reshape(-1), weights.numel()
        if count > NUM_SAMPLES:
            # integer arithmetic, because rounded positions would differ between machines
            steps = torch.arange(NUM_SAMPLES, device=weights.device)
            sample = sample[steps * (count - 1) // (NUM_SAMPLES - 1)]
        digest.update(sample.cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _quantized(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield names and tensors of weights in blocks, which are no parameters."""
    for path, module in model.named_modules():
        if isinstance(module, QuantizedLinear | QuantizedEmbedding):
            packed = module.packed
            yield f"{path}.codes", packed.codes
            yield f"{path}.scales", packed.scales
            if packed.steps is not None:
                yield f"{path}.steps", packed.steps


def require_same(saved: Mapping[str, Any], model: PreTrainedModel) -> None:
    """Compare a saved identity with a model.

    Raises:
        CacheFileError: naming the first difference.
    """
    here = identity(model)
    for key in {**here, **saved}:
        before, now = saved.get(key, "missing"), here.get(key, "missing")
        if before != now:
            raise CacheFileError(
                f"it was saved with another model: its {key} was {before}, and this model's is "
                f"{now}. Load the model it was saved with, or start a new cache"
            )
