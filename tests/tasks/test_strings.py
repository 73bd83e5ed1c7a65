"""string_match follows VisualWebArena's rules exactly; `mended` scoring repairs some of them."""

import pytest

from agentkv_tasks.evaluate import CannotScore, string_match
from agentkv_tasks.evaluate.strings import describe
from agentkv_tasks.evaluate.words import words


@pytest.mark.parametrize(
    ("reference", "answer", "score"),
    [
        ("Blue", "blue", 1.0),  # case does not matter
        ("blue", "'Blue'", 1.0),  # one pair of outer quotes is stripped
        ('"blue"', "blue", 1.0),  # from the reference as well
        ("blue", " blue", 0.0),  # white space counts
        ("blue", "blue.", 0.0),
        ("'blue\"", "blue", 0.0),  # unmatched quotes count
        ("café", "cafe\u0301", 0.0),  # no Unicode normalization
        ("", "''", 1.0),
        ("blue", "\"'blue'\"", 1.0),  # VisualWebArena cleans the answer twice
    ],
)
def test_exact_match_ignores_only_outer_quotes_and_case(
    reference: str, answer: str, score: float
) -> None:
    assert string_match({"exact_match": reference}, answer) == score


@pytest.mark.parametrize(
    ("reference", "answer", "score"),
    [
        ("170", "000000170", 0.0),  # a one-word reference must be a word of the answer
        ("170", "it is 170.", 1.0),
        ("0", "10 pages", 0.0),
        ("red", "a redder one", 0.0),
        ("25.00", "$25.00", 1.0),  # the dollar sign is a separate word
        ("$25.00", "$25.00", 1.0),  # two words: substring
        ("can", "cannot", 1.0),
        ("blue kayak", "the Blue Kayaks", 1.0),  # several words: substring
        ("blue kayak", "blue, kayak", 0.0),
        ("red |OR| blue", "blue", 1.0),
        ("red |OR| blue", "green", 0.0),
        ("red|OR|blue", "blue", 0.0),  # alternatives need spaces
        ("", "anything", 1.0),  # no word: substring
    ],
)
def test_must_include_matches_one_word_as_a_word_and_several_words_as_a_substring(
    reference: str, answer: str, score: float
) -> None:
    assert string_match({"must_include": [reference]}, answer) == score


def test_every_entry_of_must_include_must_hold() -> None:
    references = {"must_include": ["red", "blue"]}
    assert string_match(references, "red and blue") == 1.0
    assert string_match(references, "red") == 0.0


def test_must_exclude_negates_must_include_and_knows_no_alternatives() -> None:
    assert string_match({"must_exclude": ["170"]}, "000000170") == 1.0
    assert string_match({"must_exclude": ["170"]}, "170") == 0.0
    assert string_match({"must_exclude": ["red |OR| blue"]}, "blue") == 1.0


def test_one_of_accepts_any_substring() -> None:
    assert string_match({"one_of": ["Red", "blue"]}, "a redder one") == 1.0
    assert string_match({"one_of": ["red", "blue"]}, "green") == 0.0


@pytest.mark.parametrize(
    ("values", "answer", "compat", "mended"),
    [
        ([">= 300"], "1,200", 1.0, 1.0),
        ([">= 300", "< 500"], "400", 1.0, 1.0),
        ([">= 300", "< 500"], "600", 0.0, 0.0),
        (["== 5"], "5", 1.0, 1.0),
        (["< 300"], "300", 1.0, 0.0),  # VisualWebArena's tolerance turns < into <=
        (["> 300"], "300", 1.0, 0.0),
        (["< 100 |OR| > 300"], "400", 1.0, 1.0),
        ([">= 300"], "$400", 0.0, 1.0),  # VisualWebArena reads integers only
        ([">= 300"], "400.50", 0.0, 1.0),
        ([">= 300"], "many", 0.0, 0.0),
        ([">= -3"], "-2", 1.0, 1.0),
    ],
)
def test_required_values_are_inequalities(
    values: list[str], answer: str, compat: float, mended: float
) -> None:
    assert string_match({"required_values": values}, answer, scoring="compat") == compat
    assert string_match({"required_values": values}, answer, scoring="mended") == mended


def test_all_keys_must_hold() -> None:
    references = {"must_include": ["blue"], "must_exclude": ["red"]}
    assert string_match(references, "blue") == 1.0
    assert string_match(references, "blue or red") == 0.0


def test_only_an_answer_other_than_na_to_an_impossible_task_needs_a_judge() -> None:
    assert string_match({"fuzzy_match": "N/A"}, "n/a") == 1.0
    with pytest.raises(CannotScore):
        string_match({"fuzzy_match": "N/A"}, "there is no such product")
    assert string_match({"fuzzy_match": "N/A"}, "no such product", scoring="mended") == 0.0


def test_fuzzy_match_cannot_be_scored_unless_another_comparison_fails() -> None:
    with pytest.raises(CannotScore):
        string_match({"fuzzy_match": ["a fine day"]}, "a nice day")
    assert string_match({"exact_match": "x", "fuzzy_match": ["y"]}, "z") == 0.0


def test_the_error_for_an_unknown_comparison_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown comparison 'includes'.*must_include"):
        string_match({"includes": ["x"]}, "x")


@pytest.mark.parametrize(
    ("references", "answer"),
    [
        ({"exact_match": "blue"}, " Blue. "),
        ({"exact_match": "1299"}, "$1,299.00"),
        ({"must_include": ["170"]}, "000000170"),
        ({"must_include": ["1,299.00"]}, "it costs $1299"),
        ({"exact_match": "café"}, "cafe\u0301"),
    ],
)
def test_mended_scoring_accepts_equivalent_spellings(
    references: dict[str, object], answer: str
) -> None:
    assert string_match(references, answer, scoring="compat") == 0.0
    assert string_match(references, answer, scoring="mended") == 1.0


def test_mended_scoring_rejects_other_numbers() -> None:
    assert string_match({"exact_match": "1299"}, "1298", scoring="mended") == 0.0
    assert string_match({"must_include": ["170"]}, "1700", scoring="mended") == 0.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [  # results of NLTK 3.9.1
        ("it's $25.00, ok?", ["it", "'s", "$", "25.00", ",", "ok", "?"]),
        ("e.g. 12:30 and 1,299 items.", ["e.g.", "12:30", "and", "1,299", "items", "."]),
        ("cannot won't gonna", ["can", "not", "wo", "n't", "gon", "na"]),
        ('say "hi" (now)', ["say", "``", "hi", "''", "(", "now", ")"]),
        ("wait... -- done", ["wait", "...", "--", "done"]),
        ("a/b c-d f@g", ["a/b", "c-d", "f", "@", "g"]),
        ("first one. second one.", ["first", "one", ".", "second", "one", "."]),
        ("mr. smith", ["mr.", "smith"]),
        ("", []),
    ],
)
def test_words_are_split_as_nltk_splits_them(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@pytest.mark.parametrize(
    ("name", "reference", "description"),
    [
        ("exact_match", "42", 'should be "42"'),
        ("must_include", ["red |OR| blue"], 'should include "red" or "blue"'),
        ("must_include", ("red", "blue"), 'should include "red" and "blue"'),
        ("must_exclude", ("red", "blue"), 'should not include "red" or "blue"'),
        ("one_of", ("red", "blue"), 'should include "red" or "blue"'),
        ("required_values", (">= 3", "< 9"), "should be a number >= 3 and < 9"),
        ("fuzzy_match", "a boat", 'should mean "a boat"'),
    ],
)
def test_a_comparison_is_described_in_words(name: str, reference: object, description: str) -> None:
    assert describe(name, reference) == description


def test_an_answer_of_thousands_of_digits_is_not_a_number() -> None:
    for digits in (400, 4000, 5000):
        for inequality in ("== 3", ">= 3"):
            answer = {"required_values": [inequality]}
            assert string_match(answer, "9" * digits, scoring="compat") == 0.0
