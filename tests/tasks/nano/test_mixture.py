"""The mixture: every kind of row gets its share of the tokens, whatever is missing."""

import random
from collections import Counter
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from agentkv.prompt import PlainTemplate
from nano.data import Recordings
from nano.mixture import ORDER, STAGES, Source, next_kind
from nano.train import MODEL, RECORDINGS

TEMPLATE = PlainTemplate(Tokenizer.from_file(str(MODEL / "tokenizer.json")))


def a_source(recordings: Path) -> Source:
    return Source(TEMPLATE, Recordings(recordings), range(300, 900), max_tokens=600)


@pytest.mark.parametrize("stage", ORDER)
def test_the_shares_of_a_stage_are_the_whole(stage: str, tmp_path: Path) -> None:
    for recordings in (RECORDINGS, tmp_path):
        assert sum(a_source(recordings).shares(stage).values()) == pytest.approx(1.0)


def test_without_recordings_what_is_made_up_stands_in_for_them(tmp_path: Path) -> None:
    shares = a_source(tmp_path).shares("episodes")
    assert "task" not in shares and shares["errand"] > 0.6


@pytest.mark.parametrize("stage", ["drill", "episodes"])
def test_every_kind_gets_its_share_of_the_tokens(stage: str, tmp_path: Path) -> None:
    source = a_source(tmp_path)
    shares, rng = source.shares(stage), random.Random(1)
    spent: Counter[str] = Counter()
    while sum(spent.values()) < 60_000:
        kind = next_kind(shares, spent)
        row = source.row(kind, stage, 3, rng, left=1.0)
        assert row.kind == kind
        spent[kind] += len(row.ids)
    for kind, share in shares.items():
        assert spent[kind] / sum(spent.values()) == pytest.approx(share, abs=0.05), kind


def test_a_kind_that_has_had_least_of_its_share_comes_next() -> None:
    assert next_kind({"a": 0.9, "b": 0.1}, {"a": 80, "b": 20}) == "a"
    assert next_kind({"a": 0.9, "b": 0.1}, {"a": 95, "b": 5}) == "b"


def test_stages_follow_each_other_from_copying_to_recordings() -> None:
    assert ORDER[0] == "copy" and ORDER[-1] == "episodes"
    assert all(stage.judged <= set(stage.shares) for stage in STAGES.values())
