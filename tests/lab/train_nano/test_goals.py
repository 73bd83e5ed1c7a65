"""Tests for the goals of the training data: all paraphrases are used, and no goal is a request."""

import json
import lzma
import random
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from agentkv.dialog.prompt import PlainTemplate
from agentkv_env.page import Box, Node, Page
from agentkv_env.sites.names import FIRST_TRAINING_SEED
from agentkv_env.sites.world import World
from agentkv_tasks.suites import SUITES
from train_nano import drills
from train_nano.augment import vary
from train_nano.corpus import drill_texts
from train_nano.data import Recordings, draw_goal
from train_nano.drills import Drills
from train_nano.episode import RecordedEpisode, RecordedTurn, load, save, to_json
from train_nano.lookups import gathering_episode, lookup_episode
from train_nano.page_recall import needle_row, recall_row
from train_nano.quoting import quote_row
from train_nano.record import RECORDINGS, Browsers, episode_name, record
from train_nano.rephrase import rephrase, tasks_by_name
from train_nano.train import MODEL
from train_nano.wording import is_polite_request

TOKENIZER = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
TEMPLATE = PlainTemplate(TOKENIZER)
PERSON = "Calan Fenzanell"
PAGE = Page(
    "http://wiki.localhost/", "Wiki", (Node("element", "link", PERSON, Box(0, 0, 1, 1), 3),)
)
EPISODE = RecordedEpisode(
    f"Open {PERSON}, order 4711.",
    (
        RecordedTurn(PAGE, f"at {PERSON}\n```click [3]```"),
        RecordedTurn(PAGE, "done\n```stop []```"),
    ),
    paraphrases=(f"I want to read about {PERSON} (order 4711).", f"Order 4711: {PERSON}."),
)


# ---- no goal of the training data is a polite request ---------------------------------------


@pytest.mark.parametrize("seed", range(60))
def test_no_generated_goal_is_a_polite_request(seed: int) -> None:
    generator = Drills(seed)
    episodes = [
        generator.walk(12),
        lookup_episode(generator, 12),
        gathering_episode(generator, 12),
    ]
    rows = [
        needle_row(generator, 200, TEMPLATE),
        recall_row(generator, 6, TEMPLATE),
        quote_row(
            generator.rng, TEMPLATE, episodes[0].goal, episodes[0].turns[0].page, count=5, weight=1
        ),
    ]
    texts = [episode.goal for episode in episodes] + [TOKENIZER.decode(row.ids) for row in rows]
    assert [text for text in texts if is_polite_request(text)] == []


def test_no_phrase_for_the_goal_of_a_random_walk_is_a_polite_request() -> None:
    phrases = [
        *(drills.OPENING + drills.SEARCHING + drills.TYPING + drills.CHOOSING),
        *(drills.PRICING + drills.ASKING),
    ]
    assert [phrase for phrase in phrases if is_polite_request(phrase)] == []


def test_no_synthetic_text_of_the_tokenizer_is_a_polite_request() -> None:
    assert [text for text in drill_texts(40) if is_polite_request(text)] == []


def test_no_goal_of_a_recording_is_a_polite_request() -> None:
    goals = []
    for path in RECORDINGS.glob("*.jsonl.xz"):
        with lzma.open(path, "rt") as file:
            for episode in map(json.loads, file):
                goals += [episode["goal"], *episode.get("paraphrases", ())]
    assert len(goals) > 2000
    assert [goal for goal in goals if is_polite_request(goal)] == []


@pytest.mark.parametrize(
    "episode",
    [
        replace(EPISODE, goal=f"Could you open {PERSON}?"),
        replace(EPISODE, paraphrases=(f"I am bored. Would you open {PERSON}?",)),
    ],
)
def test_a_recording_with_such_a_goal_is_neither_written_nor_trained_on(
    episode: RecordedEpisode, tmp_path: Path
) -> None:
    path = tmp_path / "vwa75-1.jsonl.xz"
    with pytest.raises(ValueError, match="a polite request; training must not see"):
        save([episode], path)
    assert not path.exists()
    with lzma.open(path, "wt") as file:
        file.write(json.dumps(to_json(episode)))
    with pytest.raises(ValueError, match="a polite request; training must not see"):
        Recordings(tmp_path)


@pytest.mark.parametrize("suite", [name for name, suite in SUITES.items() if suite.is_held_out])
def test_the_recorder_refuses_a_suite_that_measures_what_training_has_not_seen(suite: str) -> None:
    with pytest.raises(ValueError, match=f"'{suite}' measures what training has not seen"):
        record(FIRST_TRAINING_SEED, suite, Browsers(), None)


def test_the_recorder_refuses_a_suite_without_solutions() -> None:
    with pytest.raises(ValueError, match="'miniwob' has no solutions; suites to record: .*vwa75"):
        record(FIRST_TRAINING_SEED, "miniwob", Browsers(), None)


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_has_solutions_if_it_says_so(name: str) -> None:
    tasks = SUITES[name].tasks(World(FIRST_TRAINING_SEED))
    assert SUITES[name].has_solutions == any(task.solution for task in tasks)


def test_both_suites_of_unseen_goals_and_flows_are_held_out() -> None:
    held_out = {name for name, suite in SUITES.items() if suite.is_held_out}
    assert held_out >= {"vwa75-reworded", "vwa-unseen"}


def test_the_recorder_names_the_suites_that_it_records() -> None:
    with pytest.raises(ValueError, match="'vwa76' is unknown; suites to record: .*vwa75"):
        record(FIRST_TRAINING_SEED, "vwa76", Browsers(), None)


# ---- paraphrases ------------------------------------------------------------------------------


def test_training_draws_the_goal_and_each_of_its_paraphrases() -> None:
    rng = random.Random(0)
    drawn = [draw_goal(EPISODE, rng) for _ in range(40)]
    assert {one.goal for one in drawn} == set(EPISODE.goals)
    assert all(one.paraphrases == () and one.turns == EPISODE.turns for one in drawn)


@pytest.mark.parametrize("seed", range(12))
def test_a_variant_has_the_same_new_values_in_all_goals(seed: int) -> None:
    varied = vary(EPISODE, random.Random(seed))
    name, number = varied.goal.removeprefix("Open ").removesuffix(".").split(", order ")
    assert varied.paraphrases == (
        f"I want to read about {name} (order {number}).",
        f"Order {number}: {name}.",
    )
    assert varied.turns[0].page.nodes[0].name == name


def test_a_recording_gets_the_goals_of_todays_templates() -> None:
    task = next(task for task in SUITES["vwa75"].tasks(World(FIRST_TRAINING_SEED)) if task.needs)
    name = episode_name(FIRST_TRAINING_SEED, "vwa75", task)
    values = " / ".join(map(str, task.instantiation_dict.values()))
    old = RecordedEpisode(f"An older wording: {values}.", EPISODE.turns, name)
    tasks = tasks_by_name([old])
    rephrased = rephrase(old, tasks)
    assert set(rephrased.goals) == {task.intent, *task.paraphrases} and len(rephrased.goals) >= 3
    assert rephrased.turns == old.turns
    others = replace(old, goal="An older wording: other values.")
    assert rephrase(others, tasks) == others


def test_paraphrases_are_saved_and_absent_in_older_files(tmp_path: Path) -> None:
    path = tmp_path / "vwa75-1.jsonl.xz"
    save([EPISODE], path)
    assert list(load(path)) == [EPISODE]
    older = {key: value for key, value in to_json(EPISODE).items() if key != "paraphrases"}
    with lzma.open(path, "wt") as file:
        file.write(json.dumps(older))
    assert list(load(path)) == [replace(EPISODE, paraphrases=())]
