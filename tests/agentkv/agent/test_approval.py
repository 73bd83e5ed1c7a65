"""`approve`: a person is asked before an action that may change something."""

import asyncio

import pytest
from playwright.async_api import Page as AsyncPage

from agentkv.agent import Agent
from agentkv.async_session import AsyncSession
from agentkv.episode import REFUSED_NOTE
from agentkv_env.actions import Action
from agentkv_env.page import Page
from tests.agentkv.agent.conftest import OnPage
from tests.agentkv.agent.fixed_replies import FixedReplies, Still


def test_only_what_may_change_something_is_asked_about(page: Page) -> None:
    asked: list[tuple[str, str]] = []

    def approve(page: Page, action: Action) -> bool:
        asked.append((page.title, action.kind))
        return True

    model = FixedReplies(["scroll [down]", "click [link: Blue Kayak]", "go_back", "wait", "stop"])
    still = Still(page)
    Agent(model).run(still, "goal", approve=approve)
    assert asked == [(page.title, "click")]
    assert [action.kind for action in still.done] == ["scroll", "click", "go_back", "wait"]


def test_the_model_is_told_of_a_refusal_and_nothing_is_done(page: Page) -> None:
    model, still = FixedReplies(["click [link: Blue Kayak]", "stop []"]), Still(page)
    refused, _ = Agent(model).run(still, "goal", approve=lambda page, action: False).steps
    assert refused.error == f"refused: {REFUSED_NOTE}" and not still.done
    assert model.notes == ["", f"error: {REFUSED_NOTE}"]


def test_the_action_that_a_hook_chose_is_the_one_that_is_asked_about(page: Page) -> None:
    asked: list[str] = []
    episode = Agent(FixedReplies(["scroll [down]", "stop []"])).run(
        Still(page),
        "goal",
        before_action=lambda page, action: Action("go_back") if action.kind != "stop" else None,
        approve=lambda page, action: bool(asked.append(action.kind)),
    )
    assert asked == []  # going back only looks
    assert episode.steps[0].action == "go_back"


def test_whoever_cancels_in_place_of_an_answer_ends_the_episode(page: Page) -> None:
    still = Still(page)
    with Agent(FixedReplies(["click [link: Blue Kayak]"])).open(still) as ours:

        def quit(page: Page, action: Action) -> bool:
            ours.cancel()
            return False

        episode = ours.do("goal", approve=quit)
    assert (episode.status, len(episode.steps)) == ("cancelled", 1)
    assert episode.steps[0].error == "not done: cancelled" and not still.done


def test_an_answer_that_is_neither_yes_nor_no_is_no_yes(page: Page) -> None:
    agent, still = Agent(FixedReplies(["click [link: Blue Kayak]"])), Still(page)
    with pytest.raises(TypeError, match="approve returned 'no'; expected True or False"):
        agent.run(still, "goal", approve=lambda *_: "no")  # type: ignore[arg-type,return-value]
    assert not still.done


@pytest.mark.browser
def test_a_coroutine_approves_on_a_page_of_the_async_api(on_page: OnPage, site: str) -> None:
    asked: list[str] = []

    async def approve(page: Page, action: Action) -> bool:
        await asyncio.sleep(0)
        asked.append(str(action))
        return False

    async def test(page: AsyncPage) -> None:
        model = FixedReplies(["click [link: Boats]", "stop []"])
        async with AsyncSession(Agent(model), page) as ours:
            episode = await ours.do("goal", approve=approve)
        assert episode.steps[0].error.startswith("refused: the user did not allow")

    on_page(site + "/", test)
    assert len(asked) == 1 and asked[0].startswith("click [")
