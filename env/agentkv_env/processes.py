"""Process groups: told apart from later ones of the same number, and ended whole."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class Group:
    """The process group of a browser. Chromium's helpers are members of its group."""

    leader: int
    began: str
    """When the leader began, in the kernel's own unit; empty where that cannot be learned."""

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """The group that `pid` is in. None if that is our own group, or if `pid` is gone."""
        try:
            leader = os.getpgid(pid)
        except ProcessLookupError:
            return None
        return None if leader == os.getpgrp() else cls(leader, began(leader))

    def kill(self) -> None:
        """Kill every member at once, stopped ones too. Does nothing when no member is left.

        The kernel gives the leader's number to nobody else while a member lives. A leader that
        began at another time therefore says that the group is gone.
        """
        if began(self.leader) in (self.began, ""):
            try:
                os.killpg(self.leader, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass  # nobody is left of it


def began(pid: int) -> str:
    """When the process began (field 22 of proc(5)'s stat); empty for none, and without /proc."""
    fields = _stat(pid)
    return fields[19] if len(fields) > 19 else ""


def kill_descendants(pid: int) -> None:
    """Kill all that `pid` has started and what those have started, in whatever group they are.

    Does nothing without /proc.
    """
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
            pass  # it has ended since


def is_running(pid: int) -> bool:
    """Whether the process is there and has not ended. Where there is no /proc: is there."""
    fields = _stat(pid)
    if fields or os.path.exists("/proc/self/stat"):
        return bool(fields) and fields[0] not in "ZX"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def find_child(variable: str, value: str) -> int | None:
    """The child of this process that was started with `variable` set to `value`, if there is one.

    None without /proc.
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
    """What proc(5)'s stat says behind the name: state, parent, group, ..."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
