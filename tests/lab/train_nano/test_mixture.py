"""Tests for the data mixture and the sampling of tasks."""

import random
from collections import Counter
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from agentkv.dialog.prompt import PlainTemplate
from train_nano.data import Recordings, task_of
from train_nano.loss import Accuracy
from train_nano.mixture import LONGEST_ROW, ORDER, STAGES, Source, next_kind
from train_nano.settings import TrainingProgress
from train_nano.train import MODEL, RECORDINGS

TEMPLATE = PlainTemplate(Tokenizer.from_file(str(MODEL / "tokenizer.json")))


def make_source(recordings: Path) -> Source:
    return Source(TEMPLATE, Recordings(recordings), range(300, 900), max_tokens=600)


@pytest.mark.slow
def test_the_shares_of_every_stage_sum_to_one(tmp_path: Path) -> None:
    for source in (make_source(RECORDINGS), make_source(tmp_path)):
        for stage in ORDER:
            assert sum(source.shares(stage).values()) == pytest.approx(1.0)


def test_synthetic_kinds_replace_missing_recordings(tmp_path: Path) -> None:
    shares = make_source(tmp_path).shares("episodes")
    assert "task" not in shares and shares["errand"] > 0.6


@pytest.mark.parametrize("stage", ["drill", "episodes"])
def test_every_kind_gets_its_share_of_the_tokens(stage: str, tmp_path: Path) -> None:
    source = make_source(tmp_path)
    shares, rng = source.shares(stage), random.Random(1)
    spent: Counter[str] = Counter()
    while sum(spent.values()) < 60_000:
        kind = next_kind(shares, spent)
        row = source.row(kind, stage, 3, rng, left=1.0, wrong={})
        assert row.kind == kind
        spent[kind] += len(row.ids)
    for kind, share in shares.items():
        assert spent[kind] / sum(spent.values()) == pytest.approx(share, abs=0.05), kind


@pytest.mark.slow
def test_tasks_with_fewer_errors_are_drawn_less_often() -> None:
    source, rng = make_source(RECORDINGS), random.Random(4)
    tasks = {task_of(episode) for episode in source.recordings.tasks}
    hard = min(tasks)
    wrong = dict.fromkeys(tasks, 0.0) | {hard: 1.0}
    drawn = Counter(
        source.row("task", "episodes", 0, rng, left=1.0, wrong=wrong).task for _ in range(60)
    )
    # Equal odds would give one in 174. Odds of 1.05 against 173 times 0.05 give one in ten.
    assert 2 <= drawn[hard] <= 20 and set(drawn) <= tasks


def test_tasks_are_drawn_equally_often_from_one_world_or_from_many(tmp_path: Path) -> None:
    for name in ("miniwob-1000000", "miniwob-1000001", "vwa75-1000000"):
        path = RECORDINGS / f"{name}.jsonl.xz"
        (tmp_path / path.name).symlink_to(path)
    recordings, rng = Recordings(tmp_path), random.Random(5)
    rows = [
        recordings.row("task", rng, TEMPLATE, max_tokens=300, thinned=0.0, wrong={})
        for _ in range(150)
    ]
    tasks = {task_of(episode) for episode in recordings.tasks}
    share = sum(task.startswith("miniwob") for task in tasks) / len(tasks)
    drawn = sum(row.task.startswith("miniwob") for row in rows) / len(rows)
    assert abs(drawn - share) < 0.1 < 2 * share / (1 + share) - share


@pytest.fixture(scope="module")
def one_world(tmp_path_factory: pytest.TempPathFactory) -> Recordings:
    folder = tmp_path_factory.mktemp("recordings")
    path = min(RECORDINGS.glob("vwa75-*.jsonl.xz"))
    (folder / path.name).symlink_to(path)
    return Recordings(folder)


def test_pages_of_a_shortened_row_keep_their_places_or_move_together(one_world: Recordings) -> None:
    page_id, ends = TEMPLATE.turn("")[0], Counter[str]()
    for number in range(12):
        rows = [
            one_world.row(
                "task", random.Random(number), TEMPLATE, max_tokens=most, thinned=0.0, wrong={}
            )
            for most in (10**6, 900)
        ]
        whole, short = (
            [at for token, at in zip(row.ids, row.positions, strict=True) if token == page_id]
            for row in rows
        )
        assert len(whole) == len(short) and len(rows[0].ids) > 900
        assert rows[0].positions == list(range(len(rows[0].ids)))
        if rows[1].positions == list(range(len(rows[1].ids))):
            ends["moved"] += len(rows[1].ids) < 0.8 * len(rows[0].ids)
        else:  # replies have fewer notes where the noted page is empty
            ends["kept"] += 1
            assert whole[-1] * 0.9 < short[-1] <= whole[-1]
    assert ends["moved"] and ends["kept"]


def test_rows_grow_towards_the_end_of_a_run(tmp_path: Path) -> None:
    source, rng = make_source(tmp_path), random.Random(0)
    drawn = {
        left: Counter(source.longest_row(left, rng) for _ in range(1000))
        for left in (1.0, 0.5, 0.1)
    }
    assert drawn == {1.0: {240: 1000}, 0.5: {600: 1000}, 0.1: {600: 840, LONGEST_ROW: 160}}
    assert source.step_tokens("episodes", 0.5) == 8192 < source.step_tokens("episodes", 0.1)
    assert source.step_tokens("episodes", 0.5, factor=16) == 16 * 8192
    assert source.step_tokens("episodes", 0.1, factor=16) == 16 * 8192


def test_the_error_rate_of_a_task_is_a_moving_average() -> None:
    progress, replies = TrainingProgress(), Accuracy()
    replies.add([("form/3", False), ("form/3", True), ("form/4", True)])
    progress.update_errors(replies)
    assert progress.wrong == {"form/3": 0.5, "form/4": 0.0}
    later = Accuracy()
    later.add([("form/3", True)])
    progress.update_errors(later)
    assert progress.wrong == {"form/3": pytest.approx(0.4), "form/4": 0.0}


def test_the_kind_furthest_below_its_share_comes_next() -> None:
    assert next_kind({"a": 0.9, "b": 0.1}, {"a": 80, "b": 20}) == "a"
    assert next_kind({"a": 0.9, "b": 0.1}, {"a": 95, "b": 5}) == "b"


def test_the_curriculum_starts_with_copying_and_ends_with_recordings() -> None:
    assert ORDER[0] == "copy" and ORDER[-1] == "episodes"
    assert all(stage.judged <= set(stage.shares) for stage in STAGES.values())
