import os
import signal
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest

from agentkv.agent import Agent
from agentkv.models.local import LocalModel
from agentkv.models.model import Reply
from agentkv.models.scripted import RandomClicks, Solution, Stop
from agentkv.trace import Step, TraceWriter, read_trace
from agentkv_env.actions import parse
from agentkv_env.browser import Browser
from agentkv_env.page import Page
from agentkv_env.session import Session
from tests.agentkv.agent.fixed_replies import FixedReplies, Still

pytestmark = pytest.mark.browser


def test_a_solution_is_carried_out_and_its_answer_returned(session: Session, site: str) -> None:
    model = Solution(["click [link: Boats]", "stop [berth 42]"])
    episode = Agent(model).run(session, "Which berth has the Heron?")
    assert (episode.status, episode.answer) == ("stopped", "berth 42")
    assert [step.url for step in episode.steps] == [f"{site}/", f"{site}/boats"]
    assert [step.error for step in episode.steps] == ["", ""]
    assert parse(episode.steps[0].action).kind == "click"
    assert episode.num_parse_failures == 0


def test_typing_reaches_the_page(session: Session, site: str) -> None:
    model = Solution(["type [textbox: Search] [heron] [1]", "stop []"])
    assert Agent(model).run(session, "search").steps[1].url == f"{site}/search?q=heron"


def test_an_agent_that_never_stops_reaches_the_step_limit(page: Page) -> None:
    episode = Agent(RandomClicks()).run(Still(page), "wander", max_steps=4)
    assert (episode.status, episode.answer, len(episode.steps)) == ("step_limit", "", 4)


def test_three_unparsable_replies_in_a_row_end_the_episode(page: Page) -> None:
    model = FixedReplies(["hm", "click [link: Blue Kayak]", "what", "```dance```", "hm"])
    episode = Agent(model).run(Still(page), "goal")
    assert episode.status == "parse_limit"
    assert [bool(step.action) for step in episode.steps] == [False, True, False, False, False]
    assert episode.num_parse_failures == 4
    assert model.notes[1].startswith("error: no action found")
    assert model.notes[2] == ""


def test_five_equal_actions_on_an_unchanged_page_end_the_episode(page: Page) -> None:
    episode = Agent(FixedReplies(["click [link: Blue Kayak]"])).run(Still(page), "goal")
    assert (episode.status, len(episode.steps)) == ("repetition", 5)
    assert [bool(step.error) for step in episode.steps] == [False] * 4 + [True]


def test_equal_actions_that_change_the_page_do_not_end_the_episode(session: Session) -> None:
    episode = Agent(FixedReplies(["click [button: Count]"])).run(session, "goal", max_steps=7)
    assert episode.status == "step_limit"
    assert session.page.get_by_text("7").count() == 1


def test_the_time_limit_ends_the_episode(page: Page) -> None:
    episode = Agent(RandomClicks()).run(Still(page), "goal", timeout_s=1e-9)
    assert (episode.status, episode.steps) == ("timeout", ())
    assert "1e-09 s" in episode.error


@pytest.mark.slow
def test_a_model_that_runs_out_of_positions_ends_the_episode(
    session: Session, short_model: LocalModel
) -> None:
    # With a grammar, random weights may happen to stop; free replies never parse.
    agent = Agent(short_model, "full", max_new_tokens=64, decoding="free", max_parse_failures=100)
    episode = agent.run(session, "goal", max_steps=30)
    assert episode.status == "context_limit"
    assert 0 < len(episode.steps) < 30
    assert "512 positions" in episode.error and "the policy keeps every token" in episode.error


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["window", "lookback"])
def test_under_a_policy_that_evicts_an_episode_outlives_the_positions_of_its_model(
    session: Session, short_model: LocalModel, policy: str
) -> None:
    agent = Agent(
        short_model,
        policy,
        budget=400,
        max_new_tokens=64,
        decoding="free",
        max_parse_failures=100,
    )
    episode = agent.run(session, "goal", max_steps=14)
    assert episode.status == "step_limit" and episode.steps[-1].seen_tokens > 2 * 512
    numbers = [step.num_renumberings for step in episode.steps]
    assert numbers == sorted(numbers) and numbers[0] == 0 < numbers[-1]


def test_a_lost_browser_ends_the_episode_and_keeps_its_steps(site: str) -> None:
    class Killer(FixedReplies):
        def reply(self, page: Page, note: str = "", deadline: float | None = None) -> Reply:
            if self.notes and browser.pid is not None:
                os.kill(browser.pid, signal.SIGKILL)
            return FixedReplies.reply(self, page, note, deadline)

    with Browser.launch() as browser:
        with browser.session(hosts=[site.removeprefix("http://")]) as session:
            session.open(site + "/")
            model = Killer(["click [link: Boats]", "click [link: Home]"])
            episode = Agent(model).run(session, "goal")
    assert episode.status == "env_error"
    assert len(episode.steps) == 2
    assert episode.error and episode.steps[1].error == episode.error


def test_the_next_turn_reports_a_failed_action(session: Session) -> None:
    model = FixedReplies(["link\n```click [999]```", "done\n```stop []```"])
    episode = Agent(model).run(session, "goal")
    assert episode.status == "stopped"
    assert "999" in episode.steps[0].error
    assert "[" not in model.notes[1] and "`" not in model.notes[1]
    assert model.notes[1].startswith("error: ") and "999" in model.notes[1]
    assert episode.steps[1].note == model.notes[1]


def test_a_window_that_closes_itself_does_not_end_the_episode(session: Session) -> None:
    class Closing(FixedReplies):
        def reply(self, page: Page, note: str = "", deadline: float | None = None) -> Reply:
            if len(self.notes) == 1:
                session.page.close()
            return FixedReplies.reply(self, page, note, deadline)

    model = Closing(["click [link: Boats]", "```scroll [up]```", "```stop [x]```"])
    episode = Agent(model).run(session, "goal")
    assert (episode.status, len(episode.steps)) == ("stopped", 3)


def test_a_note_neutralizes_text_that_the_reply_quotes(page: Page) -> None:
    model = FixedReplies(["```dance [7] \x1b[2J ｀click ［8］```", "```stop []```"])
    Agent(model).run(Still(page), "goal")
    assert model.notes[1].startswith("error: ") and model.notes[1].isprintable()
    assert "dance ⟦7⟧" in model.notes[1] and "click ⟦8⟧" in model.notes[1]
    assert not set("`｀［］") & set(model.notes[1])


def test_lenient_parsing_accepts_a_reply_that_strict_parsing_rejects(page: Page) -> None:
    model = FixedReplies(["```Click(1)```", "```stop [x]```"])
    assert not Agent(model, strict=True).run(Still(page), "goal").steps[0].action
    assert Agent(model, strict=False).run(Still(page), "goal").steps[0].action == "click [1]"


def test_steps_never_show_a_typed_password(session: Session, site: str) -> None:
    session.open(f"{site}/sign-in")
    model = Solution(["type [textbox: Password] [hunter22] [0]", "stop [I typed hunter22]"])
    episode = Agent(model).run(session, "sign in with hunter22")
    assert session.page.get_by_label("Password").input_value() == "hunter22"
    assert "hunter22" not in repr(list(map(asdict, episode.steps)))
    assert "[***]" in episode.steps[0].reply and "[***]" in episode.steps[0].action


def test_every_step_is_on_disk_with_its_screenshot_before_the_next_begins(
    session: Session, tmp_path: Path
) -> None:
    path = tmp_path / "trace.jsonl"
    seen: list[int] = []

    def on_step(step: Step) -> None:
        trace.step(step)
        seen.append(len(read_trace(path).steps))

    model = Solution(["click [link: Boats]", "stop [42]"])
    with TraceWriter(path, head={"goal": "g"}) as trace:
        episode = Agent(model).run(session, "g", on_step=on_step, screenshots=tmp_path / "shots")
        trace.end(episode)
    assert seen == [1, 2]
    back = read_trace(path)
    assert back.steps == episode.steps
    assert back.end is not None and back.end["answer"] == "42"
    for step in back.steps:
        assert (tmp_path / "shots" / step.screenshot).read_bytes().startswith(b"\xff\xd8")


def test_a_screenshot_is_taken_while_a_model_elsewhere_works(
    session: Session, tmp_path: Path
) -> None:
    events: list[str] = []

    @dataclass
    class Elsewhere(FixedReplies):
        def ask(
            self, page: Page, note: str = "", deadline: float | None = None
        ) -> Callable[[], Reply]:
            events.append("asked")

            def wait() -> Reply:
                events.append(f"{len(list(tmp_path.iterdir()))} screenshots")
                return self.reply(page, note, deadline)

            return wait

    model = Elsewhere(["scroll [down]", "stop []"])
    episode = Agent(model).run(session, "g", screenshots=tmp_path)
    assert events == ["asked", "1 screenshots", "asked", "2 screenshots"]
    assert [step.screenshot for step in episode.steps] == ["000.jpg", "001.jpg"]


def test_a_playwright_page_stays_open_and_unrestricted_after_the_episode(
    session: Session, site: str
) -> None:
    page = session.page
    episode = Agent(Solution(["click [link: Boats]", "stop []"])).run(page, "goal", ocr=False)
    assert episode.status == "stopped"
    assert not page.is_closed()
    page.goto(f"{site}/")
    assert page.title() == "Home"


def test_anything_but_a_page_is_rejected() -> None:
    with pytest.raises(TypeError, match=r"playwright\.sync_api"):
        Agent(Stop()).run("http://localhost/", "goal")  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", ["full", "conf-kv-int8"])
def test_constrained_replies_of_a_random_model_always_parse(
    page: Page, tiny_model: LocalModel, policy: str
) -> None:
    budget = None if policy == "full" else 96
    agent = Agent(tiny_model, policy, budget=budget, temperature=1.0, max_new_tokens=64)
    pages = Still(page, replace(page, title="Another page"))
    episode = agent.run(pages, "goal", max_steps=3, seed=3)
    assert episode.num_parse_failures == 0
    assert episode.steps and all(step.num_tokens_out > 0 for step in episode.steps)
    assert episode.kv_peak_bytes >= episode.kv_mean_bytes > 0
    assert all(step.observation.startswith("url ") for step in episode.steps)
