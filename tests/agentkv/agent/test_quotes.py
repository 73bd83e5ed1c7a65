"""Quotations of goal and page are exact; notes on earlier pages are free text."""

import re
from typing import Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from agentkv.dialog.grammar import CLOSING_TOKENS, Grammar
from agentkv.dialog.quotes import MAX_NOTES, WORDS_AHEAD, quote_up_to, text_pattern
from agentkv.dialog.reply_grammar import MAX_QUOTED_TEXT
from agentkv_env.page import Box, Node, Page
from agentkv_env.serialize import neutralize

GOAL = "Put the Red Lamp, the Green Tent, the Red Chair and last the coupon code into the cart."
BOX = Box(0, 0, 1, 1)
DONE = "done\n```stop [12]```"


def a_page(*lines: str) -> Page:
    nodes = tuple(Node("text", "text", line, BOX) for line in lines)
    return Page("http://a.localhost/", "", nodes)


PAGE = a_page(
    "OFFICE: CODE MIRA45", "PETS: CODE ZANAR45", "Founded | 1241", "It [was] built in 1895"
)


class Admits(Protocol):
    def __call__(self, reply: str, goal: str = ..., page: Page = ...) -> bool: ...


@pytest.fixture(scope="module")
def grammar(plain_tokenizer: Tokenizer) -> Grammar:
    return Grammar(plain_tokenizer, end_id=3)


@pytest.fixture
def admits(grammar: Grammar, plain_tokenizer: Tokenizer) -> Admits:
    def admits(reply: str, goal: str = GOAL, page: Page = PAGE) -> bool:
        matcher = grammar.start(page, goal)
        for id in plain_tokenizer.encode(reply).ids:
            if not matcher.allowed()[id]:
                return False
            matcher.consume([id])
        return matcher.is_complete

    return admits


def test_a_note_is_words_of_the_goal_and_part_of_one_page_line(admits: Admits) -> None:
    for note in (
        "Red Lamp: OFFICE: CODE MIRA45",
        "CODE MIRA45",
        "Red Lamp: Founded | 1241",
        "It [was] built",
    ):
        assert admits(f"read {note}\n{DONE}")
    for note in (
        "Red Lamp: CODE MIRAR45",  # a mixture of two codes
        "Red Tent: Founded | 1241",  # not consecutive words of the goal
        "CODE MIRA45 PETS",  # from two lines
        "CODE MIR",  # part of a word
        "It (was) built",
    ):
        assert not admits(f"read {note}\n{DONE}")
    assert admits("read Founded | 1241\n" * MAX_NOTES + DONE)
    assert not admits("read Founded | 1241\n" * (MAX_NOTES + 1) + DONE)


def test_no_quotation_begins_or_ends_at_the_bar_between_a_key_and_its_value(admits: Admits) -> None:
    page = a_page("code of Valis Kirwener | AE-4992", "Founded | 1241", "a | b | c", "Price |")
    for quoted in ("code of Valis Kirwener", "Kirwener | AE-4992", "Kirwener | AE", "a | b | c"):
        assert admits(f"read {quoted}\n{DONE}", page=page)
    for quoted in ("Kirwener |", "Kirwener | ", "| AE-4992", "AE-4992", "a | b |", "1241"):
        assert not admits(f"read {quoted}\n{DONE}", page=page)


@given(
    st.lists(st.sampled_from(["Founded", "$12", "|", "AE-4992", "in 1241,", "x"]), min_size=1),
    st.data(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_value_can_be_quoted_with_the_words_before_it(
    admits: Admits, words: list[str], data: st.DataObject
) -> None:
    line = " ".join(words)
    starts = [match.start() for match in re.finditer(r"\S+", line) if match[0] != "|"]
    if not starts:
        return
    start = data.draw(st.sampled_from(starts))
    end = re.compile(r"\S+").match(line, start).end()  # type: ignore[union-attr]
    quoted = quote_up_to(line, start, end)
    assert quoted.endswith(line[start:end])
    assert admits(f"read {quoted}\n{DONE}", page=a_page(line))


def test_a_part_of_the_goal_is_quoted_with_the_words_after_it(admits: Admits) -> None:
    for part in (
        "Put the Red Lamp | , the Green Tent,",
        "Red Lamp, the Green Tent | , the Red Chair",
        "into the cart | .",
        "into the cart. |",
    ):
        assert admits(f"for {part}\n{DONE}")
    for part in (
        "Red Lamp, the Red Chair | and last the coupon",  # an item is missing
        "Red Lamp | , the Red Chair",
        "Red Lamp | , the Green",
        "Red Lamp",
        "ed Lamp | , the Green Tent,",
    ):
        assert not admits(f"for {part}\n{DONE}")
    assert not admits(f"for into the cart. |\nfor into the cart. |\n{DONE}")
    assert admits(f"read Founded | 1241\nfor into the cart. |\n{DONE}")
    assert not admits(f"for into the cart. |\nread Founded | 1241\n{DONE}")


def test_an_answer_quotes_the_page_or_a_note_about_part_of_the_goal(
    admits: Admits,
) -> None:
    stop = "\n```stop [{}]```"
    assert admits("from Founded | 1241" + stop.format("1241"))
    notes = "Red Lamp: Founded | 1777; Red Lamp, the Green Tent: MODEL X-1; Founded | 1241"
    assert admits(f"from {notes}" + stop.format("1777, X-1, 1241"))
    assert admits("from Red Lamp: Founded | 1777; Green Tent" + stop.format("1777 Green Tent"))
    assert not admits("from Founded | 1242" + stop.format("1242"))
    assert not admits("from Founded | 1241; Founded | 1242" + stop.format("1241, 1242"))


def test_an_answer_consists_of_the_ends_of_all_quoted_passages_in_order(admits: Admits) -> None:
    def answers(text: str, quotation: str = "Red Lamp: Founded | 1777; Founded | 1241") -> bool:
        return admits(f"from {quotation}\n```stop [{text}]```")

    assert answers("1777, 1241") and answers("Founded | 1777, 1241")
    for text in ("1777", "1241", "1241, 1777", "1777 1241", "1777, 1241, 1241", "777, 1241", ""):
        assert not answers(text)
    assert answers("1777", "Red Lamp: Founded | 1777") and not answers("1241", "Founded | 1777")
    # A semicolon in the goal splits one passage into two, and the first of them is not a note.
    goal = "Read of Red Lamp; Tent on sale; Chair."
    reply = "from Red Lamp: CODE A1; Red Lamp; Tent on sale: CODE B2\n```stop [{}]```"
    assert admits(reply.format("A1, B2"), goal=goal)
    assert not admits(reply.format("A1"), goal=goal)


def test_text_quoted_for_a_field_is_typed_into_that_field(admits: Admits) -> None:
    boxes = [Node("element", "textbox", name, BOX, id=i) for i, name in ((4, "Note"), (5, "Code"))]
    page = Page(PAGE.url, "", (*PAGE.nodes, *boxes))
    begun = "for Red Lamp | , the Green Tent,\nat Code\nfrom OFFICE: CODE MIRA45\n"
    assert admits(f"{begun}```type [5] [MIRA45] [0]```", page=page)
    assert admits(f"{begun}```type [5] [CODE MIRA45] [1]```", page=page)
    for action in ("type [4] [MIRA45] [0]", "type [5] [1241] [0]", "clear [5]", "stop [MIRA45]"):
        assert not admits(f"{begun}```{action}```", page=page)


def test_passages_too_long_to_be_typed_leave_the_text_free(admits: Admits) -> None:
    page = a_page("Founded | 1241")
    many = "; ".join(["Founded | 1241"] * 24)
    assert admits(f"from {many}\n```stop [{', '.join(['1241'] * 24)}]```", page=page)
    assert not admits(f"from {many}\n```stop [1241]```", page=page)
    longer = "; ".join(["Code 12345678901234567"] * 24)
    assert admits(f"from {longer}\n```stop [done]```", page=a_page("Code 12345678901234567"))


def test_with_few_tokens_left_the_text_is_free(
    grammar: Grammar, plain_tokenizer: Tokenizer
) -> None:
    quoted = plain_tokenizer.encode("from Founded | 1241\n").ids
    answer = plain_tokenizer.encode("```stop [9]```").ids

    def is_free(left: int) -> bool:
        matcher = grammar.start(PAGE, GOAL, max_tokens=len(quoted) + left)
        matcher.consume(quoted)
        for id in answer:
            if not matcher.allowed()[id]:
                return False
            matcher.consume([id])
        return matcher.is_complete

    assert is_free(CLOSING_TOKENS + 1) and not is_free(CLOSING_TOKENS + MAX_QUOTED_TEXT)


def test_an_empty_goal_or_page_cannot_be_quoted(admits: Admits) -> None:
    assert admits(f"read Founded | 1241\n{DONE}", goal="")
    assert not admits(f"for the\n{DONE}", goal="")
    assert admits(DONE, goal="", page=a_page())
    assert admits(f"for into | the cart.\n{DONE}", goal="into the cart.", page=a_page())


def test_a_long_passage_of_short_words_can_be_answered_from_any_of_them(admits: Admits) -> None:
    passage = " ".join(["of the"] * 57)  # as long as a quotation may be
    page = a_page(passage)
    for text in (passage, "the", "of the of the"):
        assert admits(f"from {passage}\n```stop [{text}]```", page=page)
    assert not admits(f"from {passage}\n```stop [of]```", page=page)


texts = st.text(max_size=40)
passages = st.lists(
    texts.map(neutralize).filter(lambda text: text.strip("; ")), min_size=1, max_size=5
)


@given(goal=texts, quoted=passages, data=st.data())
def test_the_ends_of_all_passages_match_the_text_pattern(
    goal: str, quoted: list[str], data: st.DataObject
) -> None:
    quoted = [each.replace(";", ",").strip() for each in quoted]
    ends = []
    for passage in quoted:
        begins = [match.start() for match in re.finditer(r"(?<!\w)\S", passage)]
        ends.append(passage[data.draw(st.sampled_from(begins)) :])
    text = ", ".join(ends)
    pattern = text_pattern("; ".join(quoted), goal, max_chars=MAX_QUOTED_TEXT)
    if len(text) <= MAX_QUOTED_TEXT:
        assert pattern is not None and re.fullmatch(pattern, text)


@given(goal=texts, lines=st.lists(texts, max_size=4), data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_words_of_goal_and_page_can_be_quoted(
    admits: Admits, goal: str, lines: list[str], data: st.DataObject
) -> None:
    page = a_page(*lines)
    first = ""
    for line in lines:
        if whole := neutralize(line):
            first = f"read {whole}\n"
    words = list(re.finditer(r"\w+|[^\w\s]", neutralize(goal)))
    if words:
        begin = data.draw(st.integers(0, len(words) - 1))
        end = data.draw(st.integers(begin, len(words) - 1))
        part = neutralize(goal)[words[begin].start() : words[end].end()]
        ahead = " ".join(neutralize(goal)[words[end].end() :].split()[:WORDS_AHEAD])
        first += f"for {part} | {ahead}".rstrip() + "\n"
    assert admits(first + DONE, goal=goal, page=page)


@pytest.mark.parametrize("goal", ["Find it |", "|", "a | b |", "Find it ||", "Find it|"])
def test_a_goal_may_end_in_a_bar(admits: Admits, goal: str) -> None:
    assert admits(DONE, goal=goal)
    word = goal.split()[0].rstrip("|") or "|"
    ahead = " ".join(goal.split()[1:]) if " " in goal else goal.removeprefix(word)
    assert admits(f"for {word} | {ahead}".rstrip() + f"\n{DONE}", goal=goal)


@pytest.mark.parametrize("num_words", [2_000, 100_000])
def test_only_the_beginning_of_a_long_goal_can_be_quoted(admits: Admits, num_words: int) -> None:
    words = [f"word{number}" for number in range(num_words)]
    quoted = f"for {' '.join(words[:3])} | {' '.join(words[3 : 3 + WORDS_AHEAD])}\n{DONE}"
    assert admits(quoted, goal=" ".join(words))
    assert admits(f"read word511: Founded | 1241\n{DONE}", goal=" ".join(words))
    assert not admits(f"read word512: Founded | 1241\n{DONE}", goal=" ".join(words))


def test_only_the_beginning_of_a_long_page_can_be_quoted(admits: Admits) -> None:
    page = a_page(*(f"Line {number} | {number}" for number in range(10_000)))
    assert admits(f"read Line 1000 | 1000\n{DONE}", page=page)
    assert not admits(f"read Line 9999 | 9999\n{DONE}", page=page)
    assert admits(f"read {'a' * 50}\n{DONE}", page=a_page("a" * 50 + " b" * 200_000))
