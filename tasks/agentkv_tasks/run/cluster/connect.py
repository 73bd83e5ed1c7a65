"""The connection to a Ray cluster. Importing this imports no Ray."""

import contextlib
import importlib.util
import logging
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator

_ANSWER_S = 5.0
"""Seconds in which a port of a living machine accepts a connection."""
_JOIN_S = 60.0
"""Seconds that a trial connection may take; Ray itself waits for minutes."""
_ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:]+\]):(?P<port>[0-9]{1,5})")
_TRIAL = """
import logging, sys, ray
ray.init(sys.argv[1], log_to_driver=False, logging_level=logging.CRITICAL)
print("at", ray.get_runtime_context().gcs_address)
"""
_QUIET = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""Variables that keep Ray from writing warnings between our lines."""


class ClusterError(ValueError):
    """A cluster that cannot be used; the message says what to do."""


def require_ray() -> None:
    """Check that Ray is installed, without importing it.

    Raises:
        ClusterError: it is not; the message has the command that installs it.
    """
    if importlib.util.find_spec("ray") is None:
        raise ClusterError(
            "--executor ray needs Ray, which is not installed: pip install 'agentkv-web[ray]'"
        )


@contextlib.contextmanager
def connection(address: str | None) -> Iterator[str]:
    """Connect this process to a Ray cluster, and yield the address of the cluster.

    Args:
        address: host:port, or `auto` for the cluster of this machine; None: the variable
            RAY_ADDRESS, or `auto`.

    Raises:
        ClusterError: Ray is not installed, or the cluster does not answer.
    """
    require_ray()
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    import ray

    address = _found(address or os.environ.get("RAY_ADDRESS") or "auto")
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.CRITICAL)
    except (RuntimeError, ValueError, ConnectionError) as error:
        raise ClusterError(f"no connection to the Ray cluster at {address}: {error}") from None
    try:
        yield address
    finally:
        ray.shutdown()


def _found(address: str) -> str:
    """Return the host and port of a cluster that answers.

    Another process connects first: Ray waits for minutes for a cluster that is gone, and may end
    the process that waits.

    Raises:
        ClusterError: it does not.
    """
    where = "on this machine" if address == "auto" else f"at {address}"
    if address != "auto":
        matched = _ADDRESS.fullmatch(address)
        if matched is None:
            raise ClusterError(
                f"--ray-address {address!r}: expected host:port, as `ray start --head` prints it, "
                "or auto"
            )
        try:
            with socket.create_connection(
                (matched["host"].strip("[]"), int(matched["port"])), timeout=_ANSWER_S
            ):
                pass
        except (OSError, OverflowError) as error:
            raise ClusterError(f"{_silent(where)} ({error})") from None
    try:
        done = subprocess.run(
            [sys.executable, "-c", _TRIAL, address],
            capture_output=True,
            text=True,
            timeout=_JOIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ClusterError(f"{_silent(where)} in {_JOIN_S:.0f} s") from None
    if found := re.search(r"^at (\S+:\d+)$", done.stdout, re.MULTILINE):
        return found[1]
    last = done.stderr.strip().rpartition("\n")[2]
    raise ClusterError(f"{_silent(where)} ({last})" if last else _silent(where))


def _silent(where: str) -> str:
    return (
        f"no Ray cluster answers {where}: start one with `ray start --head --port 6379`, and give "
        "its address with --ray-address host:6379"
    )
