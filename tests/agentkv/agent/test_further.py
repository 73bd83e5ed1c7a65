"""Actions beyond VisualWebArena's: when a model is told of them, and what the grammar admits."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from agentkv.dialog.chat import ChatTemplate
from agentkv.dialog.further import describe
from agentkv.dialog.grammar import Grammar
from agentkv.dialog.prompt import PlainTemplate
from agentkv.dialog.reply import write_free_reply
from agentkv.dialog.reply_grammar import reply_grammar
from agentkv_env.actions import FURTHER_KINDS, extract, parse
from agentkv_env.page import Box, Node, Page, Use

BOX = Box(0, 0, 10, 10)


def node(id: int, role: str, *uses: Use, value: str = "", options: tuple[str, ...] = ()) -> Node:
    return Node("element", role, f"N{id}", BOX, id=id, value=value, options=options, uses=uses)


PAGE = Page(
    "http://shop.localhost/",
    "Shop",
    (
        node(1, "textbox", "lines", value="Dear Ann"),
        node(2, "textbox", "lines", "format", value="Dear Bob"),
        node(3, "listbox", "several", options=("Red", "Blue")),
        node(4, "area", "area"),
        node(5, "button", "drag"),
        node(6, "file", "file"),
        node(7, "button", "point"),
        node(8, "button"),
    ),
    uploads=("cat.png", "notes/a.txt"),
)
REPLIES = (
    *("type [1] [one\n\ntwo] [0]", "append [2] [\nBye,\nBob]", "insert [1] [Ann] [dear ]"),
    *("insert [1] [] [here]", "select_text [2] [Dear] [Bob]", "select_text [2]"),
    *("choose [3] [Red] [Blue]", "choose [3] [Blue]", "scroll [down] [4]", "drag [5] [8]"),
    *("upload [6] [notes/a.txt]", "double_click [7] [50%,50%]", "drag [7] [1%,2%] [7] [3%,4%]"),
)
REFUSED = (
    *("append [8] [x]", "choose [3] [Green]", "scroll [down] [8]", "drag [8] [5]"),
    *("upload [6] [/etc/passwd]", "upload [8] [cat.png]", "click [8] [1%,1%]", "wait", "click [4]"),
)


def accepts(
    grammar: Grammar,
    tokenizer: Tokenizer,
    page: Page,
    action: str,
    *,
    line: str = "so",
    names_elements: bool = False,
) -> bool:
    matcher = grammar.start(page, "goal", thoughts="free", names_elements=names_elements)
    for id in tokenizer.encode(f"{line}\n```{action}```").ids:
        if not matcher.allowed()[id]:
            return False
        matcher.consume([id])
    return matcher.is_complete


@pytest.fixture(scope="module")
def grammar(plain_tokenizer: Tokenizer) -> Grammar:
    return Grammar(plain_tokenizer, end_id=3)


@pytest.mark.parametrize("action", REPLIES)
def test_the_grammar_admits_what_a_page_has_a_use_for(
    grammar: Grammar, plain_tokenizer: Tokenizer, action: str
) -> None:
    assert accepts(grammar, plain_tokenizer, PAGE, action)
    assert not accepts(grammar, plain_tokenizer, PAGE.without_uses(), action)
    parsed = parse(extract(f"so\n```{action}```", strict=False), strict=False)
    line = write_free_reply(parsed, PAGE).partition("\n")[0]
    assert accepts(grammar, plain_tokenizer, PAGE, action, line=line, names_elements=True)
    assert not accepts(grammar, plain_tokenizer, PAGE, action, names_elements=True)


@pytest.mark.parametrize("action", REFUSED)
def test_the_grammar_admits_nothing_else(
    grammar: Grammar, plain_tokenizer: Tokenizer, action: str
) -> None:
    assert not accepts(grammar, plain_tokenizer, PAGE, action)


def test_only_what_a_page_has_a_use_for_is_described() -> None:
    assert describe(PAGE.without_uses()) == ""
    assert "[3]" in describe(PAGE) and "notes/a.txt" in describe(PAGE)
    for use, word in (("several", "choose"), ("drag", "drag"), ("area", "scroll")):
        nodes = tuple(each for each in PAGE.nodes if use in each.uses)
        (line,) = describe(replace(PAGE, nodes=nodes)).splitlines()
        assert line.startswith(word)
    assert describe(replace(PAGE, nodes=())).startswith("wait")
    disabled = tuple(replace(each, states=("disabled",)) for each in PAGE.nodes[:3])
    assert describe(replace(PAGE, nodes=disabled)) == ""


def test_a_wait_is_admitted_and_described_where_something_may_still_come(
    grammar: Grammar, plain_tokenizer: Tokenizer
) -> None:
    page = replace(PAGE, may_change=True)
    assert accepts(grammar, plain_tokenizer, page, "wait")
    assert describe(page) == f"{describe(PAGE)}wait lets the page go on until it has changed.\n"
    assert not accepts(grammar, plain_tokenizer, page.without_uses(), "wait")


def test_a_hover_is_described_where_it_shows_more() -> None:
    nodes = (replace(PAGE.nodes[7], states=("hover",)),)
    (line,) = describe(replace(PAGE, nodes=nodes)).splitlines()
    assert line.startswith("hover [number] shows") and "[8]" in line


def test_every_action_in_a_description_is_one_of_the_language() -> None:
    words = {word for line in describe(PAGE).split() for word in [line.strip(".;,")]}
    assert words >= {*FURTHER_KINDS} - {"wait"}


def test_a_page_with_hundreds_of_areas_is_described_in_short() -> None:
    nodes = tuple(node(id, "button", "drag") for id in range(1, 500))
    assert len(describe(replace(PAGE, nodes=nodes))) < 200


def test_chat_models_read_the_description_before_the_page(
    chat_tokenizer: Callable[..., PreTrainedTokenizerFast],
) -> None:
    template = ChatTemplate(chat_tokenizer(None))
    text = template.decode(template.turn("PAGE", "note", "n", actions=describe(PAGE)))
    assert text.index("note") < text.index("choose [number]") < text.index("<page n>")


def test_models_with_the_plain_format_read_and_write_none_of_it(plain_tokenizer: Tokenizer) -> None:
    template = PlainTemplate(plain_tokenizer)
    assert template.turn("PAGE", "note", actions=describe(PAGE)) == template.turn("PAGE", "note")
    assert reply_grammar(PAGE, "goal") == reply_grammar(PAGE.without_uses(), "goal")
