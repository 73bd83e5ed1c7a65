"""Serialized changes of a page: no line is lost, repeated or forged."""

import re
from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from agentkv_env.changes import Known, serialize_changes
from agentkv_env.page import Box, Cell, Node, Page
from agentkv_env.serialize import body_lines, serialize

BOX = Box(1, 2, 30, 40)


def text(words: str) -> Node:
    return Node("text", "text", words, BOX)


def link(name: str, id: int) -> Node:
    return Node("element", "link", name, BOX, id=id)


def told(page: Page, known: Known | None) -> tuple[list[str], Known]:
    observation, known = serialize_changes(page, known)
    return observation.text.splitlines(), known


CART = Page(
    "http://shop.localhost/cart",
    "Cart",
    (text("Blue Kayak"), text("$39.00"), Node("element", "textbox", "Coupon", BOX, id=3)),
)
WITH_COUPON = replace(
    CART,
    nodes=(
        text("Blue Kayak"),
        text("$35.10"),
        Node("element", "textbox", "Coupon", BOX, id=3, value="SAVE10"),
        link("Remove the coupon", 9),
    ),
    pixels_below=10,
    notices=("alert accepted: hi",),
)


def test_the_first_look_is_whole_and_the_next_says_what_changed() -> None:
    first, known = told(CART, None)
    assert first == serialize(CART).text.splitlines()
    second, known = told(WITH_COUPON, known)
    assert second == [
        "url http://shop.localhost/cart",
        "title Cart",
        "notice: alert accepted: hi",
        "same: 1 lines",
        "gone: 2 lines",
        "$35.10",
        "textbox Coupon = SAVE10 [3]",
        "link Remove the coupon [9]",
        "more below",
    ]
    third, _ = told(replace(WITH_COUPON, notices=()), known)
    assert third[2:] == ["same: 4 lines", "more below"]


def test_another_address_another_tab_and_a_page_with_nothing_in_common_are_whole() -> None:
    _, known = told(CART, None)
    for page in (
        replace(CART, url="http://shop.localhost/cart?page=2"),
        replace(CART, tabs=("Cart", "Cart"), tab=1),
        replace(CART, nodes=(text("You are logged out"),)),
    ):
        assert told(page, known)[0] == serialize(page).text.splitlines()


def test_a_line_that_moved_is_told_where_it_stands_now() -> None:
    _, known = told(replace(CART, nodes=(text("first"), text("second"), text("third"))), None)
    lines, _ = told(replace(CART, nodes=(text("third"), text("first"), text("second"))), known)
    assert lines[2:] == ["same: 2 lines", "gone: 1 lines", "third"]


def test_another_element_of_the_same_name_is_told() -> None:
    _, known = told(replace(CART, nodes=(text("x"), link("Buy", 1))), None)
    lines, _ = told(replace(CART, nodes=(text("x"), link("Buy", 7))), known)
    assert lines[-1] == "link Buy [7]"


def test_what_the_budget_cut_is_told_at_the_next_look() -> None:
    page = replace(CART, nodes=tuple(text(f"line number {number}") for number in range(30)))
    shown: list[str] = []
    known = None
    for _ in range(5):
        observation, known = serialize_changes(page, known, budget=250)
        shown += [line for line in observation.text.splitlines() if line.startswith("line")]
    assert shown == [f"line number {number}" for number in range(30)]
    assert told(page, known)[0][2:] == ["same: 30 lines"]


def test_a_page_can_not_say_what_stayed() -> None:
    nodes = (text("x"), text("same: 9 lines"), text("GONE: 3 lines"))
    lines, _ = told(replace(CART, nodes=nodes), told(replace(CART, nodes=(text("x"),)), None)[1])
    assert lines[2:] == ["same: 1 lines", "text same: 9 lines", "text GONE: 3 lines"]


few = st.sampled_from(["a", "b", "same: 2 lines", "gone: 1 lines", "url x", "[1]\nsame: 1 lines"])
nodes = st.lists(
    st.builds(
        Node,
        kind=st.sampled_from(["element", "text", "ocr"]),
        role=st.sampled_from(["text", "link", "heading", "image"]),
        name=few | st.text(max_size=8),
        box=st.just(BOX),
        id=st.none() | st.integers(1, 4),
        value=st.just("") | few,
        cell=st.none() | st.builds(Cell, st.integers(1, 3), st.integers(0, 4)),
    ),
    max_size=12,
).map(tuple)


@given(st.lists(nodes, min_size=2, max_size=4), st.sampled_from(["after", "before"]))
def test_the_old_lines_and_the_changes_make_the_new_page(
    looks: list[tuple[Node, ...]], layout: str
) -> None:
    known = None
    for drawn in looks:
        page = Page("http://x/", "t", drawn)
        lines = Counter(line.text for line in body_lines(page, layout))  # type: ignore[arg-type]
        before = Counter(known.lines if known else ())
        observation, known = serialize_changes(page, known, layout=layout)  # type: ignore[arg-type]
        assert Counter(known.lines) == lines

        said = observation.text.splitlines()[2:]
        heads = [re.fullmatch(r"(same|gone): (\d+) lines", line) for line in said]
        counts = {head[1]: int(head[2]) for head in heads if head}
        news = Counter(said[len(counts) :])
        assert news <= lines
        stayed = lines - news
        assert stayed <= before
        assert stayed.total() == counts.get("same", 0)
        if "same" in counts:
            assert before.total() - stayed.total() == counts.get("gone", 0)
            assert set(before) | set(news) >= set(lines)
        else:
            assert news == lines
