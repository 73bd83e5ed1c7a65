"""Strict and lenient parsing of actions, and rendering."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv_env.actions import KINDS, Action, ActionError, extract, parse, render
from agentkv_env.keys import normalize

numbers = st.integers(min_value=0, max_value=10**6)
words = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1, max_size=40)
addresses = st.text(string.ascii_letters + string.digits + ":/.?=&%", min_size=1)
said = st.one_of(
    st.builds(Action, st.sampled_from(["click", "hover", "clear"]), element_id=numbers),
    st.builds(Action, st.just("type"), element_id=numbers, text=words, enter=st.booleans()),
    st.builds(Action, st.just("press"), key=st.sampled_from(["Enter", "Control+a", "Shift+Tab"])),
    st.builds(Action, st.just("scroll"), direction=st.sampled_from(["up", "down"])),
    st.builds(Action, st.just("tab_focus"), tab=st.integers(0, 99)),
    st.builds(Action, st.just("goto"), url=addresses),
    st.builds(Action, st.sampled_from(["new_tab", "close_tab", "go_back", "go_forward"])),
    st.builds(Action, st.just("stop"), answer=words | st.just("")),
)


@given(said)
def test_what_is_rendered_reads_back_strictly_and_leniently(action: Action) -> None:
    assert parse(render(action)) == action
    assert parse(render(action), strict=False) == action


@given(st.text(max_size=60) | st.text("[]()` 01ab\n" + "clik", max_size=30).map("click [".__add__))
def test_any_text_is_an_action_or_an_action_error(text: str) -> None:
    for strict in (True, False):
        try:
            action = parse(text, strict=strict)
        except ActionError:
            continue
        assert action.kind in KINDS
        if action.text.strip() or action.kind != "type":
            assert parse(render(action), strict=False).kind == action.kind


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("click [12]", Action("click", element_id=12)),
        ("click[12]", Action("click", element_id=12)),
        ("click [12] where the cart is", Action("click", element_id=12)),
        ("  hover [0]\n", Action("hover", element_id=0)),
        ("type [5] [blue kayak]", Action("type", element_id=5, text="blue kayak")),
        ("type [5] [blue] [0]", Action("type", element_id=5, text="blue", enter=False)),
        ("type [5] [foo] [2]", Action("type", element_id=5, text="foo] [2")),
        ("type [5] [a [b] c] [1]", Action("type", element_id=5, text="a [b] c")),
        (
            "type [5] [foo] [press_enter_after=0]",
            Action("type", element_id=5, text="foo] [press_enter_after=0"),
        ),
        ("press [Control+v]", Action("press", key="Control+v")),
        ("press [Ctrl+v]", Action("press", key="Ctrl+v")),
        ("scroll [down]", Action("scroll", direction="down")),
        ("scroll up", Action("scroll", direction="up")),
        ("tab_focus [2]", Action("tab_focus", tab=2)),
        ("goto [http://a.b/c?d=[1]]", Action("goto", url="http://a.b/c?d=[1]")),
        ("go_back", Action("go_back")),
        ("stop [a] b", Action("stop", answer="a")),
        ("stop [a] [b]", Action("stop", answer="a] [b")),
        ("stop", Action("stop")),
        ("stop []", Action("stop")),
        ("stop words", Action("stop")),
        ("stop [two\nlines]", Action("stop")),
    ],
)
def test_strict_reads_what_visualwebarena_reads(text: str, action: Action) -> None:
    assert parse(text) == action


@pytest.mark.parametrize(
    "text",
    [
        *("Click [1]", "I will click [3]", "click 12", "click [A1]", "new_tab()", "page_close"),
        *("noop", "none", "N/A", "", "type [5] [1]", "type [5] []", "type [5] [foo]  [1]"),
        *("type [5] [two\nlines]", "scroll [direction=down]", "goto example.com", "press Enter"),
        *("tab_focus 1", "upload [1] [file]"),
    ],
)
def test_strict_refuses_what_visualwebarena_refuses(text: str) -> None:
    with pytest.raises(ActionError):
        parse(text)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("Click [1]", Action("click", element_id=1)),
        ("I will click [3]", Action("click", element_id=3)),
        ("click 12", Action("click", element_id=12)),
        ("click (12)", Action("click", element_id=12)),
        ("click [id=12]", Action("click", element_id=12)),
        ("new_tab()", Action("new_tab")),
        ("page_close", Action("close_tab")),
        ("type [5] [1]", Action("type", element_id=5, text="1")),
        ("type [5] []", Action("type", element_id=5)),
        ("type [5] [foo]  [0]", Action("type", element_id=5, text="foo", enter=False)),
        ("type [5] [two\nlines]", Action("type", element_id=5, text="two lines")),
        (
            "type [5] [foo] [press_enter_after=0]",
            Action("type", element_id=5, text="foo", enter=False),
        ),
        ('type 5 "blue kayak"', Action("type", element_id=5, text="blue kayak")),
        ("scroll [direction=down]", Action("scroll", direction="down")),
        ("goto example.com", Action("goto", url="example.com")),
        ("press Enter", Action("press", key="Enter")),
        ("press [ctrl + V]", Action("press", key="Control+v")),
        ("press [arrowleft]", Action("press", key="ArrowLeft")),
        ("tab_focus 1", Action("tab_focus", tab=1)),
        ("go back", Action("go_back")),
        ("stop words", Action("stop", answer="words")),
        ("stop [two\nlines]", Action("stop", answer="two lines")),
        ("Action: stop [42]", Action("stop", answer="42")),
    ],
)
def test_lenient_reads_what_was_meant(text: str, action: Action) -> None:
    assert parse(text, strict=False) == action


@pytest.mark.parametrize("text", ["", "noop", "none", "N/A", "click", "scroll", "press []", "goto"])
def test_lenient_refuses_what_means_nothing(text: str) -> None:
    with pytest.raises(ActionError):
        parse(text, strict=False)


def test_the_action_is_the_first_fenced_text_of_a_reply() -> None:
    reply = "link Blue Kayak\n``` click [12] ``` and then ```click [13]```"
    assert extract(reply) == "click [12]"


def test_a_language_tag_is_part_of_the_action_only_when_strict() -> None:
    reply = "```text\nclick [12]\n```"
    with pytest.raises(ActionError):
        parse(extract(reply))
    assert extract(reply, strict=False) == "click [12]"


@pytest.mark.parametrize("reply", ["done\nclick [12]", "so ```click [12]", "`click [12]`"])
def test_a_missing_fence_is_mended_only_when_lenient(reply: str) -> None:
    with pytest.raises(ActionError):
        extract(reply)
    assert extract(reply, strict=False) == "click [12]"


def test_a_reply_without_any_action_is_an_error_in_both_readings() -> None:
    for strict in (True, False):
        with pytest.raises(ActionError):
            extract("I am not sure what to do here.", strict=strict)


def test_key_names_are_those_the_keyboard_knows() -> None:
    assert normalize("cmd+shift+p") == "Meta+Shift+p"
    assert normalize("ctrl++") == "Control++"
    assert normalize("a") == "a"
    assert normalize("ctrl+v", strict=True) == "ctrl+v"
    assert normalize("arrowdown", strict=True) == "ArrowDown"


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("text", ["click [{}]", "tab_focus [{}]", "type [{}] [a] [1]"])
def test_a_number_of_thousands_of_digits_is_no_action(text: str, strict: bool) -> None:
    with pytest.raises(ActionError, match="number of 5000 digits"):
        parse(text.format("1" * 5000), strict=strict)


def test_an_error_quotes_no_more_than_the_beginning_of_a_text() -> None:
    with pytest.raises(ActionError) as error:
        parse("type [" + "a" * 5000)
    assert len(str(error.value)) < 200
