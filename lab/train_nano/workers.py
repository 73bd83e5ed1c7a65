"""Data parallel training: several processes share the rows of every step.

On two cores, two processes with one thread each processed 1.5 times the tokens of one process with
two threads.
"""

import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from train_nano.episode import TrainingRow

T = TypeVar("T")
_ATTENTION = 4000
"""Row length in tokens at which attention takes as long as everything else."""
_FAILURE = "failure"
"""File with the traceback of the worker that failed first."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One of `world_size` processes, which all draw the same rows and hold the same weights."""

    rank: int = 0
    world_size: int = 1

    def shard(self, rows: Iterable[TrainingRow]) -> list[TrainingRow]:
        """Return this worker's part of `rows`; all parts take about the same time."""
        parts: list[list[TrainingRow]] = [[] for _ in range(self.world_size)]
        loads = [0.0] * self.world_size
        for row in sorted(rows, key=lambda row: len(row.ids), reverse=True):
            least = loads.index(min(loads))
            parts[least].append(row)
            loads[least] += len(row.ids) * (1 + len(row.ids) / _ATTENTION)
        return parts[self.rank]

    def sum_gradients(self, model: nn.Module) -> None:
        """Replace every gradient of `model` by its sum over all workers."""
        if self.world_size == 1:
            return
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def gather(self, value: T) -> list[T]:
        """Return the `value` of every worker, ordered by rank. Values must be picklable."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values


def launch(function: Callable[..., None], world_size: int, *args: Any) -> None:
    """Call `function(worker, *args)` in `world_size` processes with one thread each.

    A single worker runs in the calling process and keeps its threads.

    Raises:
        RuntimeError: one of several workers failed; the message holds the traceback of the one that
            failed first. The others are terminated.
    """
    if world_size == 1:
        function(Worker(), *args)
        return
    with TemporaryDirectory() as folder:
        shared = Path(folder)
        try:
            mp.spawn(_run_worker, args=(world_size, shared, function, args), nprocs=world_size)
        except mp.ProcessRaisedException as error:
            raise RuntimeError((shared / _FAILURE).read_text()) from error


def _run_worker(
    rank: int, world_size: int, shared: Path, function: Callable[..., None], args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    store = (shared / "store").as_uri()
    try:
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
        function(Worker(rank, world_size), *args)
    except Exception:
        # The others fail as soon as this worker's connections close, and one of them may end before
        # this process does. So the cause is written down while the connections are open.
        with suppress(FileExistsError), (shared / _FAILURE).open("x") as file:
            file.write(traceback.format_exc())
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
