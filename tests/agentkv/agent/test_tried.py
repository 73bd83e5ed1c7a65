"""A model leaves a circle of pages: an action is barred on a page where it was taken before."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from agentkv.models.local import LocalConversation, LocalModel
from agentkv.models.tried import TriedActions
from agentkv_env.actions import extract, parse
from agentkv_env.page import Box, Node, Page

BOX = Box(0, 0, 1, 1)
A, B = (
    Page(
        f"http://shop.localhost/{name}",
        name,
        tuple(Node("element", "link", f"{name}{number}", BOX, id=number) for number in (1, 2)),
    )
    for name in "AB"
)


def replies(*actions: str) -> list[str]:
    return [f"something\n```{action}```" for action in actions]


def test_an_action_is_barred_on_the_next_visit_to_its_page() -> None:
    tried = TriedActions(1)
    click, back = replies("click [1]", "go_back")
    tried.note(A, click)
    assert tried.barred(A) == []  # the page is still shown: repeats in a row are no visits
    assert tried.barred(B) == []
    tried.note(B, back)
    assert tried.barred(A) == ["click [1]", "hover [1]"]
    assert tried.barred(replace(A, notices=("a dialog was closed",), may_change=True)) != []
    assert tried.barred(replace(A, title="another")) == []
    assert tried.barred(B) == []  # only actions on elements count


@given(st.integers(1, 4), st.integers(1, 6))
def test_a_page_may_be_visited_so_many_times(most: int, num_visits: int) -> None:
    tried = TriedActions(most)
    for _ in range(num_visits):
        for reply in replies("type [2] [x] [0]", "type [2] [x] [0]"):
            tried.note(A, reply)
        tried.note(B, "nothing that can be read")
    assert tried.barred(A) == ["type [2] [x] [0]"] * (num_visits >= most)


def test_nothing_is_barred_without_a_number_of_tries() -> None:
    tried = TriedActions(None)
    for page in (A, B, A):
        tried.note(page, replies("click [1]")[0])
    assert tried.barred(B) == [] and tried.save() == TriedActions(None).save()


@pytest.fixture
def acts_on_elements(tiny_model: LocalModel) -> Iterator[LocalModel]:
    """A model that begins most replies with the name of an element."""
    preferred = tiny_model.tokenizer.encode("at A").ids[:1]

    def prefer(module: Any, inputs: Any, logits: Tensor) -> Tensor:
        logits[..., preferred] += 8
        return logits

    hook = tiny_model.model.lm_head.register_forward_hook(prefer)
    yield tiny_model
    hook.remove()


def talk(conversation: LocalConversation, *pages: Page) -> list[tuple[str, str]]:
    """The pages and actions of a model's replies, those on elements alone."""
    found = []
    for page in pages:
        action = extract(conversation.reply(page).text, strict=False)
        if parse(action, strict=False).element_id is not None:
            found.append((page.title, action))
    return found


def test_a_conversation_takes_no_action_on_a_page_twice(
    acts_on_elements: LocalModel, tmp_path: Path
) -> None:
    def begun(max_tries: int | None) -> LocalConversation:
        acting = acts_on_elements.with_cache("full", temperature=1.0, max_tries=max_tries)
        return acting.begin("find it", seed=3)

    free = talk(begun(None), *(A, B) * 8)
    assert len(set(free)) < len(free), "else this test shows nothing"
    conversation = begun(1)
    first = talk(conversation, *(A, B) * 4)
    conversation.save(tmp_path)
    both = first + talk(conversation._acting.load(tmp_path), *(A, B) * 4)
    assert len(set(both)) == len(both) > 0
