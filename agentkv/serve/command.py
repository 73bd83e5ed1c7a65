"""Set the server up from settings, and serve until it is stopped."""

import contextlib
import fcntl
import os
import resource
import socket
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import uvicorn

from agentkv.build import budget_for, load_run_model, make_policy
from agentkv.cache.budget import Bytes, parse_budget
from agentkv.cache.cache import Cache
from agentkv.dialog.messages import MessageTemplate
from agentkv.files import make_folder, read_private, require_folder
from agentkv.models.load import end_ids_of
from agentkv.models.local import LocalModel
from agentkv.plan import memory_of
from agentkv.policies.entries import PolicyError
from agentkv.progress import Listener
from agentkv.serve.app import Access, Api
from agentkv.serve.engine import Engine
from agentkv.serve.job import Limits
from agentkv.serve.named_files import NamedFolder
from agentkv.serve.session import CacheSettings
from agentkv.serve.sessions import SessionStore
from agentkv.serve.settings import ServeSettings
from agentkv.settings import ModelSettings

KEYS = "AGENTKV_API_KEYS"
"""Environment variable with API keys, separated by commas."""
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class ServeError(ValueError):
    """A server cannot start with these settings."""


def read_keys(file: Path | None) -> list[str]:
    """Return the API keys of a file, one per line, and those of the environment.

    Raises:
        PrivateFileError: a ValueError; the file cannot be read, or others may read it.
        ServeError: the file has no key.
    """
    keys = [key.strip() for key in os.environ.get(KEYS, "").split(",")]
    if file is not None:
        lines = [line.strip() for line in read_private(file, most_bytes=1_000_000).splitlines()]
        found = [line for line in lines if line and not line.startswith("#")]
        if not found:
            raise ServeError(f"{file} has no API key; write one per line")
        keys += found
    return [key for key in keys if key]


def check(settings: ServeSettings, keys: Sequence[str]) -> None:
    """Check what can be checked before the model is loaded.

    Raises:
        ServeError: others can reach the address and there is no key, the port is in use, or the
            quota is no number of bytes.
        OutputPathError: a ValueError; the folder cannot be written to.
    """
    if settings.host not in _LOOPBACK and not keys:
        raise ServeError(
            f"others can reach {settings.host}, so requests need keys: give --api-keys FILE, or "
            f"set {KEYS}"
        )
    if settings.store is not None:
        require_folder(settings.store, "--store")
    if settings.client_files is not None:
        require_folder(settings.client_files, "--client-files")
    _quota(settings)
    listen(settings).close()


def load(settings: ModelSettings, on_progress: Listener | None = None) -> LocalModel:
    """Load the model of a server.

    Args:
        on_progress: as of `agentkv.load_model`.

    Raises:
        ValueError: there is no such model, or it is a script.
    """
    local = load_run_model(settings, on_progress)
    if local is None:
        raise ServeError(
            f"--model {settings.model} is a script; give nano, smollm2, smollm2-web, a "
            "folder, a GGUF file or a hub id"
        )
    return local


@contextlib.contextmanager
def running_engine(
    local: LocalModel, settings: ServeSettings, *, has_keys: bool = False
) -> Iterator[Engine]:
    """Start the engine of a model, which stops when the block is left.

    Args:
        settings: those of model, policies, sessions and limits count; those of addresses do not.
        has_keys: whether requests have keys, each of which has a folder in `client_files`.

    Raises:
        ValueError: no such policy, or a budget that a policy does not fit into.
    """
    by_name = {policy.row_name: policy for policy in settings.policies}
    policies = tuple(
        CacheSettings(name, budget_for(settings, make_policy(policy)))
        for name, policy in by_name.items()
    )
    dtype = local.dtype_of(settings)

    def new_cache(wanted: CacheSettings) -> Cache:
        if wanted.policy not in by_name:
            raise PolicyError(
                f"this server has no policy {wanted.policy!r}; it has {', '.join(by_name)}"
            )
        return Cache.for_model(
            local.model,
            policy=make_policy(by_name[wanted.policy]),
            budget=wanted.budget,
            prefill=settings.prefill,
            chunk=settings.chunk,
            dtype=dtype,
        )

    for each in policies:
        local.warm_up(new_cache(each))  # here, no client waits for it
    with contextlib.ExitStack() as stack:
        folder = settings.store
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentkv-")))
        stack.enter_context(_alone_in(folder))
        named = _client_folder(settings, folder, has_keys=has_keys)
        device, memory = str(local.model.device), settings.memory
        group = settings.group_memory
        sessions = SessionStore(
            local.model,
            new_cache,
            policies,
            folder,
            named,
            memory=memory_of(device) // 4 if memory is None else memory_of(device, memory),
            outlives=settings.store is not None,
            max_snapshots=settings.snapshots,
            edits=settings.edits,
            group_memory=None if group is None else memory_of(device, group),
        )
        template = MessageTemplate(
            local.source_tokenizer, end_ids=end_ids_of(local.model), texts=local.template.texts
        )
        engine = Engine(
            local,
            template,
            sessions,
            Limits(settings.max_tokens, settings.parallel, settings.queue),
            keeps_notes=settings.page,
        )
        engine.start()
        stack.callback(engine.stop)
        yield engine


@contextlib.contextmanager
def prepare(local: LocalModel, settings: ServeSettings, keys: Sequence[str] = ()) -> Iterator[Api]:
    """Start the engine of a model and make the API for it; see `running_engine`."""
    with running_engine(local, settings, has_keys=bool(keys)) as engine:
        hosts = [name.lower() for name in (*_LOOPBACK, settings.host, *settings.allow_host)]
        access = Access.with_keys(
            keys, hosts=hosts, max_body=settings.max_body, request_s=settings.timeout_s
        )
        name = settings.name or Path(settings.model).name
        yield Api(
            engine,
            name,
            access,
            takes_any_model=settings.any_model,
            has_page=settings.page,
        )


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other servers out of a folder. Raises ServeError if one is there."""
    make_folder(folder)
    with open(folder / "lock", "a", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ServeError(f"another server uses --store {folder}; give another folder") from None
        yield


def _quota(settings: ServeSettings) -> int | None:
    """Return the bytes that files of clients may have; None: any number. Raises ServeError."""
    given = settings.client_quota
    if given is None:
        return None
    try:
        parsed = parse_budget(given)
    except PolicyError:
        parsed = None
    if not isinstance(parsed, Bytes):
        raise ServeError(f"--client-quota is a number of bytes such as 10GiB; found {given!r}")
    return parsed.count


def _client_folder(settings: ServeSettings, store: Path, *, has_keys: bool) -> NamedFolder:
    """Return the folder of clients' files, which is in the store unless they have one of their own.

    Raises:
        ServeError: a client could reach the sessions of others there.
    """
    folder, most = settings.client_files, _quota(settings)
    if folder is None:
        return NamedFolder(store / "saved", in_folders=False, by_owner=True, most_bytes=most)
    ours, theirs = store.resolve(), folder.resolve()
    if ours.is_relative_to(theirs) or theirs.is_relative_to(ours):
        raise ServeError(
            f"--client-files {folder} and the store {store} contain each other, so that a client "
            "could reach the sessions of others; give folders that are apart"
        )
    make_folder(theirs)
    return NamedFolder(theirs, in_folders=True, by_owner=has_keys, most_bytes=most)


def serve(api: Api, listening: socket.socket) -> None:
    """Answer requests until the process is told to stop. Replies in progress have ten seconds."""
    allow_files()
    _uvicorn(api).run(sockets=[listening])


@contextlib.contextmanager
def serving_in_thread(api: Api, settings: ServeSettings) -> Iterator[int]:
    """Answer requests in another thread while the block runs; yield the port."""
    with listen(settings) as listening:
        server = _uvicorn(api)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield int(listening.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join()


def allow_files() -> None:
    """Let this process have as many files open as the system allows it: caches that share entries
    keep some open, beside one for each client."""
    with contextlib.suppress(OSError, ValueError):  # a system that allows no more
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _uvicorn(api: Api) -> uvicorn.Server:
    return uvicorn.Server(
        uvicorn.Config(
            api.application(),
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=10,
            h11_max_incomplete_event_size=64 * 1024,
        )
    )


def listen(settings: ServeSettings) -> socket.socket:
    """Return a socket that listens. Raises ServeError if it cannot."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # asyncio would wait for acknowledgements of small pieces otherwise
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        made.bind((settings.host, settings.port))
        made.listen(128)
    except OSError as error:
        made.close()
        raise ServeError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; give another "
            "--port"
        ) from None
    return made
