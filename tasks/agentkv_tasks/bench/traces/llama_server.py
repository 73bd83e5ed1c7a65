"""llama.cpp's own server on a GGUF file, in a process of its own, through the package xllamacpp.
Imports neither torch nor transformers, so that the process holds llama.cpp alone.
"""

import contextlib
import importlib
import importlib.metadata
import importlib.util
import multiprocessing
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.peak_memory import peak_rss_bytes

MIB = 2**20
SLOTS = 4
"""Requests at a time, llama-server's own default, and as many as a made trace has sessions at a
time."""
VARIANTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "llama.cpp prefix": {"n_cache_reuse": 0, "cache_idle_slots": True},
        "llama.cpp shift": {"n_cache_reuse": 16, "cache_idle_slots": False},
    }
)
"""Contenders. The first has llama-server's defaults: an idle slot moves to the earlier prompts when
another request comes, and is found again by the beginning of a prompt. In the second, idle slots
keep their entries as long as the slots have room, and where text was removed, pieces of at least
16 tokens (our choice, less than any message has) are moved to their new positions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaSettings:
    """Settings of a server. What is not named here has llama-server's own defaults."""

    path: Path
    """File of the model."""
    num_threads: int
    n_ctx: int
    """Tokens of the entries that all slots share; each slot may take all of them."""
    cache_ram_mib: int
    """MiB of prompts that are no longer in a slot; 0: none."""
    n_cache_reuse: int
    """Fewest tokens of a piece that is moved where text before it was removed; 0: none is."""
    cache_idle_slots: bool
    """Whether idle slots move to the earlier prompts at once."""
    n_parallel: int = SLOTS

    @property
    def parameters(self) -> dict[str, Any]:
        """What rows say of a server, with the version of xllamacpp."""
        return {
            "n_ctx": self.n_ctx,
            "n_parallel": self.n_parallel,
            "kv_unified": True,
            "cache_ram_mib": self.cache_ram_mib,
            "n_cache_reuse": self.n_cache_reuse,
            "cache_idle_slots": self.cache_idle_slots,
            "cache": "f16",
            "xllamacpp": importlib.metadata.version("xllamacpp"),
        }


def require_package() -> None:
    """Raise BenchError if xllamacpp is not installed."""
    if importlib.util.find_spec("xllamacpp") is None:
        raise BenchError(
            "--against llama.cpp needs its server, and xllamacpp is not installed; "
            "pip install 'agentkv-web[llama-server]'"
        )


def settings_within(
    memory: int, *, token_bytes: int, num_positions: int, path: Path, num_threads: int, label: str
) -> LlamaSettings:
    """Return the settings of a server whose entries take `memory` bytes at most: those of the
    slots, which it reserves at its start for one context, and all else for earlier prompts.

    Args:
        token_bytes: bytes of a token's entries in 16 bits.
        num_positions: tokens of the context.
        label: one of `VARIANTS`.

    Raises:
        BenchError: the memory does not suffice for one context.
    """
    reserved = token_bytes * num_positions
    if memory < reserved:
        raise BenchError(
            f"found --memory of {memory / MIB:.0f} MiB; llama.cpp's server reserves "
            f"{reserved / MIB:.0f} MiB for one context of {num_positions:,} tokens; give that or "
            "more, or a --context as long as the longest prompt"
        )
    return LlamaSettings(
        path=path,
        num_threads=num_threads,
        n_ctx=num_positions,
        cache_ram_mib=(memory - reserved) // MIB,
        **VARIANTS[label],
    )


class LlamaServer:
    """A server that runs in another process."""

    def __init__(self, address: tuple[str, int], pipe: Connection) -> None:
        self.address = address
        self._pipe = pipe

    @property
    def peak_bytes(self) -> int:
        """The most resident bytes of the process so far."""
        self._pipe.send("peak")
        found: int = self._pipe.recv()
        return found


@contextlib.contextmanager
def llama_serving(settings: LlamaSettings) -> Iterator[LlamaServer]:
    """Serve a model while the block runs.

    Raises:
        BenchError: llama.cpp does not take the file or the settings.
    """
    spawn = multiprocessing.get_context("spawn")  # a fork would inherit memory
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(settings, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        try:
            address = urlsplit(ours.recv())
        except EOFError:
            raise BenchError(
                f"llama.cpp's server did not start with {settings.path}; its reason stands above"
            ) from None
        assert address.hostname is not None and address.port is not None
        yield LlamaServer((address.hostname, address.port), ours)
    finally:
        ours.close()  # the process ends
        process.join()


def _serve(settings: LlamaSettings, pipe: Connection) -> None:
    """Serve until the other end of the pipe is closed; answer each message with the peak."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it
    xllamacpp: Any = importlib.import_module("xllamacpp")
    numbers = xllamacpp.CommonParams()
    numbers.model.path = str(settings.path)
    numbers.n_gpu_layers = 0
    numbers.cpuparams.n_threads = numbers.cpuparams_batch.n_threads = settings.num_threads
    numbers.n_ctx, numbers.fit_params = settings.n_ctx, False
    numbers.n_parallel, numbers.kv_unified = settings.n_parallel, True
    numbers.cache_ram_mib, numbers.n_cache_reuse = settings.cache_ram_mib, settings.n_cache_reuse
    numbers.cache_idle_slots = settings.cache_idle_slots
    numbers.verbosity = 0  # errors alone
    server = xllamacpp.Server(numbers)
    with contextlib.suppress(EOFError, OSError):
        pipe.send(server.listening_address)
        while pipe.recv():
            pipe.send(peak_rss_bytes())
