"""Where a model's name leads, said before anything is loaded: a folder with its parts, a hub id."""

from pathlib import Path

from huggingface_hub import try_to_load_from_cache

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
