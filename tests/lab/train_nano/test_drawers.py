"""Tests for drawing rows in other processes."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tokenizers import Tokenizer

from train_nano.data import Recordings
from train_nano.drawers import Drawers
from train_nano.episode import TrainingRow
from train_nano.mixture import MixturePlan, make_source
from train_nano.train import MODEL

TOKENIZER = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
PLAN = MixturePlan(
    seed=1, step=7, stage="pair", level=0, left=1.0, factor=1, spent={"copy": 900}, wrong={}
)


@pytest.fixture
def drawers() -> Iterator[Drawers]:
    team = Drawers(1, TOKENIZER, None, max_tokens=600)
    yield team
    team.close()


def as_lists(rows: list[TrainingRow]) -> list[TrainingRow]:
    return [
        replace(row, ids=list(row.ids), weights=list(row.weights), positions=list(row.positions))
        for row in rows
    ]


def test_rows_follow_the_plan_of_a_fixed_number_of_steps_before(drawers: Drawers) -> None:
    source = make_source(TOKENIZER, Recordings(None), max_tokens=600)
    drawn = []
    for step, level in ((7, 0), (8, 1), (9, 1), (10, 1), (11, 1)):
        drawn.append(as_lists(drawers.rows(replace(PLAN, step=step, level=level))))
    spent: dict[int, dict[str, int]] = {7: {}, 8: {}}
    assert drawers.ahead == 2
    for index, rows in enumerate(drawn):
        step = 7 + index
        level = 0 if step in (7, 8, 9) else 1  # 7 and 8 follow the first plan, 9 the plan of 7
        plan = replace(PLAN, step=step, level=level, spent=spent[step])
        assert rows == source.rows(plan)
        spent[step + 2] = dict(spent[step])
        for row in rows:
            spent[step + 2][row.kind] = spent[step + 2].get(row.kind, 0) + len(row.ids)


def test_the_error_of_a_drawing_process_reaches_the_caller(drawers: Drawers) -> None:
    with pytest.raises(KeyError, match="no stage"):
        drawers.rows(replace(PLAN, stage="no stage"))
