"""Variants of recordings have other texts in the same places, and every reply still fits."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.dialog.prompt import Thoughts
from agentkv.dialog.reply import names_element, rewritten
from agentkv.recordings import RecordedStep, Recording
from agentkv_env.actions import extract, parse
from agentkv_env.page import Box, Node, Page
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


@pytest.mark.parametrize("thoughts", ["named", "free"])
@given(seed=st.integers(0, 999))
def test_every_reply_fits_its_page_and_its_goal(thoughts: Thoughts, seed: int) -> None:
    for whole in (ASSIGN, ANSWER):
        original = free(whole) if thoughts == "free" else whole
        for other in variants(original, 6, seed=seed):
            pages = [step.page for step in other.steps]
            for number, step in enumerate(other.steps):
                again = rewritten(step.reply, thoughts, goal=other.goal, pages=pages[: number + 1])
                assert step.reply == again, "the line names what the action acts on, or its source"
                assert thoughts == "named" or names_element(step.reply, step.page)
            first = parse(extract(other.steps[0].reply))
            assert first.element_id is not None
            link = other.steps[0].page.element(first.element_id)
            assert link is not None and f'"{link.name}"' in other.goal
            assert sorted(node.name for node in pages[0].nodes) == sorted(
                node.name for node in LIST.nodes
            )
            assert pages[1].title == pages[1].nodes[0].name == link.name


def test_what_replies_take_differs_from_variant_to_variant() -> None:
    members, numbers, places = set(), set(), set()
    made = [*variants(ASSIGN, 40, seed=0), *variants(ANSWER, 40, seed=0)]
    for other in made:
        places.add(parse(extract(other.steps[0].reply)).element_id)
        action = parse(extract(other.steps[1].reply))
        members |= {action.text} - {""}
        numbers |= {action.answer} - {""}
        if action.text:
            assert other.goal.endswith(f"to {action.text}.")
            assert sorted(other.steps[1].page.nodes[2].options) == ["Anna", "Ben", "Carla"]
    assert members == {"Anna", "Ben", "Carla"} and places == {1, 2, 3}
    assert len(numbers) > 20 and all(len(each) == 4 for each in numbers)
    assert len({replace(each, key="") for each in [ASSIGN, ANSWER, *made]}) == len(made) + 2
    keys = [each.key for each in variants(ASSIGN, 40, seed=0)]
    assert len({*keys, ASSIGN.key}) == len(keys) + 1


def test_the_same_seed_makes_the_same_variants() -> None:
    made = list(variants(ASSIGN, 8, seed=5))
    assert made == list(variants(ASSIGN, 8, seed=5)) != list(variants(ASSIGN, 8, seed=6))


def test_the_first_words_of_a_goal_and_names_that_it_lacks_stay() -> None:
    for other in variants(ASSIGN, 20, seed=1):
        assert other.goal.startswith('Assign the ticket "')
        assert [node.name for node in other.steps[2].page.nodes[3:]] == ["Assign", "Close"]
        assert other.steps[2:] == tuple(
            replace(step, page=other.steps[1].page) for step in ASSIGN.steps[2:]
        )


def test_a_recording_whose_replies_take_nothing_has_no_variants() -> None:
    plain = recording("Open the newest ticket.", (LIST, "at Mailbox is full\n```click [2]```"))
    assert list(variants(plain, 5, seed=0)) == []


def test_the_name_of_a_secret_and_replies_that_failed_stay() -> None:
    secret = recording(
        "Log in as Ben with <secret:desk>.",
        (TICKET, "at Member\n```type [1] [Ben] [0]```"),
        (TICKET, "at Member\n```type [1] [<secret:desk>] [1]```"),
    )
    failed = RecordedStep(TICKET, "no action for Ben", counts=False)
    whole = replace(secret, steps=(failed, *secret.steps))
    made = list(variants(whole, 20, seed=2))
    assert made
    for other in made:
        assert other.goal.endswith(" with <secret:desk>.") and " as Ben " not in other.goal
        assert other.steps[0].reply == failed.reply
        assert other.steps[2].reply == secret.steps[1].reply


def test_a_text_without_neighbors_gets_other_words_and_digits_in_all_places() -> None:
    goal = "Search for Kayak 4000 and for 7 paddles."
    page = replace(LIST, nodes=(Node("element", "textbox", "Search", BOX, id=1), *LIST.nodes[2:]))
    made = list(
        variants(recording(goal, (page, "at Search\n```type [1] [Kayak 4000] [1]```")), 9, seed=0)
    )
    assert len(made) > 5
    for other in made:
        text = parse(extract(other.steps[0].reply)).text
        word, number = text.split()
        assert other.goal == f"Search for {text} and for 7 paddles."
        assert word in {"Mailbox", "Screen"} and number != "4000"
