"""Convert a GGUF file into a folder in Hugging Face format, once, in the user's cache folder.

Values of 16 bits and less become 16 bits, so that a converted copy of a quantized file takes two
to four times the file's bytes: neither torch nor our cache computes with llama.cpp's blocks.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentkv.models.gguf.header import Header, TensorPlace, read_header
from agentkv.models.gguf.tokenizer import FoundTokenizer, read_tokenizer
from agentkv.models.gguf.values import LONG_FACTORS, ROPE_FACTORS, SHORT_FACTORS, values_of
from agentkv.models.refused import ModelError

VERSION = 1
"""Version of what is written; copies of others are not used."""


def kept_folder() -> Path:
    """Return the folder of converted copies: agentkv/models in the user's cache folder."""
    root = os.environ.get("XDG_CACHE_HOME")
    return Path(root or Path.home() / ".cache").expanduser() / "agentkv" / "models"


def described(path: Path) -> tuple[Path, int]:
    """Return a folder with the config and the tokenizer of a GGUF file, without weights.

    Written at the first call, into the user's cache folder.

    Returns:
        The folder, and the number of values in the file's tensors.

    Raises:
        ModelError: the file cannot be served; the message says why.
    """
    header = read_header(path)
    folder = kept_folder() / f"{_key(header)}-config"
    if not folder.is_dir():
        with _complete(folder, header) as unfinished:
            _write_description(unfinished, header)
    return folder, header.num_values


def converted(path: Path) -> Path:
    """Return the folder that a GGUF file was converted into, in Hugging Face format.

    Converts it at the first call, which reads every weight.

    Raises:
        ModelError: the file cannot be served, or the disk has no room for the copy; nothing is left
            half-written.
    """
    header = read_header(path)
    folder = kept_folder() / _key(header)
    if folder.is_dir():
        return folder
    description, _ = described(path)
    with _complete(folder, header, num_bytes=4 * header.num_values) as unfinished:
        shutil.copytree(description, unfinished, dirs_exist_ok=True)
        from agentkv.models.gguf.weights import write_weights  # torch takes a second

        write_weights(unfinished, header)
    return folder


def _key(header: Header) -> str:
    return f"{header.paths[0].stem}-{header.digest}-{VERSION}"


@contextmanager
def _complete(folder: Path, header: Header, *, num_bytes: int = 0) -> Iterator[Path]:
    """Make an empty folder, which becomes `folder` once the block has ended without an error.

    Args:
        num_bytes: that the block may write.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder.parent).free
        if free < num_bytes:
            raise ModelError(
                f"{header.name} needs up to {num_bytes / 1e9:.1f} GB for a converted copy in "
                f"{folder.parent}, and {free / 1e9:.1f} GB are free; let XDG_CACHE_HOME name a "
                "folder with more room"
            )
        with tempfile.TemporaryDirectory(
            prefix=f".{folder.name}-", dir=folder.parent, ignore_cleanup_errors=True
        ) as unfinished:
            inner = Path(unfinished) / "model"
            inner.mkdir()
            yield inner
            try:
                inner.rename(folder)
            except OSError:
                if not folder.is_dir():  # another process was first
                    raise
    except OSError as error:
        raise ModelError(
            f"{header.name} cannot be converted into {folder.parent}: {error.strerror or error}"
        ) from error


# ---- config and tokenizer


def _write_description(folder: Path, header: Header) -> None:
    found = read_tokenizer(header)
    config = _config_of(header, found)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    generation = {"eos_token_id": found.end_ids}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2))
    found.tokenizer.save(str(folder / "tokenizer.json"))
    described: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": config.get("max_position_embeddings"),
        **found.specials,
    }
    if templates := _templates(header):
        described["chat_template"] = templates
        _check_templates(folder, header, described)
    (folder / "tokenizer_config.json").write_text(json.dumps(described, indent=2))


def _templates(header: Header) -> Any:
    """Return the chat template, or a list of them by name if there are several; else None."""
    prefix = "tokenizer.chat_template"
    named = {
        key.removeprefix(prefix).removeprefix(".") or "default": value
        for key, value in header.metadata.items()
        if key == prefix or key.startswith(f"{prefix}.")
    }
    if set(named) <= {"default"}:
        return named.get("default")
    return [{"name": name, "template": template} for name, template in named.items()]


def _check_templates(folder: Path, header: Header, described: dict[str, Any]) -> None:
    """Render a message by every chat template. Raises ModelError."""
    from transformers import PreTrainedTokenizerFast

    specials = {name: described[name] for name in described if name.endswith("_token")}
    make: Any = PreTrainedTokenizerFast
    tokenizer = make(tokenizer_file=str(folder / "tokenizer.json"), **specials)
    templates = described["chat_template"]
    for template in templates if isinstance(templates, list) else [{"template": templates}]:
        try:
            tokenizer.apply_chat_template(
                [{"role": "user", "content": "a"}],
                chat_template=template["template"],
                tokenize=False,
                add_generation_prompt=True,
            )
        except Exception as error:  # a template may raise whatever it likes
            message = " ".join(str(error).split())[:200]
            name = template.get("name", "default")
            raise ModelError(
                f"{header.name}: the chat template ({name}) does not render a message: {message}"
            ) from error


def _config_of(header: Header, found: FoundTokenizer) -> dict[str, Any]:
    """Return the model's config as transformers stores it. Raises ModelError."""
    from transformers import AutoConfig, modeling_gguf_pytorch_utils

    read: Any = modeling_gguf_pytorch_utils.load_gguf_checkpoint
    try:
        values = read(str(header.paths[0]), return_tensors=False)["config"]
    except Exception as error:  # of an architecture that it does not know, among others
        raise ModelError(
            f"{header.name} holds a model of the architecture {header.architecture!r}, which "
            f"transformers does not read from GGUF files: {' '.join(str(error).split())[:200]}"
        ) from error
    stored = {tensor.name: tensor for tensor in header.tensors}
    values["tie_word_embeddings"] = "output.weight" not in stored
    embedded = stored.get("token_embd.weight")
    num_tokens = found.tokenizer.get_vocab_size()
    if embedded is not None and embedded.shape[0] < num_tokens:
        raise ModelError(
            f"{header.name}: the tokenizer has {num_tokens} tokens, but the model has only "
            f"{embedded.shape[0]} embeddings"
        )
    if embedded is not None:
        values["vocab_size"] = embedded.shape[0]
    if (scaling := _rope_scaling(header, stored)) is not None:
        values["rope_scaling"] = scaling
    if (head_dim := header.of_architecture("attention.key_length")) is not None:
        values["head_dim"] = head_dim  # transformers 5.23 takes it of some architectures only
    values["eos_token_id"] = found.end_ids[0] if found.end_ids else None
    values.pop("_name_or_path", None)
    kind = values.pop("model_type")
    try:
        config: Any = AutoConfig.for_model(kind, **values)
    except Exception as error:
        raise ModelError(
            f"{header.name}: transformers refuses its config: {' '.join(str(error).split())[:200]}"
        ) from error
    plain: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    for key in ("quantization_config", "_name_or_path", "torch_dtype"):
        plain.pop(key, None)
    plain["dtype"] = "float16" if _mostly(header) == "F16" else "bfloat16"
    return plain


def _rope_scaling(header: Header, stored: dict[str, TensorPlace]) -> dict[str, Any] | None:
    """Return how rotary frequencies are scaled, which transformers reads of gpt-oss only; None: as
    they are. Raises ModelError."""
    if header.architecture == "gpt-oss":
        return None
    kind = header.of_architecture("rope.scaling.type")
    factor = header.of_architecture("rope.scaling.factor") or 1.0
    length = header.of_architecture("rope.scaling.original_context_length")
    length = length or header.of_architecture("context_length")
    if ROPE_FACTORS in stored:
        short = long = ROPE_FACTORS
    elif LONG_FACTORS in stored and SHORT_FACTORS in stored:
        short, long = SHORT_FACTORS, LONG_FACTORS
    elif kind in (None, "none") or factor == 1.0:
        return None
    elif kind in ("linear", "yarn"):
        found = {"rope_type": kind, "factor": factor}
        return found | ({"original_max_position_embeddings": length} if kind == "yarn" else {})
    else:
        raise ModelError(
            f"{header.name} scales its rotation by the rule {kind!r}, which agentkv does not know"
        )
    attention = header.of_architecture("rope.scaling.attn_factor")
    return {
        "rope_type": "longrope",  # the one with a factor for each frequency
        "short_factor": [float(each) for each in values_of(stored[short])],
        "long_factor": [float(each) for each in values_of(stored[long])],
        "factor": factor,
        "attention_factor": 1.0 if short == long and attention is None else attention,
        "original_max_position_embeddings": length,
    }


def _mostly(header: Header) -> str:
    """Return the name of the format in which most values are stored."""
    from gguf import GGMLQuantizationType

    counts: dict[int, int] = {}
    for tensor in header.tensors:
        counts[tensor.kind] = counts.get(tensor.kind, 0) + tensor.num_values
    return str(GGMLQuantizationType(max(counts, key=counts.__getitem__)).name)
