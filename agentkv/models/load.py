"""Load a language model from this machine; nothing is downloaded."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from agentkv.cache.hf.attach import attach
from agentkv.dialog.chat import ChatTemplate
from agentkv.dialog.grammar import Grammar
from agentkv.dialog.prompt import PlainTemplate, Template
from agentkv.models.find import ModelError, check_files, find_model
from agentkv.models.local import LocalModel

_MOST_PER_VALUE = 8
"""Parameters that one number of a file may hold: eight of 4 bits in one of 32."""


def load_model(name: str | Path, *, device: str = "auto", dtype: str = "auto") -> LocalModel:
    """Load `nano`, a folder in Hugging Face format, or a hub id that has been downloaded before.

    Nothing is downloaded. The weights go to `device` (`auto`: CUDA if there is one) in `dtype`
    (`auto`: the checkpoint's own on CUDA, float32 on a CPU, where 16-bit is slower). Models whose
    tokenizer has our four special tokens read `PlainTemplate`, all others `ChatTemplate`.

    Raises:
        ModelError: no such model, or one with parts or weights missing, too many, or of wrong
            shapes; files that cannot be read.
    """
    source = find_model(name)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    elif device.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError(
            f"device {device!r}: torch {torch.__version__} sees no GPU; use auto or cpu"
        )
    if dtype == "auto":
        kept = "auto" if device.startswith("cuda") else torch.float32
    else:
        kept = getattr(torch, dtype)
    folder, num_values = check_files(source)
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # our errors say it in a line
    try:
        # Code in the folder is never run, and nobody is asked whether it may be.
        given: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        tokenizer = AutoTokenizer.from_pretrained(source, **given)
        _refuse_larger(AutoConfig.from_pretrained(source, **given), num_values, folder)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=kept,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # told below, by name
            **given,
        )
        model, found = loaded
        _refuse_other_weights(found, folder)
        return local_model(model.to(device).eval(), tokenizer, name=str(name))
    except ModelError:
        raise
    except Exception as error:  # the edge: whatever libraries make of files that are not right
        said = " ".join(str(error).split())[:300]
        raise ModelError(
            f"{folder} cannot be read as a model: {type(error).__name__}: {said}"
        ) from error
    finally:
        logging.set_verbosity(verbosity)


def _refuse_larger(config: Any, num_values: int, folder: Path) -> None:
    """Refuse a config.json of a far larger model than there are weights: it would be made in full,
    at random, before anything else is said. Raises ModelError."""
    with torch.device("meta"):
        make: Any = AutoModelForCausalLM.from_config
        model = make(config, trust_remote_code=False)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    if num_parameters > _MOST_PER_VALUE * num_values:
        raise ModelError(
            f"{folder}: config.json describes {num_parameters} parameters, and its weights are "
            f"{num_values} numbers"
        )


def _refuse_other_weights(found: Mapping[str, Any], folder: Path) -> None:
    """Refuse a model some of whose weights would be random, or are not used.

    Args:
        found: what transformers says of the loading.

    Raises:
        ModelError: naming some of the weights.
    """
    kinds = {
        "missing_keys": "are missing, and would be random",
        "unexpected_keys": "have no place in the model of config.json",
        "mismatched_keys": "have other shapes than config.json says",
    }
    for key, what in kinds.items():
        names = [each if isinstance(each, str) else each[0] for each in found.get(key) or ()]
        if names:
            some = ", ".join(sorted(names)[:4]) + (", ..." if len(names) > 4 else "")
            raise ModelError(f"{folder}: {len(names)} weights {what}: {some}")
    if found.get("error_msgs"):
        raise ModelError(f"{folder}: its weights cannot be used: {found['error_msgs'][0][:300]}")


def local_model(model: Any, tokenizer: Any, *, name: str) -> LocalModel:
    """A `LocalModel` of a transformers model and fast tokenizer already in memory.

    Attaches our attention to `model`.

    Raises:
        ModelError: the tokenizer is a slow one, or another model's.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(f"{name} has no fast tokenizer (tokenizer.json), which the agent needs")
    plain = all(backend.token_to_id(token) is not None for token in PlainTemplate.SPECIALS)
    template: Template = (
        PlainTemplate(backend) if plain else ChatTemplate(tokenizer, end_ids=_end_ids(model))
    )
    if not template.end_ids:
        raise ModelError(f"{name}: neither tokenizer nor chat template has an end token")
    rows, largest = (
        len(model.get_input_embeddings().weight),
        max(backend.get_vocab(False).values(), default=-1),
    )
    if largest >= rows:
        raise ModelError(
            f"{name}: its tokenizer gives numbers up to {largest}, and the model has {rows} "
            "embeddings; the two belong to different models"
        )
    attach(model)
    return LocalModel(
        name=name,
        model=model,
        tokenizer=backend,
        template=template,
        grammar=Grammar(backend, end_id=min(template.end_ids)),
        max_positions=getattr(model.config, "max_position_embeddings", None),
    )


def _end_ids(model: Any) -> list[int]:
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return [ends] if isinstance(ends, int) else list(ends or ())
