"""The contenders: agentkv's server under one policy and way of edits, and llama.cpp's server."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from agentkv.build import resolved_parameters
from agentkv.cache.hf.families import describe
from agentkv.models.find import find_model, is_gguf
from agentkv.models.local import LocalModel
from agentkv.plan import memory_of
from agentkv.serve.command import prepare, serving_in_thread
from agentkv.serve.settings import ServeSettings
from agentkv.settings import ModelSettings, PoliciesSettings, PolicySettings
from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.bench.traces.llama_server import (
    MIB,
    VARIANTS,
    LlamaSettings,
    llama_serving,
    require_package,
    settings_within,
)
from agentkv_tasks.settings import RunSettings

AGAINST = "llama.cpp"
"""All of `VARIANTS` in `--against`."""


@dataclass(frozen=True, slots=True)
class Used:
    """Memory that a server took."""

    cache_peak_bytes: int | None = None
    """The most bytes of all sessions in memory; None: the server does not say."""
    process_peak_bytes: int | None = None
    """The most resident bytes of the server's process; None: it is the one that measures."""
    num_spills: int = 0
    """Times that a session went to disk."""


@dataclass(frozen=True, slots=True)
class TraceServer:
    """A server that runs."""

    address: tuple[str, int]
    used: Callable[[], Used]


class TraceContender(Protocol):
    """A server that the requests of a trace are sent to."""

    label: str
    edits: str
    """What becomes of edited messages; empty for llama.cpp."""
    parameters: Mapping[str, Any]
    memory_bytes: int
    """The most bytes of all entries in memory."""
    reserved_bytes: int
    """Bytes of them that the server takes at its start."""

    def serving(self) -> AbstractContextManager[TraceServer]:
        """Serve while the block runs, without any session at first."""
        ...

    def request(self, session: str) -> Mapping[str, Any]:
        """Return what a request has beside its messages."""
        ...


class OurServer:
    """agentkv's server, in a thread of this process."""

    reserved_bytes = 0

    def __init__(
        self, local: LocalModel, run: RunSettings, policy: PolicySettings, edits: str, memory: int
    ) -> None:
        self._local, self._run = local, run
        self.label, self.edits, self.memory_bytes = policy.row_name, edits, memory
        self.parameters: Mapping[str, Any] = resolved_parameters(run, policy)

    @contextlib.contextmanager
    def serving(self) -> Iterator[TraceServer]:
        """Serve while the block runs."""
        with tempfile.TemporaryDirectory() as store:
            settings = ServeSettings(
                **self._run.chosen(PoliciesSettings),
                port=0,
                store=Path(store),
                name=Path(self._run.model).name,
                memory=f"{self.memory_bytes} B",
            )
            with (
                prepare(self._local, settings) as api,
                serving_in_thread(api, settings) as port,
            ):
                sessions = api.engine.sessions
                yield TraceServer(
                    ("127.0.0.1", port),
                    lambda: Used(
                        cache_peak_bytes=sessions.peak_nbytes, num_spills=sessions.num_spills
                    ),
                )

    def request(self, session: str) -> Mapping[str, Any]:
        """Return the session's name, the policy and the way of edits."""
        return {
            "prompt_cache_key": session,
            "agentkv": {"policy": self.label, "edits": self.edits},
        }


class TheirServer:
    """llama.cpp's server, in a process of its own."""

    edits = ""

    def __init__(self, label: str, settings: LlamaSettings, token_bytes: int) -> None:
        self.label, self._settings = label, settings
        self.parameters: Mapping[str, Any] = settings.parameters
        self.reserved_bytes = token_bytes * settings.n_ctx
        self.memory_bytes = self.reserved_bytes + settings.cache_ram_mib * MIB

    @contextlib.contextmanager
    def serving(self) -> Iterator[TraceServer]:
        """Serve while the block runs."""
        with llama_serving(self._settings) as server:
            yield TraceServer(server.address, lambda: Used(process_peak_bytes=server.peak_bytes))

    def request(self, session: str) -> Mapping[str, Any]:
        """Return nothing: the server finds the slot by the prompt."""
        return {}


def check_against(against: Sequence[str], settings: ModelSettings) -> list[str]:
    """Return the labels of the contenders that `--against` names.

    Raises:
        BenchError: a name is unknown, a package is missing, the model is no GGUF file, or it has an
            adapter, which the file has not.
        ModelError: a ValueError; there is no such model.
    """
    known = (AGAINST, *VARIANTS)
    for name in against:
        if name not in known:
            raise BenchError(f"found --against {name!r}, expected some of {', '.join(known)}")
    labels = [label for label in VARIANTS if {AGAINST, label} & set(against)]
    if labels and (settings.has_adapter or not is_gguf(find_model(settings.model))):
        adapter = settings.adapter
        found = f"--model {settings.model}" if adapter is None else f"--adapter {adapter}"
        raise BenchError(
            f"--against llama.cpp: its server reads GGUF files alone, and found {found}; give "
            "--model smollm2 or a GGUF file, and no adapter"
        )
    if labels:
        require_package()
    return labels


def contenders(
    local: LocalModel,
    run: RunSettings,
    edits: Sequence[str],
    against: Sequence[str],
    memory: str,
    *,
    context: int | None = None,
) -> list[TraceContender]:
    """Return agentkv's server under each policy and way of edits, and llama.cpp's servers.

    Args:
        against: labels that `check_against` returned.
        memory: bytes of all entries of each, such as 512MiB.
        context: tokens of the context that llama.cpp's server reserves; None: the positions of the
            model.

    Raises:
        BenchError: the memory does not suffice for llama.cpp, the model has fewer positions, or
            there is a context and no llama.cpp.
        ValueError: `memory` is no number of bytes.
    """
    limit = memory_of(str(local.model.device), memory)
    found: list[TraceContender] = [
        OurServer(local, run, policy, way, limit) for policy in run.policies for way in edits
    ]
    if not against:
        if context is not None:
            raise BenchError("--context is for llama.cpp's server; add --against llama.cpp")
        return found
    path = find_model(run.model)
    assert isinstance(path, Path) and local.max_positions is not None
    if context is not None and context > local.max_positions:
        raise BenchError(
            f"found --context {context:,}, and the model has {local.max_positions:,} positions; "
            "give so many or fewer"
        )
    token_bytes = sum(
        4 * layer.num_heads * layer.head_dim for layer in describe(local.model).layers
    )
    for label in against:
        settings = settings_within(
            limit,
            token_bytes=token_bytes,
            num_positions=context or local.max_positions,
            path=path,
            num_threads=torch.get_num_threads(),
            label=label,
        )
        found.append(TheirServer(label, settings, token_bytes))
    return found
