"""A report says in words what was run."""

from collections.abc import Callable

import pytest

from agentkv_tasks.report.parameters import parameters_in_words, settings_in_words
from agentkv_tasks.results import Row

MakeRow = Callable[..., Row]


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        (None, "none"),
        (1024, "1,024 entries per layer and head"),
        ("3.1MiB", "3.1 MiB"),
        ("25%, at least 64", "25 %, at least 64"),
        ("2 GiB", "2 GiB"),
    ],
)
def test_a_budget_is_a_number_with_its_unit(budget: object, words: str) -> None:
    assert parameters_in_words({"budget": budget, "recent": 64, "sure": None}) == (
        words,
        "recent 64, sure off",
    )


def test_settings_are_named_for_people(row: MakeRow) -> None:
    settings = {
        "cache_dtype": "bfloat16",
        "max_steps": None,
        "pins": True,
        "chunk": 32,
        "sites": {},
        "another": [1, 2],
        "temperature": "not a number",
    }
    words = dict(settings_in_words([row(settings=settings, versions={"torch": "2.13"})]))
    assert words["cache"] == "entries in bfloat16"
    assert words["steps of an episode"] == "as each task says"
    assert words["goal"] == "pinned: never evicted" and words["chunk"] == "32 tokens"
    assert words["another"] == "[1, 2]" and words["sampling"] == "not a number"
    assert "sites" not in words and words["torch"] == "2.13"


def test_settings_that_differ_between_rows_are_left_out(row: MakeRow) -> None:
    rows = [row(settings={"chunk": 32, "ocr": True}), row(settings={"chunk": 64, "ocr": True})]
    assert dict(settings_in_words(rows)) == {"text in pictures": "read"}
