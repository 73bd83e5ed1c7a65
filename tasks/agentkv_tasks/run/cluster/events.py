"""Messages from the runner of a node to the driver. They travel between machines."""

from collections.abc import Mapping
from dataclasses import dataclass

from agentkv_tasks.results import Row
from agentkv_tasks.run.worker import Stepped


@dataclass(frozen=True, slots=True)
class Facts:
    """The versions of a node, and whether it can play the run."""

    versions: Mapping[str, str]
    commit: str
    problem: str = ""
    """Why the node cannot play the run; empty if it can."""


@dataclass(frozen=True, slots=True)
class Started:
    """An episode has begun on the node."""

    key: str


@dataclass(frozen=True, slots=True)
class NodeStepped:
    """A step of an episode is over."""

    key: str
    step: Stepped


@dataclass(frozen=True, slots=True)
class Retried:
    """An attempt at an episode has failed, and the node plays it again."""

    key: str
    row: Row


@dataclass(frozen=True, slots=True)
class NodeFinished:
    """An episode is over."""

    row: Row
    files: Mapping[str, bytes]
    """Its trace, its screenshots and the traces of earlier attempts, by their path below the folder
    of the results."""


@dataclass(frozen=True, slots=True)
class NodeFailed:
    """The node cannot go on: `kind` is the name of the exception that ended the run there."""

    kind: str
    message: str


Event = Started | NodeStepped | Retried | NodeFinished | NodeFailed
