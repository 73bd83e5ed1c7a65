"""Load a language model from this machine; nothing is downloaded."""

import contextlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from agentkv.cache.hf.attach import attach
from agentkv.cache.hf.trim import trim_heap
from agentkv.defaults import CHUNK
from agentkv.dialog.chat import ChatTemplate
from agentkv.dialog.grammar import Grammar
from agentkv.dialog.prompt import PlainTemplate, Template
from agentkv.dialog.rendering import TemplateError, chat_templates
from agentkv.models.adapter import add_adapter, check_adapters, names_elements
from agentkv.models.find import (
    ModelError,
    check_files,
    computing_device,
    default_cache_dtype,
    find_model,
    gguf_in_blocks,
    half_dtype,
    is_gguf,
    model_folder,
    read_json,
    require_quantizable,
)
from agentkv.models.gguf.header import GgufError
from agentkv.models.local import LocalModel
from agentkv.progress import Listener, Progress
from agentkv.settings import Weights, tuned_for
from agentkv.weights.huge_pages import move_weights
from agentkv.weights.replace import quantize_linear
from agentkv_kernels.device import choice_here

if TYPE_CHECKING:
    from agentkv.models.gguf.converted import GgufModel

_MAX_PARAMETERS_PER_VALUE = 8
"""Parameters that one stored value may hold: eight of 4 bits packed into 32."""


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers from writing while the block runs: our errors report in a line what it
    logs, and its progress bar has no place in a log or in the output of a script. The lock of a bar
    would also outlive a killed process."""
    logging: Any = transformers_logging
    verbosity, has_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bar:
            logging.enable_progress_bar()


@_quiet()
def load_model(
    name: str | Path,
    *,
    device: str = "auto",
    dtype: str = "auto",
    weights: Weights = "auto",
    adapter: str | Path | None = None,
    merge_adapter: bool = True,
    quantization_config: Any = None,
    device_map: Any = None,
    on_progress: Listener | None = None,
) -> LocalModel:
    """Load `nano`, `smollm2`, `smollm2-web`, a folder in Hugging Face format, a GGUF file, or a hub
    id that was downloaded before. A GGUF file whose matrices do not stay in its blocks is converted
    once, to a copy in the user's cache folder.

    Models whose tokenizer has the four special tokens of `PlainTemplate` use that template; all
    others use `ChatTemplate`. Code in the folder is never run.

    Args:
        device: where the weights go; `auto` is CUDA if available, else the CPU.
        dtype: name of a torch dtype; `auto` is the checkpoint's own on CUDA and float32 on a CPU.
            There, 16 bits take half the memory, and less time per token.
        weights: `int8` and `int4` quantize the linear layers, on a CPU. `auto` leaves the matrices
            of a GGUF file in its blocks if a CPU can compute with them and no `dtype` is given;
            other models are as with `float`, in `dtype`.
        adapter: folder of a LoRA adapter in peft's format. A GGUF file is then converted.
        merge_adapter: add the adapter to the weights; otherwise layers keep it apart, and no step
            is compiled. Of two, a model's own and `adapter`, the own one is always added.
        quantization_config: quantizes the weights, such as `transformers.QuantoConfig` or
            `BitsAndBytesConfig`; needs accelerate and the package that it names.
        device_map: places parts of the model, as in `from_pretrained`, in place of `device`; needs
            accelerate.
        on_progress: told how much of a GGUF file is converted, if it is.

    Raises:
        ModelError: unknown name, missing or unreadable files, weights that do not match
            config.json, a tokenizer that the agent cannot use, no GPU for `device`, a package
            that is not installed, or an adapter of another model.
    """
    source = find_model(name)
    if device_map is not None and device != "auto":
        raise ModelError(f"device_map places the model, and so does device={device!r}; give one")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError(
            f"device {device!r}: torch {torch.__version__} finds no GPU; use auto or cpu"
        )
    device = computing_device(device)
    places = device_map is not None or quantization_config is not None
    adapters = check_adapters(name, adapter)
    if adapters:
        _require_place_for_adapter(weights, is_merged=merge_adapter, is_placed=places)
        weights = "float" if weights == "auto" else weights
    if weights in ("int8", "int4"):
        require_quantizable(weights, device=device, dtype=dtype, is_placed=places)
    elif not places and (
        gguf := gguf_in_blocks(source, device=device, dtype=dtype, weights=weights)
    ):
        if on_progress is not None:
            on_progress(Progress("loading", name=str(name)))
        return _load_blocks(gguf, str(name))
    if dtype == "auto":
        torch_dtype = "auto" if device.startswith("cuda") else torch.float32
    else:
        torch_dtype = getattr(torch, dtype)
    if is_gguf(source):
        source = model_folder(source, on_progress)
        if on_progress is not None:
            on_progress(Progress("loading", name=str(name)))
    folder, num_values = check_files(source)
    if isinstance(source, Path):
        source = folder
    try:
        # Never run code from the folder, and never prompt for permission to do so.
        options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
        _complete_templates(tokenizer, folder)
        _check_size(AutoConfig.from_pretrained(source, **options), num_values, folder)
        if places:
            options["device_map"] = device if device_map is None else device_map
        if quantization_config is not None:
            options["quantization_config"] = quantization_config
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=torch_dtype,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # _check_loading reports them by name
            **options,
        )
        model, info = loaded
        _check_loading(info, folder)
        for number, lora in enumerate(adapters, start=1):
            is_merged = merge_adapter or number < len(adapters)
            model = add_adapter(model, lora, merged=is_merged)
        if weights in ("int8", "int4"):
            quantize_linear(model, weights)
        if not places:
            move_weights(model.to(device), trim_heap)
        local = local_model(
            model.eval(),
            tokenizer,
            name=str(name),
            cache_dtype=default_cache_dtype(name),
            **tuned_for(name),
        )
        if adapters:
            local = replace(local, names_elements=names_elements(adapters[-1]))
        trim_heap()
        return local
    except ModelError:
        raise
    except ImportError as error:
        message = " ".join(str(error).split())[:300]
        raise ModelError(f"{name} needs a package that is not installed: {message}") from error
    except Exception as error:  # libraries raise all kinds of errors for malformed files
        message = " ".join(str(error).split())[:300]
        raise ModelError(
            f"{folder} cannot be read as a model: {type(error).__name__}: {message}"
        ) from error


def _require_place_for_adapter(weights: Weights, *, is_merged: bool, is_placed: bool) -> None:
    """Check that an adapter can be added to weights in this form. Raises ModelError."""
    if is_placed:
        raise ModelError(
            "an adapter is added to a model in floating point on one device; give no device_map "
            "and no quantization_config"
        )
    if weights in ("int8", "int4") and not is_merged:
        raise ModelError(
            f"weights={weights!r} quantizes a model with its adapter merged; leave merge_adapter on"
        )


def _load_blocks(gguf: "GgufModel", name: str) -> LocalModel:
    """Load a GGUF file whose matrices stay in its blocks."""
    from agentkv.models.gguf.blocks import load_blocks

    try:
        # bytes are packed while Python makes the tokenizer and imports the kernels
        with ThreadPoolExecutor(1) as pool:
            packing = pool.submit(load_blocks, gguf)
            tokenizer = gguf.tokenizer
            choice_here()
            model = packing.result()
        trim_heap()  # what packing and the tokenizer left would stand beside the copy
        move_weights(model, trim_heap)
        local = local_model(
            model,
            tokenizer,
            name=name,
            cache_dtype=default_cache_dtype(name),
            **tuned_for(name),
        )
        trim_heap()
        return local
    except GgufError as error:
        raise ModelError(str(error)) from error
    except OSError as error:
        raise ModelError(f"{gguf.header.path} cannot be read: {error.strerror}") from error


def _complete_templates(tokenizer: Any, folder: Path) -> None:
    """Add chat templates that transformers does not read: with a file of a further template it
    ignores those in tokenizer_config.json, and those of a processor are not the tokenizer's."""
    found = tokenizer.chat_template or {}
    if isinstance(found, str) or "default" in found:
        return
    for name in ("tokenizer_config.json", "chat_template.json", "processor_config.json"):
        path = folder / name
        stored = read_json(path).get("chat_template") if path.is_file() else None
        if isinstance(stored, str):
            stored = {"default": stored}
        elif isinstance(stored, list):
            stored = {each["name"]: each["template"] for each in stored}
        if stored:
            tokenizer.chat_template = {**stored, **found}
            return


def _check_size(config: Any, num_values: int, folder: Path) -> None:
    """Reject a config.json whose model is far larger than the weight files.

    transformers would first allocate such a model in full, with random weights. Raises ModelError.
    """
    with torch.device("meta"):
        make: Any = AutoModelForCausalLM.from_config
        model = make(config, trust_remote_code=False)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    if num_parameters > _MAX_PARAMETERS_PER_VALUE * num_values:
        raise ModelError(
            f"{folder}: config.json describes {num_parameters} parameters, but the weight files "
            f"hold only {num_values} values"
        )


def _check_loading(info: Mapping[str, Any], folder: Path) -> None:
    """Reject a model with weights that stayed random or were not used.

    Args:
        info: the loading info of transformers.

    Raises:
        ModelError: naming some of the weights.
    """
    problems = {
        "missing_keys": "are missing and would be random",
        "unexpected_keys": "do not belong to the model in config.json",
        "mismatched_keys": "differ in shape from config.json",
    }
    for key, problem in problems.items():
        names = [each if isinstance(each, str) else each[0] for each in info.get(key) or ()]
        if names:
            some = ", ".join(sorted(names)[:4]) + (", ..." if len(names) > 4 else "")
            raise ModelError(f"{folder}: {len(names)} weights {problem}: {some}")
    if info.get("error_msgs"):
        raise ModelError(f"{folder}: the weights cannot be used: {info['error_msgs'][0][:300]}")


def local_model(
    model: Any,
    tokenizer: Any,
    *,
    name: str,
    cache_dtype: str | None = None,
    budget: str | None = None,
    chunk: int = CHUNK,
) -> LocalModel:
    """Wrap a transformers model and its fast tokenizer, both in memory, as a `LocalModel`.

    Attaches our attention to `model`.

    Args:
        cache_dtype: in which caches store dense entries unless an agent chooses another; None: the
            model's dtype if it has 16 bits, else bfloat16.
        budget, chunk: of caches unless an agent chooses others; see `LocalModel`.

    Raises:
        ModelError: the tokenizer is not a fast one, has no end token or no default among its chat
            templates, or belongs to another model.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(f"{name} has no fast tokenizer (tokenizer.json), which the agent needs")
    is_plain = all(backend.token_to_id(token) is not None for token in PlainTemplate.SPECIALS)
    try:
        chat_templates(tokenizer)
    except TemplateError as error:
        raise ModelError(f"{name}: {error}") from None
    template: Template = (
        PlainTemplate(backend) if is_plain else ChatTemplate(tokenizer, end_ids=end_ids_of(model))
    )
    if not template.end_ids:
        raise ModelError(f"{name}: neither the tokenizer nor the chat template has an end token")
    num_embeddings = model.get_input_embeddings().num_embeddings
    largest_id = max(backend.get_vocab(False).values(), default=-1)
    if largest_id >= num_embeddings:
        raise ModelError(
            f"{name}: the tokenizer has ids up to {largest_id}, but the model has only "
            f"{num_embeddings} embeddings; use the tokenizer that belongs to the model"
        )
    attach(model)
    if cache_dtype is None:
        cache_dtype = half_dtype(str(model.dtype).removeprefix("torch."))
    return LocalModel(
        name=name,
        model=model,
        tokenizer=backend,
        source_tokenizer=tokenizer,
        template=template,
        grammar=Grammar(backend, end_id=min(template.end_ids)),
        max_positions=getattr(model.config, "max_position_embeddings", None),
        cache_dtype=cache_dtype,
        budget=budget,
        chunk=chunk,
    )


def end_ids_of(model: Any) -> list[int]:
    """Return the ids that end a reply by the generation config of a model."""
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return [ends] if isinstance(ends, int) else list(ends or ())
