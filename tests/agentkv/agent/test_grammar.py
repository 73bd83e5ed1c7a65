from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from agentkv.dialog.grammar import CLOSING_TOKENS, Grammar, GrammarError, Matcher
from agentkv.dialog.prompt import Thoughts
from agentkv.dialog.reply import names_element, write_free_reply, write_reply
from agentkv.dialog.reply_grammar import reply_grammar
from agentkv.models.local import LocalModel
from agentkv.models.scripted import Solution
from agentkv_env.actions import Action, extract, parse
from agentkv_env.page import Box, Node, Page

VALID = [
    "at Blue Kayak\n```click [3]```",
    "at Red ⟦12⟧ 'Kayak'\n```hover [4]```",
    "at Add to cart\n```click [18]```",
    "at Search\n```type [5] [blue kayak, 2 m] [1]```",
    "at Search\n```clear [5]```",
    "at Sort by\n```type [6] [Name (A-Z)] [0]```",
    "scroll\n```scroll [down]```",
    "press\n```press [Control+a]```",
    "press\n```press [Enter]```",
    "goto\n```goto [http://wiki.localhost/]```",
    "go_back\n```go_back```",
    "done\n```stop [42]```",
    "done\n```stop []```",
]
INVALID = [
    "at Blue Kayak\n```click [12]```",  # a number in the text of the page
    "at Blue Kayak\n```click [4]```",  # the number of another element
    "at Green Kayak\n```click [3]```",
    "at Blue Kayak\n```type [3] [x] [1]```",  # a link takes no text
    "at Sort by\n```type [6] [Colour] [0]```",  # no such option
    "at Search\n```type [5] [] [1]```",
    "at Search\n```type [5] [a]b] [1]```",
    "at Search\n```type [5] [a``b] [1]```",
    "scroll\n```scroll [up]```",  # the page is at its top
    "tab_focus\n```tab_focus [1]```",  # one tab
    "goto\n```goto [javascript:alert(1)]```",
    "goto\n```goto [file:///etc/passwd]```",
    "```click [3]```",
    "at Blue Kayak\n```click [3]``` and more",
]


GOAL = 'Find the kayak, the Blue Kayak, and the "Red" one/two.'


@pytest.fixture(scope="module")
def grammar(plain_tokenizer: Tokenizer) -> Grammar:
    return Grammar(plain_tokenizer, end_id=3)


def accepts(matcher: Matcher, ids: list[int]) -> bool:
    """Return whether `matcher` allows each of `ids` in turn and is then complete."""
    for id in ids:
        if not matcher.allowed()[id]:
            return False
        matcher.consume([id])
    return matcher.is_complete


Admits = Callable[[Page, str], bool]


@pytest.fixture
def admits(grammar: Grammar, plain_tokenizer: Tokenizer) -> Admits:
    """Return a function that tells whether a page allows a reply."""
    return lambda page, reply: accepts(grammar.start(page, GOAL), plain_tokenizer.encode(reply).ids)


@pytest.mark.parametrize("reply", VALID)
def test_every_valid_reply_is_admitted_token_by_token(
    grammar: Grammar, plain_tokenizer: Tokenizer, page: Page, reply: str
) -> None:
    assert accepts(grammar.start(page, GOAL), plain_tokenizer.encode(reply).ids)


@pytest.mark.parametrize("reply", INVALID)
def test_replies_that_the_page_does_not_allow_are_rejected(
    grammar: Grammar, plain_tokenizer: Tokenizer, page: Page, reply: str
) -> None:
    assert not accepts(grammar.start(page, GOAL), plain_tokenizer.encode(reply).ids)


def test_a_free_thought_is_any_one_line_without_backticks(
    grammar: Grammar, plain_tokenizer: Tokenizer, page: Page
) -> None:
    def free(reply: str) -> bool:
        return accepts(
            grammar.start(page, GOAL, thoughts="free"), plain_tokenizer.encode(reply).ids
        )

    assert free("The blue one, since it is cheaper.\n```click [3]```")
    assert not free("The blue one\nsince it is cheaper.\n```click [3]```")
    assert not free("The `blue` one.\n```click [3]```")
    assert not free("x" * 500 + "\n```click [3]```")
    assert not free("The blue one.\n```click [12]```")


def test_a_free_thought_that_names_an_element_allows_no_other(
    grammar: Grammar, plain_tokenizer: Tokenizer
) -> None:
    box = Box(0, 0, 1, 1)
    nodes = (
        Node("element", "link", 'Hôtel 🚢 "Nord"', box, id=1),
        Node("element", "link", 'Hôtel 🚢 "Nord"', box, id=2),
        Node("element", "button", 'Hôtel 🚢 "Nord"', box, id=3),
        Node("element", "textbox", "", box, id=4, uses=("lines",)),
        Node("element", "img", "Map", box, id=5, uses=("drag",)),
        Node("text", "text", "button Elsewhere", box),
    )
    page = Page("http://a.localhost/", "", nodes)

    def free(reply: str) -> bool:
        matcher = grammar.start(page, GOAL, thoughts="free")
        return accepts(matcher, plain_tokenizer.encode(reply).ids)

    name = 'Hôtel 🚢 "Nord"'
    for number, allowed in ((1, True), (2, True), (3, False), (4, False)):
        assert free(f"'{name}' link\n```click [{number}]```") == allowed
    assert free(f"'{name}' button\n```hover [3]```")
    assert not free(f"'{name}' button\n```hover [1]```")
    assert free("'' textbox\n```type [4] [two\nlines] [0]```")
    assert not free("'' textbox\n```click [1]```")
    assert free("'Map' img\n```drag [5] [1]```")  # only what it begins with is named
    assert not free("'Map' link\n```drag [4] [1]```")
    for line in (f"'{name}' link", f"'{name}' button"):
        assert free(f"{line}\n```go_back```")
        assert free(f"{line}\n```stop [done]```")
    # a line that is no name and role, or those of no element, says nothing about numbers
    for line in (name, f"the '{name}' link", "'Elsewhere' button", "'Harbour' link", ""):
        assert free(f"{line}\n```click [3]```")


def test_the_number_of_the_only_element_that_is_named_is_forced(
    grammar: Grammar, plain_tokenizer: Tokenizer, page: Page
) -> None:
    matcher = grammar.start(page, GOAL, thoughts="free")
    matcher.consume(plain_tokenizer.encode("'Blue Kayak' link\n```click [").ids)
    assert plain_tokenizer.decode(matcher.forced()).startswith("3]")


def test_a_thought_that_names_an_element_closes_before_the_limit(
    grammar: Grammar, plain_tokenizer: Tokenizer, page: Page
) -> None:
    ids = plain_tokenizer.encode("'Blue Kayak' link\n```").ids
    matcher = grammar.start(page, GOAL, thoughts="free", max_tokens=len(ids) + 2)
    matcher.consume(ids)
    assert not accepts(matcher, plain_tokenizer.encode("click [4]```").ids)


def test_a_line_that_has_to_name_what_is_acted_on_names_nothing_else(
    grammar: Grammar, plain_tokenizer: Tokenizer, page: Page
) -> None:
    def admits(reply: str) -> bool:
        matcher = grammar.start(page, GOAL, thoughts="free", names_elements=True)
        return accepts(matcher, plain_tokenizer.encode(reply).ids)

    for text in VALID:
        action = parse(extract(text, strict=False), strict=False)
        assert admits(write_free_reply(action, page)), text
    assert admits("blue kayak 12 m\n```stop [12 m]```")  # any other line is a quotation
    assert not admits("The blue one.\n```click [3]```")
    assert not admits("'Green Kayak' link\n```click [3]```")
    assert not admits("'Blue Kayak' button\n```click [3]```")
    assert not admits("'Blue Kayak' link\n```click [18]```")
    assert not admits("'Blue Kayak' link\n```stop [12 m]```")
    assert not admits("'Green Kayak' link\n```stop [12 m]```")
    assert not admits("scroll\n```go_back```")
    assert not admits("go_back\n```stop []```")
    assert not admits("wait\n```wait```")


def test_lines_stay_free_on_a_page_with_too_many_elements(
    grammar: Grammar, plain_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentkv.dialog.reply_grammar.MAX_ELEMENT_CHARS", 100)
    matcher = grammar.start(page_of(9, "link"), GOAL, thoughts="free", names_elements=True)
    assert accepts(matcher, plain_tokenizer.encode("The last one.\n```click [8]```").ids)


def test_names_of_every_kind_can_be_written(grammar: Grammar, plain_tokenizer: Tokenizer) -> None:
    box = Box(0, 0, 1, 1)
    names = ("a/b", "C:\\new", "Hôtel 🚢 [1] 'x' \"y\"", "", "x" * 500, "two\nlines", "(.*)|^$?")
    nodes = [Node("element", "link", name, box, id=i) for i, name in enumerate((*names, "a/b"))]
    nodes.append(Node("element", "tab", "le", box, id=20))
    page = Page("http://a.localhost/", "", tuple(nodes))

    def admits(reply: str) -> bool:
        matcher = grammar.start(page, GOAL, thoughts="free", names_elements=True)
        return accepts(matcher, plain_tokenizer.encode(reply).ids)

    for node in nodes:
        reply = write_free_reply(Action("click", element_id=node.id), page)
        assert names_element(reply, page) and admits(reply) and admits(f" {reply}")
        assert not admits(reply.replace(f"[{node.id}]", "[21]"))
    assert admits("'a/b' link\n```click [0]```") and admits("'a/b' link\n```click [7]```")
    for line in ("link a/b", "tab", "4 m", "done", 'the "x"'):
        assert admits(f"{line}\n```stop [x]```")
    for line in ("'a/b' link", "'B' link", "'", " 'a", "  'a'", " go_back", ""):
        assert not admits(f"{line}\n```stop [x]```")
    quoted = write_free_reply(Action("stop", answer="2"), page, quote="'the 2")
    assert quoted == "done\n```stop [2]```" and admits(quoted)


@pytest.mark.parametrize("names_elements", [False, True])
def test_a_page_without_elements_admits_an_action_and_no_empty_one(
    grammar: Grammar, plain_tokenizer: Tokenizer, names_elements: bool
) -> None:
    page = Page("http://a.localhost/", "", (Node("text", "text", "Gone.", Box(0, 0, 1, 1)),))

    def admits(reply: str) -> bool:
        matcher = grammar.start(page, GOAL, thoughts="free", names_elements=names_elements)
        return accepts(matcher, plain_tokenizer.encode(reply).ids)

    assert admits("go_back\n```go_back```") and admits("Gone.\n```stop [Gone.]```")
    assert not admits("go_back\n``````") and not admits("Gone.\n``````")


def test_a_model_whose_adapter_names_elements_names_one_before_it_acts(
    tiny_chat_model: LocalModel, page: Page
) -> None:
    model = replace(tiny_chat_model, names_elements=True)
    for seed in range(6):
        acting = model.with_cache("full", temperature=1.0, max_new_tokens=200)
        text = acting.begin(GOAL, seed=seed).reply(page).text
        assert names_element(text, page), text


def test_a_complete_reply_may_only_end(
    grammar: Grammar, plain_tokenizer: Tokenizer, page: Page
) -> None:
    matcher = grammar.start(page, GOAL)
    matcher.consume(plain_tokenizer.encode(VALID[0]).ids)
    assert matcher.is_complete
    assert matcher.allowed().nonzero().flatten().tolist() == [3]


def test_tokens_without_an_alternative_are_forced(
    grammar: Grammar, plain_tokenizer: Tokenizer, page: Page
) -> None:
    matcher = grammar.start(page, GOAL)
    matcher.consume(plain_tokenizer.encode("at B").ids)
    forced = matcher.forced()
    matcher.consume(forced)
    assert plain_tokenizer.decode(forced).startswith("lue Kayak\n``")


def test_a_quotation_may_precede_only_typed_text_and_answers(admits: Admits, page: Page) -> None:
    assert admits(page, "at Search\nfrom Blue Kayak\n```type [5] [Kayak] [1]```")
    assert admits(page, "from Blue Kayak\n```stop [Blue Kayak]```")
    assert not admits(page, "at Blue Kayak\nfrom Blue Kayak\n```click [3]```")
    assert not admits(page, "at Sort by\nfrom Blue Kayak\n```type [6] [Price] [0]```")
    assert not admits(page, "from [3]\n```stop [12]```")


def test_strings_close_at_once_when_few_tokens_are_left(
    grammar: Grammar, plain_tokenizer: Tokenizer, page: Page
) -> None:
    matcher = grammar.start(page, GOAL, max_tokens=CLOSING_TOKENS)
    matcher.consume(plain_tokenizer.encode("done\n```stop [a").ids)
    closing = matcher.allowed().nonzero().flatten().tolist()
    assert closing and all(plain_tokenizer.decode([id]).startswith("]") for id in closing)


def test_scrolling_is_allowed_only_towards_more_of_the_page(admits: Admits) -> None:
    def directions(above: int, below: int) -> list[str]:
        page = Page("http://a.localhost/", "", (), pixels_above=above, pixels_below=below)
        replies = {name: f"scroll\n```scroll [{name}]```" for name in ("up", "down")}
        return [name for name, reply in replies.items() if admits(page, reply)]

    assert [directions(0, 0), directions(9, 0), directions(0, 9), directions(9, 9)] == [
        [],
        ["up"],
        ["down"],
        ["up", "down"],
    ]


def test_unreachable_elements_allow_only_hovering(admits: Admits) -> None:
    box = Box(0, 0, 1, 1)
    nodes = (
        Node("element", "button", "Buy", box, id=1, states=("disabled",)),
        Node("element", "textbox", "Code", box, id=2, states=("readonly",)),
    )
    page = Page("http://a.localhost/", "", nodes)
    assert admits(page, "at Buy\n```hover [1]```")
    assert not admits(page, "at Buy\n```click [1]```")
    assert admits(page, "at Code\n```click [2]```")
    assert not admits(page, "at Code\n```type [2] [x] [1]```")


def test_tab_actions_need_several_tabs(admits: Admits) -> None:
    page = Page("http://a.localhost/", "", (), tabs=("A", "B"))
    assert admits(page, "tab_focus\n```tab_focus [1]```")
    assert not admits(page, "tab_focus\n```tab_focus [2]```")
    assert admits(page, "close_tab\n```close_tab```")


names = st.text(max_size=30)
roles = st.sampled_from(["link", "button", "textbox", "combobox", "checkbox"])


@given(st.lists(st.tuples(roles, names), min_size=1, max_size=12), st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_click_on_any_element_is_admitted_whatever_its_name(
    admits: Admits, elements: list[tuple[str, str]], data: st.DataObject
) -> None:
    box = Box(0, 0, 1, 1)
    nodes = tuple(
        Node("element", role, name, box, id=id) for id, (role, name) in enumerate(elements)
    )
    page = Page("http://a.localhost/", "", nodes)
    node = data.draw(st.sampled_from(nodes))
    reply = write_reply(Action("click", element_id=node.id), page)
    assert admits(page, reply)
    assert parse(extract(reply)) == Action("click", element_id=node.id)


def test_the_grammar_admits_the_replies_of_a_solution(admits: Admits, page: Page) -> None:
    steps = ["click [button: Add to cart #2]", "type [textbox: Search] [red] [1]", "stop [yes]"]
    conversation = Solution(steps).begin("goal")
    for _ in steps:
        assert admits(page, conversation.reply(page).text)


def page_of(num: int, role: str) -> Page:
    box = Box(0, 0, 1, 1)
    nodes = (Node("element", role, f"Item {id} of the list", box, id=id) for id in range(num))
    return Page("http://a.localhost/", "", tuple(nodes))


@pytest.mark.parametrize("thoughts", ["named", "free"])
def test_all_of_ten_thousand_elements_allow_actions(
    grammar: Grammar, plain_tokenizer: Tokenizer, thoughts: Thoughts
) -> None:
    page = page_of(10_000, "textbox")

    def admits(reply: str) -> bool:
        matcher = grammar.start(page, GOAL, thoughts=thoughts)
        return accepts(matcher, plain_tokenizer.encode(reply).ids)

    assert admits("at Item 9999 of the list\n```type [9999] [blue] [1]```")
    assert not admits("at Item 9 of the list\n```click [10000]```")
    if thoughts == "named":
        assert not admits("at Item 9 of the list\n```click [8]```")


def test_elements_beyond_the_size_limit_allow_actions_by_number(
    admits: Admits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentkv.dialog.reply_grammar.MAX_ELEMENT_CHARS", 0)
    box = Box(0, 0, 1, 1)
    beyond = (
        Node("element", "button", "Buy", box, id=10_001, states=("disabled",)),
        Node("element", "combobox", "Sort", box, id=10_002, options=("Price",)),
        Node("element", "textbox", "Code", box, id=10_003),
    )
    page = Page("http://a.localhost/", "", beyond)
    for reply in ("hover [10001]", "click [10002]", "clear [10003]", "type [10003] [x] [0]"):
        assert admits(page, f"at Something\n```{reply}```")
    for reply in ("click [10001]", "type [10002] [Price] [0]", "clear [10002]"):
        assert not admits(page, f"at Something\n```{reply}```")


def test_a_list_takes_its_options_only(admits: Admits) -> None:
    countries = Node(
        "element", "listbox", "Countries", Box(0, 0, 1, 1), id=7, options=("Japan", "Nauru")
    )
    page = Page("http://a.localhost/", "", (countries,))
    assert admits(page, "at Countries\n```type [7] [Nauru] [0]```")
    assert not admits(page, "at Countries\n```type [7] [Malta] [0]```")
    assert not admits(page, "at Countries\n```clear [7]```")


def test_a_grammar_names_two_thousand_elements() -> None:
    assert "at Item 1999 of the list" in reply_grammar(page_of(2_000, "link"), GOAL).replace(
        "\\", ""
    )


def test_a_grammar_that_llguidance_rejects_is_a_grammar_error(grammar: Grammar) -> None:
    with pytest.raises(GrammarError, match="the grammar of the reply failed"):
        Matcher(grammar._tokenizer, "start: NOTHING", None, grammar._closing, max_tokens=None)
