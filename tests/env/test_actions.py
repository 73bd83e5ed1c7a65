"""Strict and lenient parsing of actions, and rendering."""

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv_env.actions import (
    FORMS,
    FURTHER_KINDS,
    KINDS,
    Action,
    ActionError,
    Point,
    extract,
    parse,
    render,
)
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
lines = st.text(
    st.characters(exclude_categories=("Cc", "Cs"), include_characters="\n"), min_size=1, max_size=60
)
labels = st.text(
    st.characters(exclude_categories=("Cc", "Cs")) | st.sampled_from("[] ,"), max_size=20
).filter(lambda text: not re.search(r"\]\s*,?\s*\[", text))
named = labels.filter(bool)
points = st.none() | st.builds(
    Point, st.integers(-999, 9999), st.integers(-999, 9999), st.sampled_from(["px", "%"])
)
further = st.one_of(
    st.builds(Action, st.just("type"), element_id=numbers, text=lines, enter=st.booleans()),
    st.builds(Action, st.just("append"), element_id=numbers, text=lines),
    st.builds(Action, st.just("insert"), element_id=numbers, text=lines, before=labels),
    st.builds(Action, st.just("select_text"), element_id=numbers),
    st.builds(Action, st.just("select_text"), element_id=numbers, text=named, last=labels),
    st.builds(Action, st.just("select_text"), text=named, last=labels),
    st.builds(
        Action, st.just("choose"), element_id=numbers, items=st.lists(named, max_size=3).map(tuple)
    ),
    st.builds(
        Action,
        st.just("upload"),
        element_id=numbers,
        items=st.lists(named, min_size=1, max_size=2).map(tuple),
    ),
    st.builds(
        Action,
        st.sampled_from(["click", "hover", "double_click", "right_click"]),
        element_id=numbers,
        point=points,
    ),
    st.builds(
        Action,
        st.just("drag"),
        element_id=numbers,
        point=points,
        target_id=numbers,
        target_point=points,
    ),
    st.builds(
        Action,
        st.just("scroll"),
        direction=st.sampled_from(["up", "down", "left", "right"]),
        element_id=st.none() | numbers,
    ),
    st.just(Action("wait")),
)


@given(further)
def test_actions_beyond_visualwebarena_read_back_leniently(action: Action) -> None:
    assert parse(render(action), strict=False) == action
    assert parse(extract(f"done ```{render(action)}```", strict=False), strict=False) == action


@pytest.mark.parametrize("kind", FURTHER_KINDS)
def test_strict_knows_no_action_beyond_visualwebarena(kind: str) -> None:
    form = FORMS[kind]
    assert parse(form, strict=False).kind == kind
    with pytest.raises(ActionError, match="unknown action") as error:
        parse(form)
    assert not any(each in str(error.value).partition("known: ")[2] for each in FURTHER_KINDS)


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
        ("type [5] [two\r\nlines]", Action("type", element_id=5, text="two\nlines")),
        ("append [5] [one\ttwo\n]", Action("append", element_id=5, text="one two\n")),
        ("insert [5] [at the cursor]", Action("insert", element_id=5, text="at the cursor")),
        ("insert [5] [] [a [b]]", Action("insert", element_id=5, text="a [b]")),
        ("insert [5] [end] [a] [b]", Action("insert", element_id=5, before="end", text="a] [b")),
        ("select text [5]", Action("select_text", element_id=5)),
        (
            "select_text [from here] [to there]",
            Action("select_text", text="from here", last="to there"),
        ),
        (
            "choose [7] [[none]] [Red [2]]",
            Action("choose", element_id=7, items=("[none]", "Red [2]")),
        ),
        ("choose [7] [Red],  [Blue]", Action("choose", element_id=7, items=("Red", "Blue"))),
        ("choose [7] []", Action("choose", element_id=7)),
        ("select [7] [Red]", Action("type", element_id=7, text="Red")),
        ("click [12] [30%, 40%]", Action("click", element_id=12, point=Point(30, 40, "%"))),
        ("click [12] (15.5px, 20px)", Action("click", element_id=12, point=Point(15, 20))),
        ("click [12] [1]", Action("click", element_id=12)),
        ("dblclick [12]", Action("double_click", element_id=12)),
        ("drag [12] to [15]", Action("drag", element_id=12, target_id=15)),
        (
            "drag [12] [1,2] [5%,6%]",
            Action(
                "drag",
                element_id=12,
                point=Point(1, 2),
                target_id=12,
                target_point=Point(5, 6, "%"),
            ),
        ),
        ("scroll [down] [12]", Action("scroll", direction="down", element_id=12)),
        ("scroll down", Action("scroll", direction="down")),
        ("wait", Action("wait")),
        ("wait()", Action("wait")),
        ("wait [3]", Action("wait")),
        ("Wait, I should click [3]", Action("click", element_id=3)),
        ("Insert the coin: click [3]", Action("click", element_id=3)),
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
        ("type [5] [x⟦0⟧ = y[i]]", Action("type", element_id=5, text="x[0] = y[i]")),
        ("stop [see ⟦12⟧]", Action("stop", answer="see [12]")),
    ],
)
def test_lenient_reads_what_was_meant(text: str, action: Action) -> None:
    assert parse(text, strict=False) == action


@pytest.mark.parametrize(
    "text",
    [
        *("", "noop", "none", "N/A", "click", "scroll", "press []", "goto", "append [3]"),
        *("insert [3] [x] []", "choose [3]", "upload [3]", "upload [3] []", "drag [3]", "drag"),
        *("click [12] [150000,2]", "drag [1] [a,2] [3] [1%,x]", "click [12] [30%,]"),
        "I upload [3] nothing, click [4]",
    ],
)
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
