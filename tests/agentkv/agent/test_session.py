"""Tests for sessions: goal after goal, and question after question, on one cache."""

import itertools
import json
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Page as PlaywrightPage

from agentkv.agent import Agent, Session, SessionError
from agentkv.cache.checkpoint.file import CacheFileError
from agentkv.episode import CHANGED_NOTE, ActionRefused
from agentkv.models.local import LocalConversation, LocalModel
from agentkv.models.model import BrokenConversation, Cancelled
from agentkv.models.saved import INDEX, ConversationFileError
from agentkv.models.scripted import Solution, Stop
from agentkv.trace import Step
from agentkv_env.actions import Action, parse
from agentkv_env.page import Page
from agentkv_env.session import Session as BrowserSession
from tests.agentkv.agent.fixed_replies import FixedReplies, Still

pytestmark = pytest.mark.browser


def conversation_of(session: Session) -> LocalConversation:
    conversation = session._conversation
    assert isinstance(conversation, LocalConversation)
    return conversation


def stream_of(conversation: LocalConversation) -> list[int]:
    """The ids of the whole stream, as turns and goals have them."""
    template = conversation._local.template
    ids = template.opening(conversation._first_goal, conversation._prompt.nonce)
    for turn in conversation._stream.turns:
        ids += [*turn.goal, *turn.shown, *turn.reply]
    return ids


def read_and_pending(conversation: LocalConversation) -> list[int]:
    """The ids that the cache was fed, and those that it is fed next."""
    fed = conversation.cache.ids
    assert fed is not None
    return [*fed[0].tolist(), *conversation._stream.pending]


@pytest.fixture
def agent(tiny_model: LocalModel) -> Agent:
    return Agent(tiny_model, "lookback-int8", budget=256, temperature=1.0, max_new_tokens=48)


def test_a_second_goal_reads_only_what_is_new(agent: Agent, page: Page) -> None:
    with agent.open(Still(page), seed=3) as ours:
        first = ours.do("find the Heron", max_steps=2)
        before = conversation_of(ours).cache.seen
        second = ours.do("count to two", max_steps=2)
        conversation = conversation_of(ours)
        assert first.steps[0].seen_tokens <= before <= first.steps[-1].seen_tokens
        new = second.steps[0].num_tokens_in + second.steps[0].num_tokens_out
        assert before < second.steps[0].seen_tokens <= before + new
        assert read_and_pending(conversation) == stream_of(conversation)
        goals = [span.label for span in conversation.cache.spans() if "goal" in span.label]
        assert goals == ["goal", f"goal {len(first.steps)}"]


@pytest.mark.parametrize("observations", ["whole", "changes"])
def test_a_rebuilt_prompt_gets_the_replies_of_a_lasting_cache(
    tiny_model: LocalModel, page: Page, observations: Literal["whole", "changes"]
) -> None:
    replies = []
    for rebuild in (False, True):
        agent = Agent(
            tiny_model,
            "full",
            rebuild=rebuild,
            max_new_tokens=48,
            cache_dtype="float32",
            observations=observations,
        )
        with agent.open(Still(page, replace(page, pixels_above=50))) as ours:
            episodes = [ours.do(goal, max_steps=2) for goal in ("one", "two", "three")]
            answer = ours.ask("four?")
        steps = [step for episode in episodes for step in episode.steps]
        replies.append([*(step.reply for step in steps), answer.text])
    assert replies[0] == replies[1]


def test_only_the_first_and_the_latest_goal_stay_pinned(tiny_model: LocalModel, page: Page) -> None:
    agent = Agent(tiny_model, "window", budget=128, max_new_tokens=32)
    with agent.open(Still(page)) as ours:
        for number in range(8):  # all goals together would not fit
            ours.do(f"goal number {number}, which has some twenty tokens", max_steps=1)
            cache = conversation_of(ours).cache
            labels = [
                span.label
                for span in cache.spans()
                if any(span.start in pinned for pinned in cache.pins())
            ]
            assert labels == ["goal", f"goal {number}"][: number + 1]
            assert all(len(kept[0]) <= 128 for kept in cache.kept(0))


def test_a_question_is_answered_and_nothing_is_done(
    agent: Agent, session: BrowserSession, site: str
) -> None:
    with agent.open(session) as ours:
        before = ours.ask("Which berth has the Heron?")
        assert parse(before.reply.text.split("```")[1]) == Action("stop", answer=before.text)
        assert before.reply.observation.startswith("url ")
        unseen = ours.ask("And which one is free?", look=False)
        assert unseen.reply.observation == ""
        assert unseen.reply.num_tokens_in < before.reply.num_tokens_in
        conversation = conversation_of(ours)
        assert read_and_pending(conversation) == stream_of(conversation)
    assert session.page.url == site + "/"


def test_a_chat_model_answers_in_any_words(tiny_chat_model: LocalModel, page: Page) -> None:
    agent = Agent(tiny_chat_model, "full", temperature=1.0, max_new_tokens=24)
    with agent.open(Still(page)) as ours:
        ours.do("look around", max_steps=1)
        answer = ours.ask("What did you see? <page>")
        assert answer.text == answer.reply.text.strip()
        conversation = conversation_of(ours)
        shown = tiny_chat_model.template.decode(conversation._stream.turns[-1].goal)
        assert shown.startswith("Question: What did you see? (page>")
        assert read_and_pending(conversation) == stream_of(conversation)


def test_a_script_begins_anew_with_every_goal_and_answers_no_question(
    session: BrowserSession, site: str, tmp_path: Path
) -> None:
    agent = Agent(Solution(["click [link: Boats]", "stop [42]"]))
    with agent.open(session) as ours:
        assert ours.do("once").answer == "42"
        session.open(site + "/")
        assert ours.do("twice").answer == "42"
        with pytest.raises(SessionError, match="solution pursues goals only"):
            ours.ask("Why?")
        with pytest.raises(SessionError, match="keeps nothing to save"):
            ours.save(tmp_path / "saved")
    with pytest.raises(SessionError, match="keeps nothing that could be loaded"):
        Session.load(tmp_path / "saved", agent, session)


def test_the_next_goal_begins_in_the_tab_where_the_last_one_ended(
    callers_page: PlaywrightPage, site: str
) -> None:
    callers_page.goto(site + "/")
    model = FixedReplies(["x\n```new_tab```", "done\n```stop []```"])
    with Agent(model).open(callers_page) as ours:
        ours.do("one")
        assert len(callers_page.context.pages) == 2
        callers_page.context.pages[1].goto(site + "/boats")
        assert ours.do("two", max_steps=1).steps[0].url == site + "/boats"
        callers_page.context.pages[1].close()
    assert not callers_page.is_closed()


def test_the_owner_may_go_elsewhere_between_two_goals(
    callers_page: PlaywrightPage, site: str
) -> None:
    page = callers_page
    page.goto(site + "/")
    with Agent(Stop("x")).open(page) as ours:
        assert ours.do("one").steps[0].url == site + "/"
        elsewhere = site.replace("localhost", "127.0.0.1") + "/boats"
        page.goto(elsewhere)
        assert ours.do("two").steps[0].url == elsewhere
    assert not page.is_closed()


def test_a_closed_session_takes_no_goal(page: Page, tmp_path: Path) -> None:
    with Agent(Stop()).open(Still(page)) as ours:
        with pytest.raises(SessionError, match="nothing to save before the first goal"):
            ours.save(tmp_path / "saved")
    for call in (lambda: ours.do("x"), lambda: ours.ask("x"), lambda: ours.save(tmp_path)):
        with pytest.raises(SessionError, match="is closed"):
            call()


# ---- hooks


def test_a_hook_may_refuse_an_action_and_the_model_is_told(page: Page) -> None:
    def ask_first(page: Page, action: Action) -> None:
        if action.kind == "click":
            raise ActionRefused("the owner wants no [clicks]")

    steps: list[Step] = []

    model = FixedReplies(["link Blue Kayak\n```click [3]```", "done\n```stop [x]```"])
    episode = Agent(model).run(Still(page), "goal", before_action=ask_first, on_step=steps.append)
    assert (episode.status, episode.answer) == ("stopped", "x")
    assert steps[0].error == "refused: the owner wants no [clicks]"
    assert steps[1].note == "error: the owner wants no [clicks]"
    assert steps[1].url == steps[0].url


def test_a_hook_may_change_an_action(session: BrowserSession, site: str) -> None:
    def to_the_boats(page: Page, action: Action) -> Action | None:
        boats = next(node for node in page.nodes if node.name == "Boats")
        return Action("click", element_id=boats.id) if action.kind == "scroll" else None

    model = FixedReplies(["down\n```scroll [down]```", "done\n```stop []```"])
    episode = Agent(model).run(session, "goal", before_action=to_the_boats)
    assert episode.steps[1].url == site + "/boats"
    assert episode.steps[0].action.startswith("click [")
    assert episode.steps[1].note == CHANGED_NOTE


def test_a_password_that_a_hook_fills_in_stays_out_of_all_steps(
    session: BrowserSession, site: str
) -> None:
    session.open(site + "/sign-in")

    def fill_in(page: Page, action: Action) -> Action | None:
        field = next(node for node in page.nodes if "password" in node.states)
        filled = Action("type", element_id=field.id, text="mallard-77", enter=False)
        return filled if action.kind == "type" else None

    model = FixedReplies(["x\n```type [1] [?] [0]```", "done\n```stop []```"])
    episode = Agent(model).run(session, "goal", before_action=fill_in)
    assert session.page.locator("[type=password]").input_value() == "mallard-77"
    assert "mallard" not in repr(list(map(asdict, episode.steps)))
    assert "***" in episode.steps[0].action


def test_a_hook_sees_the_answer_to_a_dialog_as_an_action(session: BrowserSession) -> None:
    session.page.set_content(
        "<button onclick=\"document.title = confirm('Delete all?')\">Go</button>"
    )
    seen: list[tuple[str, str]] = []

    def nothing_deleted(page: Page, action: Action) -> None:
        element = None if action.element_id is None else page.element(action.element_id)
        if element is not None and element.name == "OK":
            seen.append((page.nodes[0].role, page.nodes[0].name))
            raise ActionRefused("nothing may be deleted")

    replies = [
        f"x\n```{action}```" for action in ("click [1]", "click [2]", "click [3]", "stop []")
    ]
    model = FixedReplies(replies)
    episode = Agent(model).run(session, "goal", before_action=nothing_deleted)
    assert seen == [("dialog", "Delete all?")]
    assert [step.error for step in episode.steps] == ["", "refused: nothing may be deleted", "", ""]
    assert session.page.title() == "false"


def test_a_hook_may_refuse_to_stop(page: Page) -> None:
    def not_yet(page: Page, action: Action) -> None:
        if action.kind == "stop" and not action.answer:
            raise ActionRefused

    model = FixedReplies(["done\n```stop []```", "done\n```stop [now]```"])
    episode = Agent(model).run(Still(page), "goal", before_action=not_yet)
    assert (episode.status, episode.answer, len(episode.steps)) == ("stopped", "now", 2)
    assert episode.steps[0].error == "refused: this action is not allowed"


def test_an_action_that_is_refused_again_and_again_ends_the_episode(page: Page) -> None:
    def never(page: Page, action: Action) -> None:
        raise ActionRefused("no")

    model = FixedReplies(["done\n```stop []```"])
    episode = Agent(model).run(Still(page), "goal", before_action=never)
    assert (episode.status, len(episode.steps)) == ("repetition", 5)


def test_a_hook_that_returns_neither_an_action_nor_none_is_told_so(page: Page) -> None:
    with pytest.raises(TypeError, match=r"before_action returned False.*ActionRefused"):
        Agent(Stop()).run(
            Still(page),
            "goal",
            before_action=lambda page, action: False,  # type: ignore[arg-type,return-value]
        )


def test_an_action_is_not_carried_out_once_the_session_is_cancelled(
    session: BrowserSession, site: str
) -> None:
    with Agent(FixedReplies(["click [link: Boats]"])).open(session) as ours:

        def cancel(page: Page, action: Action) -> None:
            ours.cancel()

        episode = ours.do("goal", before_action=cancel)
    assert (episode.status, episode.steps[0].error) == ("cancelled", "not done: cancelled")
    assert session.page.url == site + "/"


# ---- ends before the model has written its reply


def test_a_cancelled_episode_ends_and_the_session_goes_on(agent: Agent, page: Page) -> None:
    with agent.open(Still(page), seed=1) as ours:

        def cancel(step: Step) -> None:
            ours.cancel()

        episode = ours.do("wander", on_step=cancel)
        assert episode.status in ("cancelled", "stopped")
        assert len(episode.steps) == 1
        assert len(ours.do("go on", max_steps=1).steps) == 1


@pytest.mark.parametrize("num_forwards", [0, 1, 3])
def test_a_reply_that_is_cancelled_anywhere_leaves_a_stream_that_goes_on(
    tiny_model: LocalModel, page: Page, num_forwards: int
) -> None:
    agent = Agent(tiny_model, "full", decoding="free", max_new_tokens=64)
    with agent.open(Still(page)) as ours:
        ours.do("begin", max_steps=1)
        conversation = conversation_of(ours)
        asked = itertools.count()
        conversation.is_cancelled = lambda: next(asked) == num_forwards
        episode = ours.do("go on")
        assert (episode.status, episode.steps) == ("cancelled", ())
        assert len(conversation._stream.turns) == 2
        assert read_and_pending(conversation) == stream_of(conversation)
        assert len(ours.do("and on", max_steps=1).steps) == 1
        assert read_and_pending(conversation) == stream_of(conversation)


def test_another_thread_may_cancel_a_reply(tiny_model: LocalModel, page: Page) -> None:
    agent = Agent(tiny_model, "full", decoding="free", max_new_tokens=20_000)
    with agent.open(Still(page)) as ours:
        thread = threading.Timer(0.3, ours.cancel)
        thread.start()
        with pytest.raises(Cancelled):
            while True:
                ours.ask("why?")
        thread.join()
        conversation = conversation_of(ours)
        assert read_and_pending(conversation) == stream_of(conversation)


@pytest.mark.sample("values")
@pytest.mark.parametrize("num_forwards", [1, 3, 9, 20])
@pytest.mark.parametrize("last_pages", [None, 1, 2])
def test_replies_that_are_cancelled_in_a_row_leave_every_turn_where_it_says(
    tiny_model: LocalModel, page: Page, num_forwards: int, last_pages: int | None
) -> None:
    model = tiny_model.with_cache(
        "full", decoding="free", max_new_tokens=32, chunk=16, last_pages=last_pages
    )
    with Agent(model).open(Still(page)) as ours:
        ours.ask("begin")
        conversation = conversation_of(ours)
        for number in range(3):
            asked = itertools.count()
            conversation.is_cancelled = lambda asked=asked: next(asked) == num_forwards  # type: ignore[misc]
            goal = "reach a goal of many words, " * 12
            assert ours.do(f"{goal}{number}", max_steps=1).status in ("cancelled", "step_limit")
            ids = read_and_pending(conversation)
            for turn in conversation._stream.turns:
                if not turn.is_forgotten:
                    whole = [*turn.shown, *turn.reply]
                    assert ids[turn.start : turn.start + len(whole)] == whole
        conversation.is_cancelled = lambda: False
        assert ours.do("go on", max_steps=1).steps
        conversation.cache.check()


def test_a_question_without_a_page_leaves_the_last_page_readable(
    tiny_model: LocalModel, page: Page
) -> None:
    agent = Agent(tiny_model, "full", last_pages=1, max_new_tokens=32)
    with agent.open(Still(page)) as ours:
        ours.do("look", max_steps=1)
        before = conversation_of(ours).cache.kept(0)[0][0].tolist()
        ours.ask("what?", look=False)
        assert set(before) <= set(conversation_of(ours).cache.kept(0)[0][0].tolist())
        ours.ask("and now?")
        assert not set(before) <= set(conversation_of(ours).cache.kept(0)[0][0].tolist())


def test_an_error_in_the_middle_of_a_reply_breaks_the_session(
    agent: Agent, page: Page, tmp_path: Path
) -> None:
    def interrupt() -> bool:
        raise KeyboardInterrupt

    with agent.open(Still(page)) as ours:
        ours.ask("one?")
        conversation_of(ours).is_cancelled = interrupt
        with pytest.raises(KeyboardInterrupt):
            ours.ask("two?")
        for call in (lambda: ours.ask("x"), lambda: ours.do("x"), lambda: ours.save(tmp_path)):
            with pytest.raises(BrokenConversation, match="begin another one, or load a saved one"):
                call()


def test_a_timeout_leaves_a_stream_that_goes_on(agent: Agent, page: Page) -> None:
    with agent.open(Still(page)) as ours:
        with pytest.raises(TimeoutError):
            ours.ask("why?", timeout_s=0)
        assert ours.do("go on", max_steps=1).steps
        conversation = conversation_of(ours)
        assert len(conversation._stream.turns) == 2
        assert read_and_pending(conversation) == stream_of(conversation)


# ---- files


def test_a_saved_session_goes_on_as_if_nothing_had_happened(
    agent: Agent, page: Page, tmp_path: Path
) -> None:
    # a page that stands still: what an action leaves behind in a browser may show in the next page
    with agent.open(Still(page), seed=5) as ours:
        ours.do("wander", max_steps=2)
        ours.save(tmp_path / "saved")
        ours.save(tmp_path / "saved")  # replaces the first
        expected = [ours.ask("Which berth?"), *ours.do("go on", max_steps=2).steps]
    assert len(list((tmp_path / "saved").iterdir())) == 2
    assert all(file.stat().st_mode & 0o77 == 0 for file in (tmp_path / "saved").iterdir())
    with Session.load(tmp_path / "saved", agent, Still(page)) as loaded:
        found = [loaded.ask("Which berth?"), *loaded.do("go on", max_steps=2).steps]
    for one, other in zip(expected, found, strict=True):
        if isinstance(one, Step) and isinstance(other, Step):
            assert without_times(one) == without_times(other)
            assert one.held, "the budget is small"
        else:
            assert one.text == other.text  # type: ignore[union-attr]
    assert expected[0].reply.cache == found[0].reply.cache  # type: ignore[union-attr]


def without_times(step: Step) -> Step:
    return replace(step, prefill_s=0.0, decode_s=0.0, seconds=0.0)


def test_a_session_with_changes_is_loaded_with_the_page_that_was_read(
    tiny_model: LocalModel, page: Page, tmp_path: Path
) -> None:
    agent = Agent(tiny_model, "full", observations="changes", max_new_tokens=32)
    with agent.open(Still(page)) as ours:
        ours.ask("one?")
        ours.save(tmp_path)
    with Session.load(tmp_path, agent, Still(page)) as loaded:
        assert "same: " in loaded.ask("two?").reply.observation


def saved_index(agent: Agent, page: Page, folder: Path) -> Path:
    with agent.open(Still(page)) as ours:
        ours.ask("one?")
        ours.save(folder)
    return folder / INDEX


def test_a_damaged_session_is_refused(agent: Agent, page: Page, tmp_path: Path) -> None:
    index = saved_index(agent, page, tmp_path)
    good = json.loads(index.read_text())
    damages: list[tuple[dict[str, object], str]] = [
        ({"version": 2}, "another version of agentkv wrote it: version"),
        ({"seen": 1}, "has read .* tokens, not 1"),
        ({"cache": "../../etc/passwd"}, "cache: String should match"),
        ({"cache": f"cache-{'0' * 16}.safetensors"}, r"incomplete: cache-0+\.safetensors cannot"),
        ({"settings": {"decoding": "free"}}, "decoding was 'free' and is 'constrained'"),
        ({"random": "AAAA"}, "random state"),
        ({"pending": [-1]}, "pending.0"),
        ({"extra": 1}, "extra: Extra inputs"),
    ]
    for change, problem in damages:
        index.write_text(json.dumps({**good, **change}))
        with pytest.raises(ConversationFileError, match=problem):
            Session.load(tmp_path, agent, Still(page))


def test_a_folder_without_a_session_is_refused(agent: Agent, page: Page, tmp_path: Path) -> None:
    with pytest.raises(ConversationFileError, match=r"holds no saved conversation.*Session\.save"):
        Session.load(tmp_path / "none", agent, Still(page))
    (tmp_path / INDEX).write_text("{")
    with pytest.raises(ConversationFileError, match="Invalid JSON"):
        Session.load(tmp_path, agent, Still(page))


def test_a_session_of_another_budget_policy_or_model_is_refused(
    agent: Agent,
    tiny_model: LocalModel,
    short_model: LocalModel,
    page: Page,
    tmp_path: Path,
) -> None:
    def alike(policy: str, budget: int, model: LocalModel = tiny_model) -> Agent:
        return Agent(model, policy, budget=budget, temperature=1.0, max_new_tokens=48)

    saved_index(agent, page, tmp_path)
    session = Still(page)
    with pytest.raises(ConversationFileError, match="budget 256; the agent has 128"):
        Session.load(tmp_path, alike("lookback-int8", 128), session)
    with pytest.raises(CacheFileError, match="lookback-int8"):
        Session.load(tmp_path, alike("window", 256), session)
    with pytest.raises(CacheFileError):
        Session.load(tmp_path, alike("lookback-int8", 256, short_model), session)
    with pytest.raises(ConversationFileError, match="temperature was 1.0 and is 0.0"):
        Session.load(tmp_path, Agent(tiny_model, "lookback-int8", budget=256), session)


def test_saving_deletes_no_file_of_another_name(agent: Agent, page: Page, tmp_path: Path) -> None:
    (tmp_path / "cache-mine.safetensors").touch()
    with agent.open(Still(page)) as ours:
        ours.ask("a lone surrogate \ud800?")
        ours.save(tmp_path)
        ours.save(tmp_path)
    assert (tmp_path / "cache-mine.safetensors").exists()
    assert len(list(tmp_path.iterdir())) == 3
    Session.load(tmp_path, agent, Still(page)).close()


def test_a_session_that_cannot_be_written_leaves_the_saved_one_intact(
    agent: Agent, page: Page, tmp_path: Path
) -> None:
    index = saved_index(agent, page, tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with agent.open(Still(page)) as ours:
        ours.ask("two?")
        index.rename(tmp_path / "aside")
        index.mkdir()  # the index cannot replace a folder
        (index / "in the way").touch()
        with pytest.raises((OSError, RuntimeError)):
            ours.save(tmp_path)
        (index / "in the way").unlink()
        index.rmdir()
        (tmp_path / "aside").rename(index)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    Session.load(tmp_path, agent, Still(page)).close()
