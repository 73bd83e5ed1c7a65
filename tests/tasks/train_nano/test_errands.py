"""Errands and recall: what is typed or answered was read, and the reply quotes where."""

import pytest
from tokenizers import Tokenizer

from agentkv.dialog.prompt import PlainTemplate
from agentkv.dialog.reply import label
from agentkv_env.actions import extract, parse
from train_nano.drills import Drills
from train_nano.errands import errand, gathering
from train_nano.recall import needle, recalling
from train_nano.train import MODEL

TEMPLATE = PlainTemplate(Tokenizer.from_file(str(MODEL / "tokenizer.json")))


@pytest.mark.parametrize("seed", range(40))
def test_what_an_errand_types_or_answers_was_read_or_asked_for(seed: int) -> None:
    episode = errand(Drills(seed), 12)
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
def test_a_gathering_answers_with_one_fact_of_every_page_in_the_order_they_were_opened(
    seed: int,
) -> None:
    episode = gathering(Drills(seed), 12)
    *opened, last = episode.turns
    parts = parse(extract(last.reply)).answer.split(", ")
    assert len(opened) - 1 <= len(parts) <= len(opened) and len(parts) >= 2
    for part, turn in zip(parts, episode.turns[1:], strict=False):
        assert any(node.name.endswith(f" | {part}") for node in turn.page.nodes)


def test_what_is_gathered_is_answered_on_the_last_of_its_pages_or_on_another() -> None:
    further = 0
    for seed in range(40):
        *opened, last = gathering(Drills(seed), 12).turns
        further += len(opened) > len(parse(extract(last.reply)).answer.split(", "))
    assert 8 < further < 32


def test_many_errands_answer_with_what_an_earlier_page_said() -> None:
    quoting = 0
    for seed in range(60):
        episode = errand(Drills(seed), 12)
        for index, turn in enumerate(episode.turns):
            for line in turn.reply.splitlines():
                if line.startswith("from "):
                    pages = [earlier.page for earlier in episode.turns[: index + 1]]
                    names = [node.name for page in pages for node in page.nodes]
                    assert any(line.removeprefix("from ") in name for name in names)
                    quoting += 1
    assert quoting > 40


@pytest.mark.parametrize("size", [400, 1500, 4000])
def test_a_row_of_needles_has_the_size_asked_for_and_answers_what_its_page_says(size: int) -> None:
    row = needle(Drills(size), size, TEMPLATE)
    act = TEMPLATE.turn("")[-1]
    first = row.ids.index(act)
    assert 0.6 * size < first < 1.6 * size
    read = TEMPLATE.decode(row.ids[:first]).splitlines()
    starts = [index for index, id in enumerate(row.ids) if id == act]
    assert len(starts) <= 13
    for start, end in zip(starts, [*starts[1:], len(row.ids)], strict=True):
        said = [
            id
            for id, weight in zip(row.ids[start:end], row.weights[start:end], strict=True)
            if weight
        ]
        line, action = TEMPLATE.decode(said).removeprefix("from ").splitlines()
        assert read.count(line) == 1
        assert action == f"```stop [{line.partition(' | ')[2]}]```"


def test_a_row_of_recall_counts_only_what_is_said() -> None:
    row = recalling(Drills(3), 5, TEMPLATE)
    act = TEMPLATE.turn("")[-1]
    assert row.ids.count(act) == 12
    assert all(
        not weight for token, weight in zip(row.ids, row.weights, strict=True) if token == act
    )
    assert 0.2 < sum(row.weights) / len(row.weights) < 0.9


def test_equal_seeds_give_equal_errands() -> None:
    assert errand(Drills(5), 9) == errand(Drills(5), 9) != errand(Drills(6), 9)
