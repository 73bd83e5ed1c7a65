"""Tests for the recordings of MiniWoB++ pages."""

import re

import pytest

from agentkv_env.sites.names import FIRST_TRAINING_SEED
from agentkv_tasks.miniwob.scripts import SCRIPTS
from train_nano.data import is_grounded
from train_nano.episode import RecordedEpisode, load
from train_nano.record import RECORDINGS, Browsers
from train_nano.record_miniwob import record


@pytest.fixture(scope="module")
def recorded() -> list[RecordedEpisode]:
    return [each for path in sorted(RECORDINGS.glob("miniwob-*.jsonl.xz")) for each in load(path)]


def test_a_seed_of_evaluation_is_refused() -> None:
    with Browsers() as browsers, pytest.raises(ValueError, match="seed 75 belongs to evaluation"):
        record(75, browsers)


def test_recordings_have_training_seeds_only(recorded: list[RecordedEpisode]) -> None:
    for episode in recorded:
        seed, suite, page = episode.name.split("/")
        assert int(seed) >= FIRST_TRAINING_SEED
        assert (suite, page in SCRIPTS) == ("miniwob", True)
        assert all(f"seed={seed}-0" in turn.page.url for turn in episode.turns)


def test_recordings_ground_what_they_type_and_stop_when_the_page_is_over(
    recorded: list[RecordedEpisode],
) -> None:
    assert len(recorded) > 1000
    for episode in recorded:
        assert is_grounded(episode), episode.name
        last = episode.turns[-1]
        assert [node.name for node in last.page.nodes] == ["The episode is over."], episode.name
        assert last.reply.endswith("```stop []```"), episode.name


def test_no_recorded_goal_is_of_the_kind_that_training_never_sees(
    recorded: list[RecordedEpisode],
) -> None:
    polite = re.compile(r"\b(?:can|could|will|would) you\b", re.IGNORECASE)
    assert [episode.goal for episode in recorded if polite.search(episode.goal)] == []
