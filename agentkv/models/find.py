"""Where a model's name leads, said before anything is loaded: a folder with its parts, a hub id."""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache
from safetensors import SafetensorError, safe_open

NANO = Path(__file__).parent / "nano"
"""The model that ships with the package."""

_PARTS = {
    "config.json": "config.json",
    "tokenizer.json": "tokenizer.json",
    "weights (*.safetensors)": "*.safetensors",
}


class ModelError(ValueError):
    """A name or folder that gives no model; the message says what is missing and what to do."""


def find_model(name: str | Path) -> Path | str:
    """The folder that `name` means, checked for its parts; or `name` itself if it is a hub id.

    Reads no weights, and asks nothing of the network.

    Raises:
        ModelError: no such folder, a folder that is no model, a hub id never downloaded.
    """
    if name == "nano":
        return _with_parts(NANO)
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _with_parts(folder)
    if isinstance(name, str) and name.count("/") == 1 and name[0] not in "./~":
        if not isinstance(try_to_load_from_cache(name, "config.json"), str):
            raise not_here(name)
        return name
    raise ModelError(
        f"unknown model {str(name)!r}: no such folder, and no hub id (owner/name); "
        "known by name: nano"
    )


def weights_digest(name: str | Path) -> str:
    """What tells a model's weights from others: the beginning of a SHA-256 over all their files.

    Reads them once: 0.1 s for `nano`, seconds for some GB.

    Raises:
        ModelError: as `find_model`.
    """
    folder = _folder(find_model(name))
    digest = hashlib.sha256()
    for path in sorted(folder.glob(_PARTS["weights (*.safetensors)"])):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def check_files(source: Path | str) -> tuple[Path, int]:
    """Look into the files of what `find_model` gave, so that nothing large or strange is built.

    Returns:
        The folder they are in, and how many numbers its weights are.

    Raises:
        ModelError: a file is missing or cannot be read, config.json has a number that is none or
            more layers than there are weights, or the index names files outside the folder.
    """
    folder = _folder(source)
    if isinstance(source, str) and not any(folder.glob("*.safetensors")):
        raise not_here(source)
    config = _json(folder / "config.json")
    index = folder / "model.safetensors.index.json"
    if index.exists():
        files = _json(index).get("weight_map")
        if not isinstance(files, dict) or not all(map(_is_weights_file, files.values())):
            raise ModelError(f"{index}: weight_map must name *.safetensors files beside it")
    num_weights = num_values = 0
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, "pt") as file:
                for key in file.keys():  # noqa: SIM118  # it is no mapping
                    num_weights += 1
                    num_values += math.prod(file.get_slice(key).get_shape())
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path} cannot be read: {error}") from error
    for part in (config, config.get("text_config")):
        num_layers = (
            part.get("num_hidden_layers", part.get("n_layer")) if isinstance(part, dict) else 0
        )
        if isinstance(num_layers, int) and num_layers > num_weights:
            raise ModelError(
                f"{folder}: config.json says {num_layers} layers; there are {num_weights} weights"
            )
    return folder, num_values


def _folder(source: Path | str) -> Path:
    if isinstance(source, Path):
        return source
    config = try_to_load_from_cache(source, "config.json")
    assert isinstance(config, str), "find_model has looked"
    return Path(config).parent


def _json(path: Path) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no number")

    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path}: expected an object, found a {type(content).__name__}")
    return content


def _is_weights_file(name: object) -> bool:
    return isinstance(name, str) and name.endswith(".safetensors") and Path(name).name == name


def not_here(hub_id: str) -> ModelError:
    """The error for a hub id of which something is missing on this machine."""
    return ModelError(
        f"{hub_id!r} is not on this machine, and nothing is downloaded at run time; "
        f"fetch it once with `hf download {hub_id}`, or give a folder, or `nano`"
    )


def _with_parts(folder: Path) -> Path:
    missing = [part for part, pattern in _PARTS.items() if not any(folder.glob(pattern))]
    if missing:
        found = ", ".join(sorted(path.name for path in folder.glob("*"))[:8]) or "nothing"
        raise ModelError(f"{folder} is no model: {', '.join(missing)} missing; found: {found}")
    return folder
