"""Quoting: every answer is right for the page, and what is given is not what counts."""

import random

import pytest
from tokenizers import Tokenizer

from agentkv.dialog.prompt import PlainTemplate
from agentkv.dialog.reply import label
from agentkv_env.actions import extract, parse
from train_nano.drills import Drills
from train_nano.quoting import quoting
from train_nano.train import MODEL

TEMPLATE = PlainTemplate(Tokenizer.from_file(str(MODEL / "tokenizer.json")))


@pytest.mark.parametrize("seed", range(6))
def test_every_answer_names_the_element_whose_number_it_gives(seed: int) -> None:
    episode = Drills(seed).walk(12)
    page = episode.turns[0].page
    row = quoting(random.Random(seed), TEMPLATE, episode.goal, page, count=8, weight=0.5)
    replies = _replies(row.ids)
    assert len(replies) == 8
    for reply in replies:
        action = parse(extract(reply))
        if action.kind == "stop":
            quote = reply.partition("\n")[0].removeprefix("from ")
            assert quote in {node.name for node in page.nodes}
            assert quote.endswith(f" | {action.answer}")
            continue
        node = page.element(action.element_id or 0)
        assert node is not None
        assert reply.startswith(f"at {label(node)}\n")


def test_page_and_the_first_words_of_an_answer_do_not_count() -> None:
    episode = Drills(1).walk(12)
    page = episode.turns[0].page
    row = quoting(random.Random(1), TEMPLATE, episode.goal, page, count=5, weight=0.5)
    counted = [token for token, weight in zip(row.ids, row.weights, strict=True) if weight]
    assert counted and set(row.weights) == {0.0, 0.5}
    starts = {TEMPLATE.encode(word)[0] for word in ("at", "from")}
    assert counted[0] not in starts


def _replies(ids: list[int]) -> list[str]:
    act, end = TEMPLATE.turn("")[-1], next(iter(TEMPLATE.end_ids))
    replies, start = [], None
    for index, token in enumerate(ids):
        if token == act:
            start = index + 1
        elif token == end and start is not None:
            replies.append(TEMPLATE.decode(ids[start:index]))
    return replies
