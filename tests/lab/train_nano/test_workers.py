"""Tests for data parallel training."""

import atexit
import time
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from train_nano.data import Recordings
from train_nano.episode import TrainingRow
from train_nano.settings import TrainingSettings
from train_nano.train import MODEL, Trainer
from train_nano.workers import Worker, launch

TINY = TrainingSettings(width=32, layers=2, inner=64, tokens=100_000, warmup_steps=1)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_rows_are_sharded_evenly_without_loss_or_duplication(size: int) -> None:
    rows = [
        TrainingRow([number] * length, [], [])
        for number, length in enumerate((9, 2, 5, 5, 8, 1, 3))
    ]
    parts = [Worker(rank, size).shard(rows) for rank in range(size)]
    assert sorted(row.ids[0] for part in parts for row in part) == list(range(len(rows)))
    loads = [sum(len(row.ids) for row in part) for part in parts]
    assert max(loads) - min(loads) <= 1


def make_trainer(work: Path, worker: Worker) -> Trainer:
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    return Trainer(TINY, tokenizer, work, Recordings(work / "none"), worker)


def take_steps(worker: Worker, work: Path) -> None:
    make_trainer(work, worker).run(until=12_000)


@pytest.mark.slow
def test_two_workers_train_the_same_weights_as_one(tmp_path: Path) -> None:
    before = weights(make_trainer(tmp_path, Worker()))
    after = []
    for size in (1, 2):
        work = tmp_path / str(size)
        launch(take_steps, size, work)
        trainer = make_trainer(work, Worker())
        trainer.resume()
        assert trainer.progress.step > 1
        after.append(weights(trainer))
    moved = (after[0] - before).abs().mean()
    assert moved > 0
    # The order of summation differs, so the weights are not exactly equal.
    assert (after[1] - after[0]).abs().mean() < 0.1 * moved


def weights(trainer: Trainer) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])


def fail_and_end_late(worker: Worker) -> None:
    if worker.rank == 0:
        atexit.register(time.sleep, 2)
        raise ValueError("no rows to draw")
    worker.gather(0)


@pytest.mark.slow
def test_the_caller_sees_the_first_error_of_a_worker_and_not_what_it_causes_in_the_others() -> None:
    with pytest.raises(RuntimeError, match=r"ValueError: no rows to draw"):
        launch(fail_and_end_late, 2)
