"""Tests for quoting rows."""

import random

import pytest
from tokenizers import Tokenizer

from agentkv.dialog.prompt import PlainTemplate
from agentkv.dialog.reply import label
from agentkv_env.actions import extract, parse
from train_nano.drills import Drills
from train_nano.quoting import quote_row
from train_nano.train import MODEL

TEMPLATE = PlainTemplate(Tokenizer.from_file(str(MODEL / "tokenizer.json")))


@pytest.mark.parametrize("seed", range(6))
def test_every_reply_names_its_element_or_quotes_its_fact(seed: int) -> None:
    episode = Drills(seed).walk(12)
    page = episode.turns[0].page
    row = quote_row(random.Random(seed), TEMPLATE, episode.goal, page, count=8, weight=0.5)
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


def test_the_page_and_the_first_words_of_a_reply_have_no_weight() -> None:
    episode = Drills(1).walk(12)
    page = episode.turns[0].page
    row = quote_row(random.Random(1), TEMPLATE, episode.goal, page, count=5, weight=0.5)
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
