"""Find and kill processes and process groups, safely against reused process ids."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class Group:
    """The process group of a browser, which includes Chromium's helper processes."""

    leader: int
    began: str
    """Start time of the leader in the kernel's unit; empty if unknown."""

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """Return the group of `pid`, or None if it is our own group or `pid` has ended."""
        try:
            leader = os.getpgid(pid)
        except ProcessLookupError:
            return None
        return None if leader == os.getpgrp() else cls(leader, began(leader))

    def kill(self) -> None:
        """Kill every member, stopped members as well; does nothing if no member is left.

        The kernel does not reuse the leader's process id while a member lives. A leader with
        another start time therefore shows that the group has ended.
        """
        if began(self.leader) in (self.began, ""):
            try:
                os.killpg(self.leader, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass  # no member is left


def began(pid: int) -> str:
    """Return the start time of a process (field 22 of proc(5)'s stat), or '' if it is unknown."""
    fields = _stat(pid)
    return fields[19] if len(fields) > 19 else ""


def kill_descendants(pid: int) -> None:
    """Kill all descendants of `pid`, in any process group; does nothing without /proc."""
    children: dict[int, list[int]] = {}
    for each in _all():
        fields = _stat(each)
        if len(fields) > 1:
            children.setdefault(int(fields[1]), []).append(each)
    found = list(children.get(pid, ()))
    for each in found:
        found += children.get(each, ())
    for each in found:
        try:
            os.kill(each, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # it has ended meanwhile


def is_running(pid: int) -> bool:
    """Return whether the process runs; without /proc, zombies count as running."""
    fields = _stat(pid)
    if fields or os.path.exists("/proc/self/stat"):
        return bool(fields) and fields[0] not in "ZX"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def find_child(variable: str, value: str) -> int | None:
    """Return the child of this process that was started with `variable` set to `value`.

    None if there is no such child, or no /proc.
    """
    wanted = f"{variable}={value}".encode()
    for pid in _all():
        fields = _stat(pid)
        if len(fields) < 2 or int(fields[1]) != os.getpid():
            continue
        try:
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                return pid
        except OSError:
            continue  # it has ended
    return None


def _all() -> Iterator[int]:
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    yield from (int(name) for name in names if name.isdigit())


def _stat(pid: int) -> list[str]:
    """Return the fields of proc(5)'s stat after the name: state, parent, group, ..."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
