"""Tests for sessions on pages of Playwright's async API."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page as AsyncPage

import agentkv
from agentkv.agent import Agent, Session, SessionError
from agentkv.async_session import AsyncSession
from agentkv.episode import ActionRefused
from agentkv.models.local import LocalModel
from agentkv.models.saved import ConversationFileError
from agentkv.models.scripted import Solution, Stop
from agentkv.trace import Episode, Step
from agentkv_env.actions import Action
from agentkv_env.page import Page
from agentkv_env.session import Session as BrowserSession
from tests.agentkv.agent.conftest import OnPage
from tests.agentkv.agent.fixed_replies import FixedReplies
from tests.own_thread import in_own_thread

pytestmark = pytest.mark.browser


def test_a_goal_is_pursued_while_the_event_loop_goes_on(
    on_page: OnPage, site: str, tiny_model: LocalModel
) -> None:
    async def test(page: AsyncPage) -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.001)
                ticks += 1

        ticking = asyncio.create_task(tick())
        agent = Agent(tiny_model, "full", decoding="free", max_new_tokens=400)
        async with AsyncSession(agent, page) as ours:
            before = ticks
            await ours.ask("what?", look=False)  # no call to the browser
            assert ticks > before + 5
        ticking.cancel()

    on_page(site + "/", test)


def test_a_page_is_read_and_acted_on_as_with_the_sync_api(
    on_page: OnPage, site: str, tiny_model: LocalModel
) -> None:
    model = ["click [link: Boats]", "click [link: Home]", "type [textbox: Search] [heron] [1]"]
    model += ["go_back", "goto [http://elsewhere.test/]", "scroll [down]", "stop [42]"]

    def shown(episode: Episode) -> list[Any]:
        assert episode.answer == "42"
        return [(step.url, step.action, step.error, step.note) for step in episode.steps]

    def run_with_the_sync_api() -> list[Any]:
        with agentkv.browser() as sync_page:
            sync_page.goto(site + "/")
            return shown(Agent(FixedReplies(model)).run(sync_page, "goal"))

    expected = in_own_thread(run_with_the_sync_api)
    assert "not on the allowed hosts" in expected[4][2]

    async def test(page: AsyncPage) -> None:
        async with AsyncSession(Agent(FixedReplies(model)), page) as ours:
            assert shown(await ours.do("goal")) == expected
        assert not page.is_closed()
        await page.goto(site.replace("localhost", "127.0.0.1") + "/boats")
        assert await page.title() == "Boats"  # nothing restricts the owner any more

    on_page(site + "/", test)


def test_dialogs_and_windows_of_the_page_are_handled(on_page: OnPage, site: str) -> None:
    model = Solution(
        ["click [button: Ask]", "type [textbox: Answer] [Ann] [1]", "click [link: New]", "stop []"]
    )

    async def test(page: AsyncPage) -> None:
        await page.evaluate(
            "document.body.innerHTML = `<button onclick=\"this.textContent = prompt('Who?')\">"
            'Ask</button><a href="/boats" target="_blank">New</a>`'
        )
        steps: list[Step] = []
        async with AsyncSession(Agent(model), page) as ours:
            episode = await ours.do("goal", on_step=steps.append)
        assert [step.error for step in steps] == ["", "", "", ""]
        assert await page.locator("button").text_content() == "Ann"
        assert episode.steps[3].url == site + "/boats"
        assert len(page.context.pages) == 2

    on_page(site + "/", test)


def test_hooks_run_in_the_event_loop_and_may_be_coroutines(on_page: OnPage, site: str) -> None:
    async def test(page: AsyncPage) -> None:
        loop = asyncio.get_running_loop()
        seen: list[str] = []

        async def refuse_clicks(shown: Page, action: Action) -> Action | None:
            await asyncio.sleep(0)
            if action.kind == "click":
                raise ActionRefused("no clicks")
            return Action("stop", answer=await page.title())

        def note(step: Step) -> None:
            assert asyncio.get_running_loop() is loop
            seen.append(step.error)

        model = FixedReplies(["click [link: Boats]", "stop [x]"])
        async with AsyncSession(Agent(model), page) as ours:
            episode = await ours.do("goal", before_action=refuse_clicks, on_step=note)
        assert episode.answer == "Home"
        assert seen == ["refused: no clicks", ""]

    on_page(site + "/", test)


def test_a_hook_that_waits_ends_with_its_cancelled_call(on_page: OnPage, site: str) -> None:
    async def test(page: AsyncPage) -> None:
        async def ask_a_person(shown: Page, action: Action) -> None:
            await asyncio.sleep(3600)

        async with AsyncSession(Agent(FixedReplies(["click [link: Boats]"])), page) as ours:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(ours.do("goal", before_action=ask_a_person), 0.5)
            assert page.url == site + "/"
            assert (await ours.do("goal", max_steps=1)).steps[0].error == ""

    on_page(site + "/", test)


@pytest.mark.parametrize("num_requests", [60, pytest.param(600, marks=pytest.mark.slow)])
def test_a_page_with_many_requests_is_read(on_page: OnPage, site: str, num_requests: int) -> None:
    async def test(page: AsyncPage) -> None:
        async with AsyncSession(Agent(Solution(["click [button: Load]", "stop []"])), page) as ours:
            await page.evaluate(
                "document.body.innerHTML = '<button>Load</button>';"
                "document.querySelector('button').onclick = () => {"
                f" for (let i = 0; i < {num_requests}; i++)"
                " document.body.append(Object.assign(new Image(), {src: `/none?${i}`})); }"
            )
            assert (await ours.do("goal")).status == "stopped"

    on_page(site + "/", test)


def test_calls_that_wait_for_their_turn_learn_that_the_session_was_closed(
    on_page: OnPage, site: str
) -> None:
    async def test(page: AsyncPage) -> None:
        ours = AsyncSession(Agent(Stop()), page)
        first, second = asyncio.create_task(ours.do("x")), asyncio.create_task(ours.do("y"))
        await asyncio.sleep(0)
        await asyncio.gather(ours.close(), ours.close())
        assert (await first).status == "stopped"
        with pytest.raises(SessionError, match="is closed"):
            await second

    on_page(site + "/", test)


def test_a_cancelled_call_ends_and_the_session_goes_on(
    on_page: OnPage, site: str, tiny_model: LocalModel
) -> None:
    async def test(page: AsyncPage) -> None:
        agent = Agent(tiny_model, "full", decoding="free", max_new_tokens=64, max_parse_failures=99)
        async with AsyncSession(agent, page) as ours:
            under_way = asyncio.Event()
            endless = asyncio.create_task(
                ours.do("wander", max_steps=10_000, on_step=lambda step: under_way.set())
            )
            waiting = asyncio.create_task(ours.ask("and you?"))
            await under_way.wait()
            waiting.cancel()  # it has not begun, so it cancels nothing
            await asyncio.sleep(0)
            endless.cancel()
            for task in (endless, waiting):
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert (await ours.do("go on", max_steps=1)).status == "step_limit"

    on_page(site + "/", test)


def test_a_session_is_saved_and_loaded(
    on_page: OnPage, site: str, tiny_model: LocalModel, tmp_path: Path
) -> None:
    agent = Agent(tiny_model, "lookback-int8", budget=256, temperature=1.0, max_new_tokens=48)

    async def test(page: AsyncPage) -> None:
        async with AsyncSession(agent, page, seed=4) as ours:
            await ours.do("look around", max_steps=1)
            await ours.save(tmp_path / "saved")
            expected = await ours.ask("what?", look=False)
        with pytest.raises(SessionError, match="is closed"):
            await ours.ask("what?")
        async with await AsyncSession.load(tmp_path / "saved", agent, page) as loaded:
            assert (await loaded.ask("what?", look=False)).text == expected.text
        with pytest.raises(ConversationFileError):
            await AsyncSession.load(tmp_path / "none", agent, page)

    on_page(site + "/", test)


def test_each_kind_of_page_is_sent_to_its_own_session(
    on_page: OnPage, site: str, session: BrowserSession
) -> None:
    with pytest.raises(TypeError, match=r"async_api, found playwright\.sync_api"):
        AsyncSession(Agent(Stop()), session.page)  # type: ignore[arg-type]

    async def test(page: AsyncPage) -> None:
        with pytest.raises(TypeError, match=r"use agentkv\.AsyncSession"):
            Agent(Stop()).open(page)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"use agentkv\.AsyncSession"):
            Session(Agent(Stop()), page)  # type: ignore[arg-type]

    on_page(site + "/", test)
