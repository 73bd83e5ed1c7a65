"""Several processes that train one model: each takes a part of every step's rows.

On two cores, two processes of one thread each took 1.5 times the tokens of one process with two.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from train_nano.episode import Row

T = TypeVar("T")
_ATTENTION = 4000
"""Tokens of a row in which attention takes as long as all else."""


@dataclass(frozen=True, slots=True)
class Team:
    """One process among `size`; all draw the same rows and hold the same weights."""

    rank: int = 0
    size: int = 1

    def mine(self, rows: Iterable[Row]) -> list[Row]:
        """This process's part of `rows`: all parts take about as long."""
        parts: list[list[Row]] = [[] for _ in range(self.size)]
        loads = [0.0] * self.size
        for row in sorted(rows, key=lambda row: len(row.ids), reverse=True):
            least = loads.index(min(loads))
            parts[least].append(row)
            loads[least] += len(row.ids) * (1 + len(row.ids) / _ATTENTION)
        return parts[self.rank]

    def add_gradients(self, model: nn.Module) -> None:
        """Make every gradient of `model` the sum of what the processes have of it."""
        if self.size == 1:
            return
        parameters = [each for each in model.parameters() if each.requires_grad]
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
        """What each process calls this with, by rank. `value` must pickle."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values


def together(work: Callable[..., None], size: int, *args: Any) -> None:
    """Call `work(team, *args)` in `size` processes of one thread each; here, if it is one.

    Raises:
        Exception: as one of them did; the others are ended.
    """
    if size == 1:
        work(Team(), *args)
        return
    with TemporaryDirectory() as folder:
        mp.spawn(_begin, args=(size, Path(folder) / "meeting", work, args), nprocs=size)


def _begin(
    rank: int, size: int, meeting: Path, work: Callable[..., None], args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting.as_uri(), rank=rank, world_size=size)
    try:
        work(Team(rank, size), *args)
    finally:
        dist.destroy_process_group()
