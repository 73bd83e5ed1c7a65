"""Several processes that train together take the steps that one alone takes."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from train_nano.data import Recordings
from train_nano.episode import Row
from train_nano.settings import Settings
from train_nano.team import Team, together
from train_nano.train import MODEL, Trainer

TINY = Settings(width=32, layers=2, inner=64, tokens=100_000, warmup_steps=1)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_rows_are_parted_evenly_and_none_is_left_out_or_taken_twice(size: int) -> None:
    rows = [Row([number] * length, [], []) for number, length in enumerate((9, 2, 5, 5, 8, 1, 3))]
    parts = [Team(rank, size).mine(rows) for rank in range(size)]
    assert sorted(row.ids[0] for part in parts for row in part) == list(range(len(rows)))
    loads = [sum(len(row.ids) for row in part) for part in parts]
    assert max(loads) - min(loads) <= 1


def a_trainer(work: Path, team: Team) -> Trainer:
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    return Trainer(TINY, tokenizer, work, Recordings(work / "none"), team)


def take_steps(team: Team, work: Path) -> None:
    a_trainer(work, team).run(until=12_000)


@pytest.mark.slow
def test_two_processes_train_the_weights_that_one_trains(tmp_path: Path) -> None:
    before = weights(a_trainer(tmp_path, Team()))
    after = []
    for size in (1, 2):
        work = tmp_path / str(size)
        together(take_steps, size, work)
        trainer = a_trainer(work, Team())
        trainer.resume()
        assert trainer.progress.step > 1
        after.append(weights(trainer))
    moved = (after[0] - before).abs().mean()
    assert moved > 0
    assert (after[1] - after[0]).abs().mean() < 0.1 * moved  # sums in another order


def weights(trainer: Trainer) -> Tensor:
    return torch.cat([each.detach().flatten() for each in trainer.model.parameters()])


def fail(team: Team) -> None:
    raise ValueError(f"number {team.rank} cannot")


@pytest.mark.slow
def test_what_goes_wrong_in_one_process_is_told() -> None:
    with pytest.raises(Exception, match="number . cannot"):
        together(fail, 2)
