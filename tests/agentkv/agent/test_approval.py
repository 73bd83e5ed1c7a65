"""`approve`: a person is asked before an action that may change something."""

import asyncio

import pytest
from playwright.async_api import Page as AsyncPage

from agentkv.agent import Agent
from agentkv.async_session import AsyncSession
from agentkv.episode import REFUSED_NOTE
from agentkv_env.actions import Action
from agentkv_env.browser import Browser
from agentkv_env.page import Page
from agentkv_env.session import Session
from tests.agentkv.agent.conftest import OnPage
from tests.agentkv.agent.fixed_replies import FixedReplies

pytestmark = pytest.mark.browser


def test_only_what_may_change_something_is_asked_about(browser: Browser, site: str) -> None:
    asked: list[tuple[str, str]] = []

    def approve(page: Page, action: Action) -> bool:
        asked.append((page.title, action.kind))
        return True

    model = FixedReplies(["scroll [down]", "click [link: Boats]", "go_back", "wait", "stop [42]"])
    hosts = [site.removeprefix("http://")]
    with browser.session(hosts=hosts, timeout_s=1.5) as session:  # nothing comes by the wait
        session.open(site + "/")
        episode = Agent(model).run(session, "goal", approve=approve)
    assert asked == [("Home", "click")]
    assert [step.action.split()[0] for step in episode.steps][1:] == [
        "click",
        "go_back",
        "wait",
        "stop",
    ]


def test_the_model_is_told_of_a_refusal_and_the_page_stays(session: Session) -> None:
    model = FixedReplies(["click [link: Boats]", "stop []"])
    episode = Agent(model).run(session, "goal", approve=lambda page, action: False)
    refused, stopped = episode.steps
    assert refused.error == f"refused: {REFUSED_NOTE}" and stopped.url == refused.url
    assert model.notes == ["", f"error: {REFUSED_NOTE}"]


def test_the_action_that_a_hook_chose_is_the_one_that_is_asked_about(session: Session) -> None:
    asked: list[str] = []
    episode = Agent(FixedReplies(["scroll [down]", "stop []"])).run(
        session,
        "goal",
        before_action=lambda page, action: Action("go_back") if action.kind != "stop" else None,
        approve=lambda page, action: bool(asked.append(action.kind)),
    )
    assert asked == []  # going back only looks
    assert episode.steps[0].action == "go_back"


def test_whoever_cancels_in_place_of_an_answer_ends_the_episode(session: Session) -> None:
    with Agent(FixedReplies(["click [link: Boats]"])).open(session) as ours:

        def quit(page: Page, action: Action) -> bool:
            ours.cancel()
            return False

        episode = ours.do("goal", approve=quit)
    assert (episode.status, len(episode.steps)) == ("cancelled", 1)
    assert episode.steps[0].error == "not done: cancelled"
    assert session.observe().title == "Home"


def test_an_answer_that_is_neither_yes_nor_no_is_no_yes(session: Session) -> None:
    agent = Agent(FixedReplies(["click [link: Boats]"]))
    with pytest.raises(TypeError, match="approve returned 'no'; expected True or False"):
        agent.run(session, "goal", approve=lambda *_: "no")  # type: ignore[arg-type,return-value]
    assert session.observe().title == "Home"


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
