"""Tests for lookup and gathering episodes, needles and recall rows."""

import pytest
from tokenizers import Tokenizer

from agentkv.dialog.prompt import PlainTemplate
from agentkv.dialog.reply import label
from agentkv_env.actions import extract, parse
from train_nano.drills import Drills
from train_nano.lookups import gathering_episode, lookup_episode
from train_nano.page_recall import needle_row, recall_row
from train_nano.train import MODEL

TEMPLATE = PlainTemplate(Tokenizer.from_file(str(MODEL / "tokenizer.json")))


@pytest.mark.parametrize("seed", range(40))
def test_a_lookup_types_and_answers_only_text_of_pages_or_of_the_goal(seed: int) -> None:
    episode = lookup_episode(Drills(seed), 12)
    read = episode.goal.lower()
    for turn in episode.turns:
        read += "\n" + "\n".join(
            f"{node.name} {' '.join(node.options)}".lower() for node in turn.page.nodes
        )
        action = parse(extract(turn.reply))
        assert (action.text or action.answer).lower() in read
        if action.element_id is not None:
            node = turn.page.element(action.element_id)
            assert node is not None and turn.reply.startswith(f"at {label(node)}\n")


@pytest.mark.parametrize("seed", range(20))
def test_a_gathering_answers_with_one_fact_of_every_page_in_order(seed: int) -> None:
    episode = gathering_episode(Drills(seed), 12)
    *opened, last = episode.turns
    parts = parse(extract(last.reply)).answer.split(", ")
    assert len(opened) - 1 <= len(parts) <= len(opened) and len(parts) >= 2
    for part, turn in zip(parts, episode.turns[1:], strict=False):
        assert any(node.name.endswith(f" | {part}") for node in turn.page.nodes)


def test_some_gatherings_answer_on_a_page_without_a_wanted_fact() -> None:
    num_elsewhere = 0
    for seed in range(40):
        *opened, last = gathering_episode(Drills(seed), 12).turns
        num_elsewhere += len(opened) > len(parse(extract(last.reply)).answer.split(", "))
    assert 8 < num_elsewhere < 32


def test_many_lookups_quote_facts_of_pages() -> None:
    num_quotes = 0
    for seed in range(60):
        episode = lookup_episode(Drills(seed), 12)
        for index, turn in enumerate(episode.turns):
            for line in turn.reply.splitlines():
                if line.startswith("from "):
                    pages = [earlier.page for earlier in episode.turns[: index + 1]]
                    names = [node.name for page in pages for node in page.nodes]
                    assert any(line.removeprefix("from ") in name for name in names)
                    num_quotes += 1
    assert num_quotes > 40


@pytest.mark.parametrize("size", [400, 1500, 4000])
def test_a_needle_row_has_the_requested_size_and_answers_from_its_page(size: int) -> None:
    row = needle_row(Drills(size), size, TEMPLATE)
    act = TEMPLATE.turn("")[-1]
    first = row.ids.index(act)
    assert 0.6 * size < first < 1.6 * size
    page_lines = TEMPLATE.decode(row.ids[:first]).splitlines()
    starts = [index for index, id in enumerate(row.ids) if id == act]
    assert len(starts) <= 13
    for start, end in zip(starts, [*starts[1:], len(row.ids)], strict=True):
        reply = [
            id
            for id, weight in zip(row.ids[start:end], row.weights[start:end], strict=True)
            if weight
        ]
        line, action = TEMPLATE.decode(reply).removeprefix("from ").splitlines()
        assert page_lines.count(line) == 1
        assert action == f"```stop [{line.partition(' | ')[2]}]```"


def test_only_the_answers_of_a_recall_row_have_weight() -> None:
    row = recall_row(Drills(3), 5, TEMPLATE)
    act = TEMPLATE.turn("")[-1]
    assert row.ids.count(act) == 12
    assert all(
        not weight for token, weight in zip(row.ids, row.weights, strict=True) if token == act
    )
    assert 0.2 < sum(row.weights) / len(row.weights) < 0.9


def test_equal_seeds_give_equal_lookups() -> None:
    assert (
        lookup_episode(Drills(5), 9) == lookup_episode(Drills(5), 9) != lookup_episode(Drills(6), 9)
    )
