"""The answer of an episode as an instance of a pydantic model."""

from typing import Literal

import pytest
from playwright.async_api import Page as AsyncPage
from pydantic import BaseModel, Field

from agentkv.agent import Agent
from agentkv.answer_form import AnswerFormError, AnswerInvalid
from agentkv.async_session import AsyncSession
from agentkv.models.local import LocalModel
from agentkv.models.scripted import Stop
from agentkv_env.actions import Action
from agentkv_env.page import Page
from tests.agentkv.agent.conftest import OnPage
from tests.agentkv.agent.fixed_replies import Still


class Berth(BaseModel):
    """An answer that a random model can finish."""

    boat: Literal["Heron", "Swan"]
    number: int = Field(ge=0, le=99)
    names: list[Literal["a", "b"]] = Field(min_length=1, max_length=2)


class Story(BaseModel):
    text: str


def stop(page: Page, action: Action) -> Action:
    return Action("stop", answer="42")


def test_the_answer_is_an_instance_of_the_model_that_was_given(
    page: Page, tiny_chat_model: LocalModel
) -> None:
    agent = Agent(tiny_chat_model, "full", max_new_tokens=80)
    episode = agent.run(Still(page), "Which berth?", answer=Berth, before_action=stop)
    assert episode.status == "stopped" and isinstance(episode.answer, Berth)
    assert episode.answer == Berth.model_validate_json(episode.answer_text)
    with agent.open(Still(page)) as ours:  # the conversation goes on after it
        first = ours.do("Which berth?", answer=Berth, before_action=stop)
        second = ours.do("And now?", before_action=stop)
    assert first.answer == episode.answer and second.answer == "42"


def test_an_episode_without_a_stop_has_no_answer(page: Page, tiny_chat_model: LocalModel) -> None:
    episode = Agent(tiny_chat_model, "full", max_new_tokens=80).run(
        Still(page),
        "Which berth?",
        answer=Berth,
        max_steps=1,
        before_action=lambda *_: Action("go_forward"),
    )
    assert (episode.status, episode.answer, episode.answer_text) == ("step_limit", None, "")


def test_an_answer_that_does_not_validate_is_an_error_with_its_text(
    page: Page, tiny_chat_model: LocalModel
) -> None:
    agent = Agent(tiny_chat_model, "full", max_new_tokens=16)
    with pytest.raises(AnswerInvalid, match="no Story: Invalid JSON.* max_new_tokens") as caught:
        agent.run(Still(page), "Tell me.", answer=Story, before_action=stop)
    assert caught.value.text.startswith('{"text": "')
    assert [step.action for step in caught.value.steps] == ["stop [42]"]


def test_models_and_classes_that_allow_no_such_answer_are_refused_before_anything_is_done(
    page: Page, tiny_model: LocalModel, tiny_chat_model: LocalModel
) -> None:
    def never(page: Page, action: Action) -> None:
        raise AssertionError("nothing may be done")

    for model in (tiny_model, Stop()):
        with pytest.raises(AnswerFormError, match="writes actions only .* give the agent a chat"):
            Agent(model, "full").run(Still(page), "x", answer=Berth, before_action=never)
    agent = Agent(tiny_chat_model, "full")
    with pytest.raises(AnswerFormError, match="subclass of pydantic.BaseModel; found <class 'dict"):
        agent.run(Still(page), "x", answer=dict, before_action=never)

    class Odd(BaseModel):
        codes: list[int] = Field(json_schema_extra={"unevaluatedItems": False})

    with pytest.raises(AnswerFormError, match="answer=Odd: .*codes.*unevaluatedItems"):
        agent.run(Still(page), "x", answer=Odd, before_action=never)


@pytest.mark.browser
def test_a_page_of_the_async_api_gets_such_answers_too(
    on_page: OnPage, site: str, tiny_chat_model: LocalModel
) -> None:
    async def test(page: AsyncPage) -> None:
        agent = Agent(tiny_chat_model, "full", max_new_tokens=80)
        async with AsyncSession(agent, page) as ours:
            episode = await ours.do("Which berth?", answer=Berth, before_action=stop)
        assert isinstance(episode.answer, Berth)

    on_page(site + "/", test)
