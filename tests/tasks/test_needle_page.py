"""Needles: pages that hold the answer once, where it was asked for, in so many tokens."""

import re
from collections.abc import Callable

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from agentkv.dialog.chat import ChatTemplate
from agentkv.dialog.grammar import CLOSING_TOKENS, Grammar
from agentkv.dialog.prompt import PlainTemplate, Template
from agentkv.models.find import NANO
from agentkv_env.sites.names import side_of_name
from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.bench.needle.attempt import answer_of
from agentkv_tasks.bench.needle.kinds import (
    MOST_FACTS,
    MOST_HOPS,
    Chain,
    Kind,
    One,
    Several,
    is_right,
    share_right,
)
from agentkv_tasks.bench.needle.measure import reply_tokens
from agentkv_tasks.bench.needle.page import Needle, NeedleSpot, Question, observe, require_room
from agentkv_tasks.bench.needle.page import make_needle as make_needle_at

KINDS = (One(), Several(), Several(facts=5, asked=1), Several(facts=9, asked=4), Chain(), Chain(1))

LONGEST_LINE = 80
"""Tokens; a review by somebody with a long name has fewer, its box included."""


@pytest.fixture(scope="module", params=["plain", "chat"])
def template(request: pytest.FixtureRequest) -> Template:
    backend = AutoTokenizer.from_pretrained(NANO).backend_tokenizer
    if request.param == "plain":
        return PlainTemplate(backend)
    return ChatTemplate(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>"))


def make_needle(
    template: Template,
    *,
    length: int,
    depth: int,
    seed: int = 0,
    number: int = 0,
    question: Question = "before",
    kind: Kind = KINDS[0],
) -> Needle:
    spot = NeedleSpot(
        seed=seed, number=number, length=length, depth=depth, question=question, kind=kind
    )
    return make_needle_at(template, spot)


@pytest.mark.sample("pairs")
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
    assert shown.count(needle.lines[0]) == 1 and shown.count(needle.values[0]) == 1
    asked = re.fullmatch(r"What is the code of (.+)\?", needle.goal)
    assert asked is not None and needle.lines == (f"code of {asked[1]} | {needle.values[0]}",)
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
    assert last == before.goal and lines[-1] == after.lines[0] == before.lines[0]
    assert before.goal not in [node.name for node in before.page.nodes]
    assert after.goal == "Answer the question at the end of the page."
    assert 1500 - LONGEST_LINE < after.num_tokens <= 1500


def test_other_lines_say_codes_of_other_names_of_evaluation_worlds(template: Template) -> None:
    numbers = set()
    for number in range(6):
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


@pytest.mark.sample("values")
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("depth", [0, 40, 100])
def test_the_first_line_stands_at_the_depth_and_the_others_at_equal_distances(
    template: Template, kind: Kind, depth: int
) -> None:
    needle = make_needle(template, length=2500, depth=depth, number=2, kind=kind)
    assert 2500 - LONGEST_LINE < needle.num_tokens <= 2500
    texts = [node.name for node in needle.page.nodes]
    assert len(needle.lines) == kind.num_sought and all(texts.count(x) == 1 for x in needle.lines)
    sizes = [template.count(text) for text in texts]
    for number, line in enumerate(needle.lines):
        share = depth / 100 + number / len(needle.lines)
        above = sum(sizes[: texts.index(line)])
        slack = LONGEST_LINE * (1 if number == 0 else len(needle.lines))
        assert abs(above - (share - (share > 1)) * sum(sizes)) < slack


def test_several_asks_for_some_of_the_codes_of_the_page_in_an_order_of_its_own(
    template: Template,
) -> None:
    needle = make_needle(template, length=1500, depth=30, kind=Several(facts=6, asked=3))
    codes = dict(
        re.fullmatch(r"code of (.+) \| ([A-Z]{2}-\d{4})", node.name).groups()  # type: ignore[union-attr]
        for node in needle.page.nodes
        if "code" in node.name
    )
    asked = re.fullmatch(
        r"What are the codes of (.+), (.+) and (.+)\? Answer with the codes, joined by commas\.",
        needle.goal,
    )
    assert len(codes) == 6 and asked is not None
    assert needle.values == tuple(codes[name] for name in asked.groups())


@pytest.mark.sample("values")
@pytest.mark.parametrize("hops", [1, 2, 5])
def test_a_chain_leads_from_the_name_asked_for_to_its_code_past_another_chain(
    template: Template, hops: int
) -> None:
    needle = make_needle(template, length=1500, depth=50, kind=Chain(hops))
    behind = dict(
        re.fullmatch(r"code of (.+) \| (.+)", node.name).groups()  # type: ignore[union-attr]
        for node in needle.page.nodes
        if "code" in node.name
    )
    name = re.fullmatch(r"What is the code of (.+)\?", needle.goal)
    assert name is not None
    found = behind[name[1]]
    for _ in range(hops):
        found = behind[found.removeprefix("same as ")]
    assert needle.values == (found,) and re.fullmatch(r"[A-Z]{2}-\d{4}", found)
    links = [value for value in behind.values() if value.startswith("same as ")]
    starts = behind.keys() - {link.removeprefix("same as ") for link in links}
    assert len(links) == 2 * hops and name[1] in starts
    assert len([each for each in starts if behind[each] in links]) == 2


@pytest.mark.sample("values")
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_page_too_short_for_its_codes_is_refused(template: Template, kind: Kind) -> None:
    spot = NeedleSpot(seed=0, number=0, length=60, depth=0, kind=kind)
    said = r"--lengths 60: a question and \d+ codes alone are \d+ tokens"
    for refuse in (make_needle_at, require_room):
        with pytest.raises(BenchError, match=said) as refused:
            refuse(template, spot)
        least = int(re.findall(r"(\d+) tokens", str(refused.value))[0])
        assert least > 60


@pytest.mark.sample("values")
@pytest.mark.parametrize("question", ["before", "after"])
def test_a_page_with_room_for_its_codes_alone_is_made_of_them(
    template: Template, question: Question
) -> None:
    with pytest.raises(BenchError) as refused:
        make_needle(template, length=60, depth=0, kind=Several(), question=question)
    least = int(re.findall(r"(\d+) tokens", str(refused.value))[0])
    # names of another length differ, so the page is no longer than twice the other
    needle = make_needle(template, length=2 * least, depth=0, kind=Several(), question=question)
    assert len(needle.page.nodes) >= 8


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Several(facts=1), "--facts 1: expected 2 to 24"),
        (lambda: Several(facts=MOST_FACTS + 1), "--facts 25: expected 2 to 24"),
        (lambda: Several(asked=0), "--asked 0: expected 1 to 8"),
        (lambda: Several(facts=3, asked=4), "--asked 4: expected 1 to 3"),
        (lambda: Chain(0), "--hops 0: expected 1 to 16"),
        (lambda: Chain(MOST_HOPS + 1), "--hops 17: expected 1 to 16"),
    ],
)
def test_numbers_out_of_range_are_refused(make: Callable[[], Kind], message: str) -> None:
    with pytest.raises(BenchError, match=message):
        make()


@pytest.mark.parametrize("kind", [*KINDS, Several(facts=6, asked=6)], ids=str)
def test_the_reply_that_quotes_the_lines_is_allowed_on_the_page_and_finds_the_needle(
    kind: Kind,
) -> None:
    backend = AutoTokenizer.from_pretrained(NANO).backend_tokenizer
    template = PlainTemplate(backend)
    grammar = Grammar(backend, end_id=min(template.end_ids))
    for number in range(3):
        needle = make_needle(template, number=number, length=700, depth=50, kind=kind)
        quoted = needle.lines[-1:] if isinstance(kind, Chain) else needle.lines
        ids = template.reply(f"from {'; '.join(quoted)}\n```stop [{', '.join(needle.values)}]```")[
            :-1
        ]
        matcher = grammar.start(needle.page, needle.goal, thoughts=template.thoughts)
        matcher.consume(ids)
        assert matcher.is_complete and len(ids) < reply_tokens(kind) - CLOSING_TOKENS
        answer = answer_of(template.decode(ids))
        assert is_right(answer, needle.values) and share_right(answer, needle.values) == 1


@pytest.mark.parametrize(
    ("answer", "right", "share"),
    [
        ("NM-2474, CK-7627", True, 1),
        ("CK-7627, NM-2474", True, 1),
        ("NM-2474; CK-7627", True, 1),
        ("NM-2474 CK-7627", True, 1),
        ("NM-2474 and CK-7627", True, 1),
        ("nm-2474,ck-7627.", True, 1),
        ('"NM-2474, CK-7627"', True, 1),
        ("NM-2474, NM-2474, CK-7627", True, 1),
        ("NM-2474", False, 0.5),
        ("NM-2474, XX-9999", False, 0.5),
        ("NM-2474, CK-7627, XX-9999", False, 1),
        ("XX-9999, RH-4433, NM-2474, CK-7627", False, 0),
        ("NM-2474CK-7627", False, 0),
        ("", False, 0),
        (None, False, 0),
    ],
)
def test_an_answer_of_several_values_counts_as_exactly_right_and_by_its_share(
    answer: str | None, right: bool, share: float
) -> None:
    values = ("NM-2474", "CK-7627")
    assert is_right(answer, values) is right
    assert share_right(answer, values) == share


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("NM-2474", True),
        ("nm-2474", True),
        ("NM-2474.", True),
        ("NM-2475", False),
        ("code NM-2474", False),
        ("NM-2474, NM-2475", False),
        ("NM 2474", False),
    ],
)
def test_an_answer_of_one_value_is_right_if_it_is_that_value(answer: str, right: bool) -> None:
    assert is_right(answer, ["NM-2474"]) is right


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("from code of Garford | NM-2474\n```stop [NM-2474]```", "NM-2474"),
        ("```stop [ NM-2474 ]```", "NM-2474"),
        ("done\n```stop []```", ""),
        ("scroll\n```scroll [down]```", None),
        ("NM-2474", None),
        ("The code of Garford is NM-2474.", None),
        ("The code of Garford is NM-2474.\nstop [NM-2474]", "NM-2474"),
        ("I read the page.\n```\nstop [NM-2474]\n```\nThat is all.", "NM-2474"),
        ("```text\nStop [NM-2474]\n```", "NM-2474"),
        ("```stop [NM-2474", "NM-2474"),
        ("```click [4]```\n```stop [NM-2474]```", None),
    ],
)
def test_only_what_a_reply_stops_with_is_an_answer(reply: str, answer: str | None) -> None:
    assert answer_of(reply) == answer
