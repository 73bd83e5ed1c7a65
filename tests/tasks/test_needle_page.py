"""Needles: pages that hold the answer once, where it was asked for, in so many tokens."""

import re

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from agentkv.dialog.chat import ChatTemplate
from agentkv.dialog.grammar import CLOSING_TOKENS, Grammar
from agentkv.dialog.prompt import PlainTemplate, Template
from agentkv.models.find import NANO
from agentkv_env.sites.names import side_of_name
from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.bench.needle.attempt import answer_of
from agentkv_tasks.bench.needle.measure import REPLY_TOKENS
from agentkv_tasks.bench.needle.page import make_needle, observe

LONGEST_LINE = 80
"""Tokens; a review by somebody with a long name has fewer, its box included."""


@pytest.fixture(scope="module", params=["plain", "chat"])
def template(request: pytest.FixtureRequest) -> Template:
    backend = AutoTokenizer.from_pretrained(NANO).backend_tokenizer
    if request.param == "plain":
        return PlainTemplate(backend)
    return ChatTemplate(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>"))


@pytest.mark.parametrize("length", [1500, 4000])
@pytest.mark.parametrize("depth", [0, 30, 100])
def test_a_page_is_as_long_as_asked_for_and_answers_once_at_its_depth(
    template: Template, length: int, depth: int
) -> None:
    needle = make_needle(template, seed=3, number=1, length=length, depth=depth)
    shown = observe(template, needle.page)
    read = [*template.opening(needle.goal), *template.turn(shown)]
    assert length - LONGEST_LINE < needle.num_tokens <= length
    assert abs(len(read) - needle.num_tokens) < 60  # without the mark of an episode's fences
    assert shown.count(needle.lines[0]) == 1 and shown.count(needle.value) == 1
    asked = re.fullmatch(r"What is the code of (.+)\?", needle.goal)
    assert asked is not None and needle.lines[0] == f"code of {asked[1]} | {needle.value}"
    texts = [node.name for node in needle.page.nodes]
    place = texts.index(needle.lines[0])
    above = sum(template.count(text) for text in texts[:place])
    below = sum(template.count(text) for text in texts[place + 1 :])
    assert abs(above / (above + below) - depth / 100) * length < LONGEST_LINE
    if depth in (0, 100):
        assert place == (0 if depth == 0 else len(texts) - 1)


def test_a_question_after_the_page_is_its_last_line_and_in_no_other_place(
    template: Template,
) -> None:
    before, after = (
        make_needle(template, seed=3, number=1, length=1500, depth=100, question=question)
        for question in ("before", "after")
    )
    *lines, last = [node.name for node in after.page.nodes]
    assert last == before.goal and lines[-1] == after.line == before.line
    assert before.goal not in [node.name for node in before.page.nodes]
    assert after.goal == "Answer the question at the end of the page."
    assert 1500 - LONGEST_LINE < after.num_tokens <= 1500


def test_other_lines_say_codes_of_other_names_of_evaluation_worlds(template: Template) -> None:
    numbers = set()
    for number in range(12):
        needle = make_needle(template, seed=0, number=number, length=1200, depth=50)
        codes = [
            re.fullmatch(r"code of (.+) \| ([A-Z]{2}-\d{4})", node.name)
            for node in needle.page.nodes
            if "code" in node.name
        ]
        assert all(codes)
        found = [(code[1], code[2]) for code in codes if code]
        assert len({name for name, _ in found}) == len({code for _, code in found}) == len(found)
        assert all(side_of_name(each) == 0 for pair in found for each in pair)
        numbers.add(len(found) - 1)
    assert numbers <= {3, 4, 5, 6} and len(numbers) > 1


def test_equal_arguments_give_equal_needles_and_others_others(template: Template) -> None:
    place = {"seed": 0, "number": 0, "length": 1500, "depth": 50}
    needle = make_needle(template, **place)
    assert make_needle(template, **place) == needle
    others = [
        make_needle(template, **{**place, name: value}).goal
        for name, value in (("seed", 1), ("number", 1), ("length", 1501), ("depth", 51))
    ]
    assert len({needle.goal, *others}) == 5


def test_a_page_too_short_for_its_codes_is_refused(template: Template) -> None:
    with pytest.raises(BenchError, match="--lengths 60: a question and . codes alone are"):
        make_needle(template, seed=0, number=0, length=60, depth=0)


def test_the_reply_that_quotes_the_line_is_allowed_on_the_page_and_finds_the_needle() -> None:
    backend = AutoTokenizer.from_pretrained(NANO).backend_tokenizer
    template = PlainTemplate(backend)
    grammar = Grammar(backend, end_id=min(template.end_ids))
    for number in range(5):
        needle = make_needle(template, seed=0, number=number, length=600, depth=50)
        ids = template.reply(f"from {needle.lines[0]}\n```stop [{needle.value}]```")[:-1]
        matcher = grammar.start(needle.page, needle.goal, thoughts=template.thoughts)
        matcher.consume(ids)
        assert matcher.is_complete and len(ids) < REPLY_TOKENS - CLOSING_TOKENS
        assert answer_of(template.decode(ids)) == needle.value


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("from code of Garford | NM-2474\n```stop [NM-2474]```", "NM-2474"),
        ("```stop [ NM-2474 ]```", "NM-2474"),
        ("done\n```stop []```", ""),
        ("scroll\n```scroll [down]```", None),
        ("NM-2474", None),
    ],
)
def test_only_what_a_reply_stops_with_is_an_answer(reply: str, answer: str | None) -> None:
    assert answer_of(reply) == answer
