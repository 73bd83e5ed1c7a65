"""LoRA adapters in peft's format: their folder, the model that they belong to, adding them."""

import contextlib
import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from agentkv.models.find import ModelError, own_adapter, read_json, weights_digest
from agentkv.settings import ADAPTED, ModelSettings

BASE = "agentkv.json"
"""File beside peft's own that names the model that an adapter was trained on."""
NAMES = "names_elements"
"""Key in `BASE`: every reply that the adapter learned names, in the line before its action, what it
acts on (`reply.names_element`)."""
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""peft's files."""


def base_file(name: str) -> str:
    """Return the content of `BASE` for an adapter of the model `name`.

    Raises:
        ModelError: as `find_model`.
    """
    return json.dumps({"base": name, "base_weights": weights_digest(name)}, indent=2) + "\n"


def about_file(base: str, *, names_elements: bool) -> str:
    """Return the content of `BASE` for an adapter whose training is over or goes on.

    Args:
        base: from `base_file`.
        names_elements: what it learned to write before an action names what is acted on.
    """
    return json.dumps({**json.loads(base), NAMES: names_elements}, indent=2) + "\n"


def names_elements(folder: Path) -> bool:
    """Return whether an adapter, which `check_adapter` has checked, says that it names what it acts
    on."""
    path = folder / BASE
    return path.is_file() and read_json(path).get(NAMES) is True


def require_peft() -> None:
    """Check that peft is installed. Raises ModelError."""
    if find_spec("peft") is None:
        raise ModelError(
            "adapters need the package peft, which is not installed: pip install "
            "'agentkv-web[train]'"
        )


def check_adapter(adapter: str | Path, name: str | Path) -> Path:
    """Check that an adapter can be added to the model `name`, without loading either, and return
    its folder.

    An adapter that another program made names no base by its weights; whether it fits shows when
    it is added.

    Raises:
        ModelError: peft is missing, the folder holds no LoRA, or it belongs to another model.
    """
    folder = Path(adapter).expanduser()
    missing = [each for each in (CONFIG, WEIGHTS) if not (folder / each).is_file()]
    if missing:
        raise ModelError(
            f"adapter {folder}: {' and '.join(missing)} missing; give the folder that `agentkv "
            "train` or peft wrote"
        )
    require_peft()
    kind = read_json(folder / CONFIG).get("peft_type")
    if kind != "LORA":
        raise ModelError(f"adapter {folder} is of type {kind!r:.40}; only LORA is supported")
    if (folder / BASE).is_file():
        base = read_json(folder / BASE)
        own = weights_digest(name)
        if base.get("base_weights") != own:
            raise ModelError(
                f"adapter {folder} was trained on {base.get('base')} (weights "
                f"{base.get('base_weights')}), and the model is {name} (weights {own}); give the "
                "model that it was trained on"
            )
    return folder


def check_adapters(name: str | Path, adapter: str | Path | None) -> list[Path]:
    """Check the adapters that the model `name` is loaded with, without loading them, and return
    their folders in the order in which they are added: its own, and then `adapter`.

    Raises:
        ModelError: as `check_adapter`.
    """
    found: list[Path] = []
    if (own := own_adapter(name)) is not None:
        try:
            found.append(check_adapter(own, ADAPTED[str(name)]))
        except ModelError as error:
            raise ModelError(f"{name} is {ADAPTED[str(name)]} with an adapter; {error}") from None
    return found if adapter is None else [*found, check_adapter(adapter, name)]


def adapter_digest(adapter: str | Path) -> str:
    """Return 16 hex digits of a SHA-256 over an adapter's files, and over whether it names what it
    acts on, to tell adapters apart.

    Raises:
        ModelError: a file cannot be read.
    """
    folder, digest = Path(adapter).expanduser(), hashlib.sha256()
    if names_elements(folder):
        digest.update(NAMES.encode())
    for name in (CONFIG, WEIGHTS):
        path = folder / name
        try:
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error.strerror}") from None
    return digest.hexdigest()[:16]


def digest_of(settings: ModelSettings) -> str:
    """Return what tells the weights of a loaded model apart: see `weights_digest`.

    Raises:
        ModelError: as `find_model`, or the adapter cannot be read.
    """
    adapter = "" if settings.adapter is None else adapter_digest(settings.adapter)
    return weights_digest(settings.model, settings.weights, adapter)


def add_adapter(model: Any, folder: Path, *, merged: bool) -> Any:
    """Return a transformers model with an adapter, which `check_adapter` has checked.

    Args:
        model: is changed.
        merged: add the product of its matrices to the weights; otherwise layers keep them apart.

    Raises:
        ModelError: the adapter does not fit the model's layers.
    """
    wrapped = wrapped_in(model, folder, learns=False)
    return wrapped.merge_and_unload() if merged else wrapped.get_base_model()


def wrapped_in(model: Any, folder: Path, *, learns: bool) -> Any:
    """Return peft's model around a transformers model with an adapter.

    Args:
        model: is changed.
        folder: of the adapter, which `check_adapter` has checked.
        learns: the adapter's matrices are in float32 and take gradients.

    Raises:
        ModelError: the adapter does not fit the model's layers.
    """
    from peft import PeftModel, get_peft_model_state_dict  # seconds of imports

    try:
        with safe_open(folder / WEIGHTS, "pt") as file:
            stored = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}
        with quiet_peft():
            wrapped = PeftModel.from_pretrained(model, str(folder), is_trainable=learns)
        # "auto" would ask the hub for the base that the adapter names
        found = get_peft_model_state_dict(wrapped, save_embedding_layers=False)
        own = {key: tuple(each.shape) for key, each in found.items()}
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{folder / WEIGHTS} cannot be read: {error}") from error
    except (ValueError, RuntimeError, TypeError) as error:
        raise _unfit(folder, " ".join(str(error).split())[:200]) from error
    if own != stored:
        raise _unfit(folder, _difference(stored, own))
    return wrapped


@contextlib.contextmanager
def quiet_peft() -> Iterator[None]:
    """Keep to itself what peft warns of: it asks transformers by names that are going away, and we
    report what does not fit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _unfit(folder: Path, reason: str) -> ModelError:
    return ModelError(f"adapter {folder} does not fit the model's layers: {reason}")


def _difference(stored: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    differing = sorted({key for key, _ in stored.items() ^ own.items()})
    return f"{len(differing)} matrices differ, such as {differing[0]}"
