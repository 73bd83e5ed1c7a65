"""The weights of a GGUF file as files of safetensors, by the names that transformers uses."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, modeling_gguf_pytorch_utils

from agentkv.models.gguf.header import Header, TensorPlace
from agentkv.models.gguf.values import FACTORS, values_of
from agentkv.models.refused import ModelError

theirs: Any = modeling_gguf_pytorch_utils  # has no types
SHARD = 2 << 30  # bytes after which a file of weights ends, so that no more is held in memory
_HALVES = {"F16": torch.float16, "BF16": torch.bfloat16}


def write_weights(folder: Path, header: Header) -> None:
    """Write all weights by transformers' names. Raises ModelError."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    with torch.device("meta"):
        make: Any = AutoModelForCausalLM.from_config
        model = make(config, trust_remote_code=False)
    processor = theirs.TENSOR_PROCESSORS.get(header.architecture, theirs.TensorProcessor)(
        config=config.to_dict()
    )
    names = theirs.get_gguf_hf_weights_map(model, processor)
    written: dict[str, str] = {}
    held: dict[str, torch.Tensor] = {}
    gathered: dict[str, Any] = {"tensors": {}, "config": config.to_dict()}

    def flush() -> None:
        if held:
            name = f"model-{len(set(written.values())) + 1:05}.safetensors"
            save_file(held, folder / name, metadata={"format": "pt"})
            written.update(dict.fromkeys(held, name))
            held.clear()

    for place in header.tensors:
        if place.name in FACTORS:
            continue
        result = processor.process(
            weights=values_of(place),
            name=place.name,
            tensor_key_mapping=names,
            parsed_parameters=gathered,
        )
        if result.name is None:  # experts, which are gathered
            continue
        if result.name not in names:
            raise ModelError(
                f"{header.name} holds {place.name}, for which transformers' {config.model_type} "
                "has no place"
            )
        held[names[result.name]] = _stored(torch.from_numpy(result.weights), place)
        if sum(each.nbytes for each in held.values()) >= SHARD:
            flush()
    for name, tensor in gathered["tensors"].items():
        held[name] = tensor.to(torch.bfloat16)
    flush()
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    missing = {name for name, _ in model.named_parameters()} - written.keys() - tied
    if missing:
        some = ", ".join(sorted(missing)[:3])
        raise ModelError(f"{header.name} lacks {len(missing)} weights of the model: {some}")
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": written}, indent=1)
    )


def _stored(values: torch.Tensor, place: TensorPlace) -> torch.Tensor:
    """Return values in the dtype of the copy: vectors as they are, all others in 16 bits."""
    from gguf import GGMLQuantizationType

    name = GGMLQuantizationType(place.kind).name
    if values.dim() < 2:
        return values.contiguous()
    half = _HALVES.get(name, torch.float16)
    if half == torch.float16 and values.abs().max() > torch.finfo(half).max:
        half = torch.bfloat16
    return values.to(half).contiguous()
