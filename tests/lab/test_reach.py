"""Distances between a text on a page and its use."""

import pytest

from agentkv_lab.reach import uses

PAGES = (
    "url start\nlink Olwick [1]",
    "url olwick\nMayor | Pina Mirlan\nFounded | 1161",
    "url shop\nModel | KV-204",
    "url end",
)
REPLIES = ("at Olwick\n```click [1]```", "go", "go", "```stop [1161, KV-204]```")


def words(text: str) -> int:
    return len(text.split())


def test_the_distance_counts_the_pages_after_the_source_up_to_the_use() -> None:
    found = list(uses(["1161", "KV-204"], PAGES, REPLIES, count=words))
    assert [(use.source, use.step, use.distance) for use in found] == [(1, 3, 7), (2, 3, 2)]


def test_a_text_used_on_its_own_page_has_distance_zero() -> None:
    (use,) = uses(["Olwick"], PAGES, REPLIES, count=words)
    assert (use.source, use.step, use.distance) == (0, 0, 0)


def test_the_distance_starts_at_the_last_page_or_reply_with_the_text() -> None:
    again = (*PAGES[:2], "url shop\nFounded | 1161", PAGES[3])
    assert [use.source for use in uses(["1161"], again, REPLIES)] == [2]
    typed = ("at Olwick", "go", "```type [2] [1161] [1]```", "```stop [1161]```")
    first, second = uses(["1161", "1161"], PAGES, typed, count=words)
    assert (first.step, second.step) == (2, 3)
    assert (second.source, second.distance) == (1, 2)


def test_only_whole_words_count() -> None:
    pages = ("year 1161", "order 11613", "end")
    (use,) = uses(["1161"], pages, ("go", "go", "```stop [1161]```"))
    assert use.source == 0


def test_a_text_on_no_page_has_no_source() -> None:
    (use,) = uses(["4711"], PAGES, (*REPLIES[:3], "```stop [4711]```"))
    assert use.source is None


def test_a_text_that_no_reply_contains_is_rejected() -> None:
    with pytest.raises(ValueError, match="needs 'Elmere', which no reply from step 1 on contains"):
        list(uses(["Elmere"], PAGES, REPLIES))
