"""Variants of recordings have other texts in the same places, and every reply still fits."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.dialog.prompt import Thoughts
from agentkv.dialog.reply import names_element, rewritten
from agentkv.recordings import RecordedStep, Recording
from agentkv_env.actions import Action, extract, parse
from agentkv_env.page import Box, Cell, Node, Page
from agentkv_tasks.train.variants import variants

TICKETS = ("Laptop does not charge", "Mailbox is full", "Screen flickers")
BOX = Box(0, 0, 9, 9)
LIST = Page(
    "http://desk.localhost/",
    "Open tickets",
    (
        Node("text", "heading", "Open tickets", BOX),
        *(Node("element", "link", name, BOX, id=n) for n, name in enumerate(TICKETS, start=1)),
    ),
)
TICKET = Page(
    "http://desk.localhost/ticket/2",
    TICKETS[1],
    (
        Node("text", "heading", TICKETS[1], BOX),
        Node("text", "text", "Reported by Rosa Lindner, extension 4156", BOX),
        Node("element", "combobox", "Member", BOX, id=1, options=("Anna", "Ben", "Carla")),
        Node("element", "button", "Assign", BOX, id=2),
        Node("element", "button", "Close", BOX, id=3),
    ),
)


def recording(goal: str, *steps: tuple[Page, str]) -> Recording:
    return Recording("one", goal, tuple(RecordedStep(*step) for step in steps))


ASSIGN = recording(
    'Assign the ticket "Mailbox is full" to Ben.',
    (LIST, "at Mailbox is full\n```click [2]```"),
    (TICKET, "at Member\n```type [1] [Ben] [0]```"),
    (TICKET, "at Assign\n```click [2]```"),
    (TICKET, "done\n```stop []```"),
)
ANSWER = recording(
    'Which extension has the person who reported "Mailbox is full"?',
    (LIST, "at Mailbox is full\n```click [2]```"),
    (TICKET, "from Reported by Rosa Lindner, extension 4156\n```stop [4156]```"),
)


def page(*nodes: Node) -> Page:
    return Page("http://desk.localhost/other", "Other", nodes)


def text(name: str) -> Node:
    return Node("text", "text", name, BOX)


def free(recording: Recording) -> Recording:
    """Return a recording with replies as chat models write them."""
    pages = [step.page for step in recording.steps]
    steps = tuple(
        replace(
            step, reply=rewritten(step.reply, "free", goal=recording.goal, pages=pages[: n + 1])
        )
        for n, step in enumerate(recording.steps)
    )
    return replace(recording, steps=steps, thoughts="free")


def made(whole: Recording, count: int = 20, seed: int = 0) -> list[Recording]:
    return list(variants(whole, count, seed=seed))


def actions(recording: Recording) -> list[Action]:
    return [parse(extract(step.reply), strict=False) for step in recording.steps]


@pytest.mark.parametrize("thoughts", ["named", "free"])
@given(seed=st.integers(0, 999))
def test_every_reply_fits_its_page_and_its_goal(thoughts: Thoughts, seed: int) -> None:
    for whole in (ASSIGN, ANSWER):
        found = made(free(whole) if thoughts == "free" else whole, 6, seed)
        assert found
        for other in found:
            pages = [step.page for step in other.steps]
            for number, step in enumerate(other.steps):
                again = rewritten(step.reply, thoughts, goal=other.goal, pages=pages[: number + 1])
                assert step.reply == again, "the line names what the action acts on, or its source"
                assert thoughts == "named" or names_element(step.reply, step.page)
            link = pages[0].element(actions(other)[0].element_id or 0)
            assert link is not None and f'"{link.name}"' in other.goal
            assert pages[1].title == pages[1].nodes[0].name == link.name
            assert {node.name for node in pages[0].nodes} == {node.name for node in LIST.nodes}
            assert len(pages[0].nodes) == len(LIST.nodes)


def test_what_replies_take_differs_from_variant_to_variant() -> None:
    assigned, answered = made(ASSIGN, 40), made(ANSWER, 40)
    typed = [actions(other)[1].text for other in assigned]
    for other, text in zip(assigned, typed, strict=True):
        assert other.goal.endswith(f"to {text}.")
        assert sorted(other.steps[1].page.nodes[2].options) == ["Anna", "Ben", "Carla"]
    answers = {actions(other)[1].answer for other in answered}
    assert set(typed) == {"Anna", "Ben", "Carla"}
    assert len(answers) > 20 and all(len(each) == 4 and each.isdigit() for each in answers)
    assert {actions(other)[0].element_id for other in assigned} == {1, 2, 3}
    for found, whole in ((assigned, ASSIGN), (answered, ANSWER)):
        assert len({replace(each, key="") for each in [whole, *found]}) == len(found) + 1
        assert len({each.key for each in [whole, *found]}) == len(found) + 1


def test_the_same_seed_makes_the_same_variants() -> None:
    assert made(ASSIGN, 8, 5) == made(ASSIGN, 8, 5) != made(ASSIGN, 8, 6)


def test_the_first_words_of_a_goal_and_names_that_it_lacks_stay() -> None:
    assert len(found := made(ASSIGN)) > 5
    for other in found:
        assert other.goal.startswith('Assign the ticket "')
        assert [node.name for node in other.steps[2].page.nodes[3:]] == ["Assign", "Close"]
        assert [step.reply for step in other.steps[2:]] == [step.reply for step in ASSIGN.steps[2:]]


SORT = Node("element", "combobox", "Order", BOX, id=1, options=("Newest", "Lowest price", "Done"))
OPEN = "at Mailbox is full\n```click [2]```"


@pytest.mark.parametrize(
    "whole",
    [
        recording("Open the newest ticket.", (LIST, OPEN)),
        recording(
            "Show the cheapest.", (page(SORT), "at Order\n```type [1] [Lowest price] [0]```")
        ),
        recording('Open "Mailbox is full" on http://desk.localhost/.', (LIST, OPEN)),
        recording('Open "Mailbox is full".', (LIST, "I open the mailbox.\n```click [2]```")),
        recording('Open "Mailbox is full".', (LIST, "click [2]")),
        recording("Mailbox is full", (LIST, OPEN)),
        recording("How many are full?", (TICKET, "from Reported by\n```stop [12]```")),
        recording(
            "Is it full?", (page(text("It is full: yes")), "from It is full: yes\n```stop [yes]```")
        ),
        recording(
            "When was it?",
            (
                page(text("It was on 2026-11-30")),
                "from It was on 2026-11-30\n```stop [2026-11-30]```",
            ),
        ),
    ],
    ids=["choice", "meaning", "address", "words", "bare", "first", "count", "verdict", "date"],
)
def test_a_recording_whose_texts_cannot_change_has_no_variants(whole: Recording) -> None:
    assert made(whole) == []


def test_a_form_keeps_its_names_and_gets_texts_that_differ() -> None:
    form = page(
        text("Guests of Tuesday and Thursday in Springfield"),
        Node("element", "textbox", "Name", BOX, id=1),
        Node("element", "textbox", "City", BOX, id=2),
    )
    whole = recording(
        "Set the Name to Ben and the City to Bonn.",
        (form, "at Name\n```type [1] [Ben] [0]```"),
        (form, "at City\n```type [2] [Bonn] [0]```"),
    )
    assert len(found := made(whole)) > 2
    for other in found:
        one, two = (action.text for action in actions(other))
        assert one != two and other.goal == f"Set the Name to {one} and the City to {two}."
        assert sorted(node.name for node in other.steps[0].page.nodes[1:]) == ["City", "Name"]
        assert [step.reply.partition("\n")[0] for step in other.steps] == ["at Name", "at City"]


def test_a_part_of_a_name_that_is_typed_stays_a_part_of_it() -> None:
    search = page(Node("element", "searchbox", "Search", BOX, id=9), *LIST.nodes[1:])
    whole = recording(
        'Open "Mailbox is full".', (search, "at Search\n```type [9] [Mailbox] [1]```"), (LIST, OPEN)
    )
    assert (found := made(whole))
    for other in found:
        assert actions(other)[0].text in other.goal


def test_a_word_of_the_format_stays_if_a_text_is_the_same() -> None:
    state = Node("element", "combobox", "State", BOX, id=1, options=("waiting", "done", "new"))
    whole = recording(
        "Set the state to done.",
        (page(state), "at State\n```type [1] [done] [0]```"),
        (page(state), "done\n```stop []```"),
    )
    found = made(whole)
    assert {actions(other)[0].text for other in found} >= {"waiting", "new"}
    assert {other.steps[1].reply for other in found} == {"done\n```stop []```"}


def test_both_ends_of_a_drag_move() -> None:
    names = ("Alpha", "Beta", "Gamma")
    board = page(*(Node("element", "button", name, BOX, id=n) for n, name in enumerate(names)))
    whole = recording('Drag "Alpha" onto "Beta".', (board, "at Alpha\n```drag [0] [1]```"))
    found = made(whole)
    assert len({actions(other)[0].element_id for other in found}) == 3
    for other in found:
        (drag,), shown = actions(other), other.steps[0].page
        ends = [shown.element(drag.element_id or 0), shown.element(drag.target_id or 0)]
        assert [end and end.name for end in ends] == re.findall('"(.*?)"', other.goal)


def test_cells_of_a_row_stay_beside_each_other() -> None:
    rows = [
        (
            Node("element", "link", name, BOX, id=n, cell=Cell(n, 0)),
            replace(text(state), cell=Cell(n, 1)),
        )
        for n, (name, state) in enumerate(zip(TICKETS, ("new", "open", "late"), strict=True))
    ]
    table = page(*(node for row in rows for node in row))
    whole = recording('Open "Mailbox is full".', (table, "at Mailbox is full\n```click [1]```"))
    assert len(found := made(whole)) == 2
    assert {actions(other)[0].element_id for other in found} == {1}


def test_a_page_that_is_read_again_has_its_elements_in_the_same_places() -> None:
    failed = RecordedStep(LIST, "at Mailbox is full\n```click [2]```", counts=False)
    whole = replace(ASSIGN, steps=(failed, *ASSIGN.steps[:1], *ASSIGN.steps))
    assert len(found := made(whole)) > 5
    for other in found:
        assert other.steps[0].page == other.steps[1].page == other.steps[2].page
        assert len({action.element_id for action in actions(other)[:3]}) == 1


def test_the_name_of_a_secret_and_replies_that_failed_stay() -> None:
    secret = recording(
        "Log in as Ben with <secret:desk>.",
        (TICKET, "at Member\n```type [1] [Ben] [0]```"),
        (TICKET, "at Member\n```type [1] [<secret:desk>] [1]```"),
    )
    failed = RecordedStep(TICKET, "no action for Ben", counts=False)
    found = made(replace(secret, steps=(failed, *secret.steps)))
    assert found
    for other in found:
        assert other.goal.endswith(" with <secret:desk>.") and " as Ben " not in other.goal
        assert other.steps[0].reply == failed.reply
        assert other.steps[2].reply == secret.steps[1].reply


def test_a_text_without_neighbors_gets_other_words_and_digits_in_all_places() -> None:
    search = page(Node("element", "textbox", "Search", BOX, id=1), *LIST.nodes[2:])
    goal = "Search for Kayak 4000 and for 7 paddles."
    found = made(recording(goal, (search, "at Search\n```type [1] [Kayak 4000] [1]```")), 9)
    assert len(found) > 5
    for other in found:
        typed = actions(other)[0].text
        word, number = typed.split()
        assert other.goal == f"Search for {typed} and for 7 paddles."
        assert word in {"Mailbox", "Screen"} and number != "4000" and len(number) == 4


def test_the_items_of_an_answer_change_one_by_one() -> None:
    hosts = page(text("Host: Falk"), text("Guest: Brandt"), text("Noble Quist and Munk"))
    whole = recording(
        "Who are they?", (hosts, "from Host: Falk; Guest: Brandt\n```stop [Falk, Brandt]```")
    )
    assert len(found := made(whole)) > 2
    for other in found:
        one, two = actions(other)[0].answer.split(", ")
        assert one != two and {one, two} <= {"Noble", "Quist", "Munk"}
        assert other.steps[0].reply.startswith(f"from Host: {one}; Guest: {two}\n")
