"""Replies: the element they name, the pages they quote, and the space before typed text."""

import pytest
from tokenizers import Tokenizer

from agentkv.dialog.prompt import PlainTemplate, Thoughts
from agentkv.dialog.reply import find_sources, notes_in, write_reply
from agentkv.models.find import NANO
from agentkv.models.scripted import Solution, resolve
from agentkv_env.actions import Action, extract, parse
from agentkv_env.page import Box, Node, Page

BOX = Box(0, 0, 1, 1)


def a_page(*texts: str) -> Page:
    nodes = [Node("text", "text", text, BOX) for text in texts]
    field = Node("element", "textbox", "Comment", BOX, id=7)
    return Page("http://shop.localhost/", "Shop", (*nodes, field))


def test_typed_text_is_quoted_from_the_latest_page_that_has_it_after_a_key() -> None:
    before = [a_page("Old price | 12"), a_page("MODEL RN-563", "Price | 12"), a_page("12")]
    reply = resolve("type [textbox: Comment] [12] [0]", a_page(), goal="Say it.", before=before)
    assert reply == "at Comment\nfrom Price | 12\n```type [7] [12] [0]```"


def test_text_in_the_goal_is_not_quoted() -> None:
    page = a_page("Model | RN-563")
    reply = resolve("stop [RN-563]", page, goal="Is it rn-563?")
    assert reply == "done\n```stop [RN-563]```"


def test_several_answers_are_quoted_one_by_one() -> None:
    pages = [a_page("Founded | 1220"), a_page("Mayor of Barmouth | Yaren", "10 or 1")]
    reply = resolve("stop [1220, Yaren]", a_page(), before=pages)
    assert reply.startswith("from Founded | 1220; Mayor of Barmouth | Yaren\n")


def test_a_reply_names_the_earlier_pages_that_it_takes_its_text_from() -> None:
    pages = [a_page("Founded | 1220"), a_page("Mayor | Yaren"), a_page("Mayor | Yaren"), a_page()]
    assert find_sources("x\n```stop [1220, Yaren]```", "When?", pages) == (0, 2)
    assert find_sources("x\n```type [7] [Yaren] [0]```", "Who?", pages) == (2,)
    assert find_sources("x\n```type [7] [Yaren] [0]```", "Is it yaren?", pages) == ()
    assert find_sources("x\n```type [7] [Yaren] [0]```", "Who?", pages[:3]) == ()  # on this page
    assert find_sources("x\n```click [7]```", "Who?", pages) == ()
    assert find_sources("x\n```stop [122]```", "When?", pages) == ()


def test_part_of_a_word_or_number_is_not_quoted() -> None:
    page = a_page("Order 4711 | shipped", "Kayak 47115")
    assert resolve("stop [471]", page).startswith("done\n")


def test_a_quotation_has_six_words_before_its_text() -> None:
    page = a_page("one two three four five six seven eight nine ten")
    assert resolve("stop [ten]", page).startswith("from four five six seven eight nine ten\n")


def test_a_solution_quotes_earlier_pages() -> None:
    conversation = Solution(("scroll [down]", "stop [1220]")).begin("When?")
    conversation.reply(a_page("Founded | 1220"))
    assert conversation.reply(a_page()).text == "from Founded | 1220\n```stop [1220]```"


@pytest.mark.parametrize(
    ("reply", "thoughts", "notes"),
    [
        (
            "read Total | 12\nread Tax | 3\nat Pay\n```click [2]```",
            "named",
            "read Total | 12\nread Tax | 3\n",
        ),
        ("at Pay\nread Total | 12\n```click [2]```", "named", ""),
        ("the total is 12\n```click [2]```", "free", "the total is 12\n"),
        ("click [2]", "free", "click [2]"),
    ],
)
def test_notes_are_what_a_reply_begins_with(reply: str, thoughts: Thoughts, notes: str) -> None:
    assert notes_in(reply, thoughts) == notes


def test_a_reply_names_an_unnamed_element_by_its_role() -> None:
    page = Page("http://shop.localhost/", "", (Node("element", "button", "", BOX, id=2),))
    assert write_reply(Action("click", element_id=2), page) == "at button\n```click [2]```"


@pytest.mark.parametrize(
    "reply",
    [
        "at Comment\n```type [7] [RN-563] [0]```",
        "from Price | 12\n```stop [12]```",
        "done\n```stop []```",
        "at Up\n```click [12]```",
    ],
)
def test_decoding_removes_the_space_before_typed_text(reply: str) -> None:
    template = PlainTemplate(Tokenizer.from_file(str(NANO / "tokenizer.json")))
    ids = template.reply(reply)[:-1]
    assert template.decode(ids) == reply
    assert parse(extract(template.decode(ids))) == parse(extract(reply))


def test_copied_text_has_the_same_tokens_as_on_the_page() -> None:
    template = PlainTemplate(Tokenizer.from_file(str(NANO / "tokenizer.json")))
    read = template.encode("Label | RN-563")
    written = template.reply("at Comment\n```type [7] [RN-563] [0]```")
    value = read[-len(template.encode(" RN-563")) :]
    assert any(written[at : at + len(value)] == value for at in range(len(written)))
