"""The converted copy of a GGUF file, a folder in Hugging Face format in the user's cache folder."""

import contextlib
import fcntl
import json
import os
import shutil
import struct
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from transformers import GenerationConfig, PreTrainedTokenizerFast

from agentkv.dialog.rendering import PROBE_TOOL, Renderer, TemplateError, chat_templates
from agentkv.models.gguf.architectures import architecture_of
from agentkv.models.gguf.configuration import config_of
from agentkv.models.gguf.header import GgufError, GgufHeader, read_header
from agentkv.models.gguf.tensors import Array, require_readable
from agentkv.models.gguf.tokenizer import convert_tokenizer, end_ids
from agentkv.models.gguf.weights import (
    Places,
    empty_model,
    places_of,
    stored_form,
    weight_of,
)
from agentkv.progress import Listener, Progress
from agentkv_env.user_cache import user_cache

_VERSION = 2
"""Goes up with every change to what a copy holds."""
_DONE = "model.safetensors"
_PART, _LOCK = ".part-", "lock"
"""A writer works in a folder with this prefix and holds a lock on this file in it."""
_NBYTES = {"F32": 4, "F16": 2, "BF16": 2}
"""Bytes of a number, by the names that safetensors has for dtypes."""


@dataclass(frozen=True)
class GgufModel:
    """A GGUF file whose metadata was read and whose weights were not."""

    header: GgufHeader

    @cached_property
    def config(self) -> Any:
        """The configuration, as transformers has it."""
        return config_of(self.header, end_ids(self.header))

    @cached_property
    def empty(self) -> Any:
        """The model without weights (device meta)."""
        return empty_model(self.header, self.config)

    @cached_property
    def places(self) -> Places:
        """The tensors of the file for each weight of the model."""
        return places_of(self.header, self.empty)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The tokenizer with its chat templates, which render."""
        return _tokenizer(self.header)

    @property
    def num_values(self) -> int:
        """Numbers in the weights."""
        weights = self.empty.state_dict()
        return sum(weights[name].numel() for name in self.places)

    def check(self) -> None:
        """Check that the file can be served, without reading its weights.

        Raises:
            GgufError: it cannot; the message says why.
        """
        self.check_tensors()
        _ = self.tokenizer

    def check_tensors(self) -> None:
        """Check all but the tokenizer, which takes as long as the rest. Raises GgufError."""
        architecture_of(self.header)
        require_readable(self.header)
        _ = self.places

    @cached_property
    def forms(self) -> dict[str, str]:
        """Dtype of each weight in the copy: 16 bits where the file has 16, else 32."""
        return {name: stored_form(self.header, name, place) for name, place in self.places.items()}

    def folder(self, on_progress: Listener | None = None) -> Path:
        """Return the folder of the copy, which is written first if there is none.

        Args:
            on_progress: told how much is written.

        Raises:
            GgufError: the file cannot be served, or the copy cannot be written; nothing is left.
        """
        folder = copies_folder() / f"{self.header.digest}-{_VERSION}"
        if not (folder / _DONE).is_file():
            _write(self, folder, on_progress)
        return folder


def open_gguf(path: Path) -> GgufModel:
    """Read the metadata of a GGUF file, or of all parts of a split one.

    Raises:
        GgufError: it cannot be read.
    """
    return GgufModel(read_header(path))


def copies_folder() -> Path:
    """Return the folder of converted copies: agentkv/gguf in the user's cache folder."""
    return user_cache("gguf")


def _tokenizer(header: GgufHeader) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a file. Raises GgufError if its chat template fails to render."""
    tokenizer, config = convert_tokenizer(header)
    config.pop("tokenizer_class")
    make: Any = PreTrainedTokenizerFast  # has no types
    made: PreTrainedTokenizerFast = make(tokenizer_object=tokenizer, **config)
    try:
        for name, template in chat_templates(made).items():
            functions = [PROBE_TOOL] if name == "tool_use" else []
            Renderer(made, template).render([{"role": "user", "content": "Hello"}], functions)
    except TemplateError as error:
        raise GgufError(f"{header.path}: {error}") from error
    return made


def _write(model: GgufModel, folder: Path, on_progress: Listener | None) -> None:
    model.check()
    empty = model.empty.state_dict()
    needed = sum(_NBYTES[form] * empty[name].numel() for name, form in model.forms.items())
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(folder.parent)
        free = shutil.disk_usage(folder.parent).free
        if free < needed + (64 << 20):
            raise GgufError(
                f"the converted copy of {model.header.path} takes {needed / 1e9:.1f} GB, and "
                f"{folder.parent} has {free / 1e9:.1f} GB free; free some, or let XDG_CACHE_HOME "
                "name a folder on another disk"
            )
        with (
            tempfile.TemporaryDirectory(dir=folder.parent, prefix=_PART) as part,
            (Path(part) / _LOCK).open("w") as lock,
        ):
            fcntl.flock(lock, fcntl.LOCK_EX)
            made = Path(part) / "copy"
            made.mkdir()
            model.tokenizer.save_pretrained(made)
            model.config.save_pretrained(made)
            ends = end_ids(model.header)
            generation: Any = GenerationConfig  # has no types
            generation(eos_token_id=ends, bos_token_id=model.config.bos_token_id).save_pretrained(
                made
            )
            _write_weights(model, made / _DONE, on_progress)
            try:
                made.rename(folder)
            except OSError:
                if not (folder / _DONE).is_file():  # else another process was faster
                    raise
    except OSError as error:
        raise GgufError(
            f"the converted copy of {model.header.path} cannot be written to {folder.parent}: "
            f"{error.strerror or error}"
        ) from error


def _remove_abandoned(parent: Path) -> None:
    """Remove what killed processes have left: parts whose lock nobody holds."""
    for part in parent.glob(f"{_PART}*"):
        with contextlib.suppress(OSError), (part / _LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(part)


def _write_weights(model: GgufModel, path: Path, on_progress: Listener | None) -> None:
    """Write the weights one after the other, so that one at most is in memory."""
    empty, start = model.empty.state_dict(), 0
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for name, form in model.forms.items():
        end = start + _NBYTES[form] * empty[name].numel()
        entries[name] = {
            "dtype": form,
            "shape": list(empty[name].shape),
            "data_offsets": [start, end],
        }
        start = end
    head = json.dumps(entries).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        written = 0
        for name, form in model.forms.items():
            if on_progress is not None:
                on_progress(
                    Progress("converting", written, model.num_values, model.header.path.name)
                )
            place = model.places[name]
            values = weight_of(model.header, name, place, empty[name], model.config)
            file.write(_bytes_of(values, form))
            written += values.size
        file.flush()
        os.fsync(file.fileno())


def _bytes_of(values: Array, form: str) -> bytes:
    """Return float32 numbers in the form of safetensors; none is rounded if they came from it."""
    if form == "BF16":
        values = (values.view(np.uint32) >> 16).astype(np.uint16)
    elif form == "F16":
        values = values.astype(np.float16)
    return values.tobytes()
