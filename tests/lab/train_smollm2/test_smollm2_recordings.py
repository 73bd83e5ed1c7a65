"""The recordings that smollm2 learns from: what is taken, and what never is."""

import os
import zlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from agentkv.files import json_line
from agentkv.recordings import Recording, read_recordings
from agentkv_env.sites.world import World
from agentkv_tasks.miniwob.pages import SCORED
from agentkv_tasks.suites import SUITES
from train_nano.record import RECORDINGS
from train_nano.wording import is_polite_request
from train_smollm2.recordings import (
    MINIWOB,
    MOST_STEPS,
    held_out_pages,
    pack,
    recordings,
    write_recordings,
)

NAME = "vwa75-1000000.jsonl.xz"
ALL = {"vwa75": 1.0, "miniwob": 1.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recordings")
    os.link(RECORDINGS / NAME, folder / NAME)
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> list[Recording]:
    return list(recordings(folder, seed=0, taken=ALL))


def test_a_third_of_the_pages_of_miniwob_is_never_learned(found: list[Recording]) -> None:
    pages = {name.removesuffix("-nodelay") for name in SCORED}
    never = held_out_pages()
    assert never < pages and len(never) == len(pages) // 3
    highest = max(zlib.crc32(page.encode()) for page in never)
    assert highest < min(zlib.crc32(page.encode()) for page in pages - never)
    played = {page_of(each) for each in found if each.suite == "miniwob"}
    assert played <= pages - never and len(played) > 30
    assert not {page_of(each) for each in read_recordings(MINIWOB)} & never


def page_of(recording: Recording) -> str:
    path = urlsplit(recording.steps[0].page.url).path
    return path.rpartition("/")[2].removesuffix("-nodelay")


def test_packing_leaves_out_what_is_never_learned_and_twins_of_pages(
    found: list[Recording], tmp_path: Path
) -> None:
    one = next(each for each in found if each.suite == "miniwob")
    others = [recorded_on(page, one) for page in ("click-menu", "use-autocomplete-nodelay")]
    path = tmp_path / "some.jsonl"
    path.write_bytes(b"".join(json_line(each.to_json()) for each in (one, *others)))
    assert pack([path], tmp_path / "packed.jsonl") == 1
    assert not (tmp_path / "packed.jsonl").exists()
    assert list(read_recordings(tmp_path / "packed.jsonl")) == [one]


def recorded_on(page: str, recording: Recording) -> Recording:
    """Return a recording whose first page is another of MiniWoB++."""
    first, *rest = recording.steps
    moved = replace(first.page, url=f"http://miniwob.localhost/task/{page}?seed=1-0")
    return replace(recording, key=page, steps=(replace(first, page=moved), *rest))


def test_replies_that_follow_from_what_is_shown_are_learned(found: list[Recording]) -> None:
    played = Counter(page_of(each) for each in found if each.suite == "miniwob")
    assert all(played[page] == 64 for page in ("enter-time", "guess-number", "text-transform"))


def test_goals_are_in_many_words_and_none_is_a_polite_request(found: list[Recording]) -> None:
    tasks = SUITES["vwa75"].tasks(World(1000000))
    goals = {each.goal for each in found if each.suite == "vwa75"}
    assert len(goals) > 60 and not any(is_polite_request(goal) for goal in goals)
    assert len(goals - {task.intent for task in tasks}) > 50


def test_replies_are_those_of_a_chat_model(found: list[Recording], tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_bytes(b"".join(json_line(each.to_json()) for each in found))
    assert list(read_recordings(path)) == found
    assert {each.thoughts for each in found} == {"free"}
    replies = [step.reply for each in found for step in each.steps]
    assert all(reply.count("\n") == 1 and reply.endswith("```") for reply in replies)
    assert not any(reply.startswith(("at ", "from ")) for reply in replies)


def test_another_seed_draws_other_variants_of_other_recordings(folder: Path) -> None:
    half = {"vwa75": 0.5}
    one = list(recordings(folder, seed=0, taken=half))
    again = list(recordings(folder, seed=0, taken=half))
    other = list(recordings(folder, seed=1, taken=half))
    assert one == again and 20 < len(one) < 55
    numbers = [{each.key.partition(" ")[0] for each in some} for some in (one, other)]
    assert numbers[0] != numbers[1]


def test_the_words_of_miniwob_stay(found: list[Recording]) -> None:
    goals = {each.key: each.goal for each in read_recordings(MINIWOB)}
    pages = [each for each in found if each.suite == "miniwob"]
    assert len(pages) > 0.9 * len(goals)
    assert all(each.goal == goals[each.key.removesuffix(" variant 0")] for each in pages)


def test_short_pages_have_far_fewer_elements(folder: Path, found: list[Recording]) -> None:
    short = list(recordings(folder, seed=0, taken=ALL, is_short=True))
    sizes = {
        suite: [
            sum(len(step.page.nodes) for each in some if each.suite == suite for step in each.steps)
            for some in (found, short)
        ]
        for suite in ALL
    }
    assert sizes["vwa75"][1] < 0.6 * sizes["vwa75"][0]
    assert sizes["miniwob"][0] == sizes["miniwob"][1]


def test_a_training_on_miniwob_alone_takes_its_short_episodes(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    write_recordings(path, is_whole=False, is_short=False, is_miniwob=True)
    found = list(read_recordings(path))
    assert {each.suite for each in found} == {"miniwob"} and len(found) > 700
    assert max(len(each.steps) for each in found) == MOST_STEPS
