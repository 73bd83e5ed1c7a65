"""`agentkv doctor`: check what a run needs from the machine."""

import importlib.metadata
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from PIL import ImageFont

from agentkv.settings import SCRIPTED
from agentkv_env.browser import Browser, find_executable
from agentkv_env.errors import BrowserGone, BrowserMissing
from agentkv_env.sites.server import PortBusy, Server
from agentkv_env.sites.world import World
from agentkv_tasks.provenance import commit, processor, versions

if TYPE_CHECKING:
    from agentkv.models.gguf.converted import GgufModel

Verdict = Literal["ok", "degraded", "missing"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check: `degraded` means limited function, `missing` means none."""

    name: str
    verdict: Verdict
    detail: str


def tesseract_version() -> str | None:
    """Return the version of Tesseract, or None if it is not installed."""
    path = shutil.which("tesseract")
    if path is None:
        return None
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    first = (done.stdout or done.stderr).partition("\n")[0]
    return first.removeprefix("tesseract").strip() or "of unknown version"


def find_browser(executable: Path | None) -> str:
    """Return the path of the Chromium that a run would use.

    Raises:
        BrowserMissing: `executable` does not exist.
    """
    if executable is not None and shutil.which(str(executable)) is None:
        raise BrowserMissing(f"--browser-path {executable} is not an executable file")
    return str(executable or find_executable() or "Playwright's own Chromium")


def examine(*, browser_path: Path | None = None, model: str = "nano") -> Iterator[Finding]:
    """Run all checks. This takes seconds, because the browser and the sites are started."""
    yield Finding("python", "ok", f"{versions()['python']} at {sys.executable}")
    yield from _check_shadowing()
    yield _browser(browser_path)
    tesseract = tesseract_version()
    if tesseract is None:
        hint = "not found: text in images is not read; install tesseract-ocr"
        yield Finding("tesseract", "degraded", hint)
    else:
        yield Finding("tesseract", "ok", tesseract)
    yield _fonts()
    yield from _compute()
    yield from _model(model)
    yield _sites()
    yield Finding("commit", "ok", commit() or "not run from a git checkout")


def _check_shadowing() -> Iterator[Finding]:
    """Report another project's distribution with the name of our package."""
    try:
        other = importlib.metadata.version("agentkv")
    except importlib.metadata.PackageNotFoundError:
        return
    yield Finding(
        "package",
        "degraded",
        f"agentkv {other}, another project, is installed beside agentkv-web and may shadow its "
        "package or command: pip uninstall agentkv, then pip install --force-reinstall agentkv-web",
    )


def _browser(path: Path | None) -> Finding:
    try:
        place = find_browser(path)
        with Browser.launch(executable=str(path) if path else None) as browser:
            return Finding("browser", "ok", f"Chromium {browser.version} at {place}")
    except (BrowserMissing, BrowserGone) as error:
        return Finding("browser", "missing", str(error))


def _fonts() -> Finding:
    for name in ("DejaVuSans.ttf", "LiberationSans-Regular.ttf"):
        try:
            ImageFont.truetype(name, 18)
        except OSError:
            continue
        return Finding("fonts", "ok", name)
    hint = "neither DejaVu nor Liberation found: images use Pillow's font; install fonts-dejavu"
    return Finding("fonts", "degraded", hint)


def _compute() -> Iterator[Finding]:
    import torch  # takes seconds

    from agentkv_kernels.device import choice_here

    yield Finding("torch", "ok", f"{torch.__version__}, {torch.get_num_threads()} threads")
    on_cuda = torch.cuda.is_available()
    where = f"CUDA: {torch.cuda.get_device_name()}" if on_cuda else f"CPU: {processor()}"
    yield Finding("device", "ok", where)
    choice = choice_here()
    is_slower = choice.implementation == "torch"
    yield Finding("kernels", "degraded" if is_slower else "ok", str(choice))


def _model(name: str) -> Iterator[Finding]:
    if name in SCRIPTED:
        yield Finding("model", "ok", f"the script '{name}'")
        return
    from agentkv.cache.hf.decoder import unknown_code
    from agentkv.cache.hf.families import UnsupportedModel, describe
    from agentkv.cache.hf.forward import COMPILED, decoding
    from agentkv.cache.refusals import refused_policies
    from agentkv.models.adapter import check_adapters
    from agentkv.models.find import ModelError, find_model, is_gguf, open_gguf_model
    from agentkv.models.load import load_model

    try:
        source = find_model(name)
        has_adapter = bool(check_adapters(name, None))
        if is_gguf(source):
            described = open_gguf_model(Path(source))
            model, size = described.empty, f"{described.num_values / 1e6:.1f} M parameters"
            unknown = unknown_code(model)  # that of a loaded model may say more
            way, is_cpu = COMPILED if unknown is None else f"transformers: {unknown}", True
            limit = describe(model).max_positions
            kind = f"; {described.header.architecture} in GGUF, its weights were not read"
            form = _form_of(described, has_adapter=has_adapter)
        else:
            local, form = load_model(name), ""
            model, limit, way, kind = local.model, local.max_positions, decoding(local.model), ""
            num_parameters = sum(parameter.numel() for parameter in model.parameters())
            size = f"{num_parameters / 1e6:.1f} M parameters on {model.device}"
            is_cpu = model.device.type == "cpu"
        geometry = describe(model)
        refused = refused_policies(geometry)
    except (ModelError, UnsupportedModel) as error:
        yield Finding("model", "missing", str(error))
        return
    yield Finding("model", "ok", f"{name}: {size}, {limit or 'any number of'} positions{kind}")
    if form:
        yield Finding("weights", "ok", form)
    is_slower = way != COMPILED and is_cpu
    yield Finding("decoding", "degraded" if is_slower else "ok", way)
    if geometry.sharing is not None:
        yield Finding("layers", "ok", geometry.sharing)
    others = "; ".join(f"{', '.join(names)} {why}" for why, names in refused.items())
    verdict: Verdict = "degraded" if refused else "ok"
    yield Finding("policies", verdict, f"all, but {others}" if refused else "all")


def _form_of(model: "GgufModel", *, has_adapter: bool) -> str:
    """Say in which form the weights of a GGUF file are served here."""
    from agentkv.models.find import computing_device, gguf_in_blocks
    from agentkv.models.gguf.blocks import named_formats, why_float

    if not has_adapter and gguf_in_blocks(model.header.path) is not None:
        return f"{named_formats(model)}, as they are in the file"
    device = computing_device("auto")
    of_device = "an adapter is added" if has_adapter else f"the device is {device}"
    reason = why_float(model) or of_device
    return f"converted to {'float32' if device == 'cpu' else 'bfloat16'}: {reason}"


def _sites() -> Finding:
    try:
        with Server(World()) as server:
            return Finding("sites", "ok", f"served on port {server.port} of 127.0.0.1")
    except (PortBusy, OSError, RuntimeError) as error:
        return Finding("sites", "missing", str(error))
