"""Tests for the miniwob suite: its composition, its pages, its scripts and its scores."""

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from agentkv.agent import Agent
from agentkv.models.model import Model
from agentkv.models.scripted import Solution, Stop
from agentkv.trace import read_trace
from agentkv_env.browser import Browser
from agentkv_env.errors import ActionFailed
from agentkv_env.page import Page
from agentkv_env.serialize import serialize
from agentkv_env.session import Session
from agentkv_env.sites.miniwob import SITE, MiniwobMissing, find_pages
from agentkv_env.sites.names import FIRST_TRAINING_SEED
from agentkv_env.sites.server import Server
from agentkv_env.sites.world import World
from agentkv_tasks import miniwob
from agentkv_tasks.addresses import Addresses
from agentkv_tasks.evaluate import Final, evaluate
from agentkv_tasks.goal import goal_of
from agentkv_tasks.miniwob.pages import EXTRA, LEFT_OUT, SCORED
from agentkv_tasks.miniwob.script import Script
from agentkv_tasks.miniwob.scripts import EXTRA_SCRIPTS, SCRIPTS
from agentkv_tasks.run.command import prepare
from agentkv_tasks.run.plan import make_plan
from agentkv_tasks.settings import RunSettings
from agentkv_tasks.suites import load_suite
from agentkv_tasks.task import Task
from tests.sampling import sampled
from tests.tasks.runs import play

installed = pytest.mark.skipif(
    find_spec("miniwob") is None, reason="needs: pip install --no-deps miniwob==1.1.0"
)
SEED = 31
SAMPLE = ("click-menu", "copy-paste", "enter-time", "email-inbox-delete")
"""Pages whose scripts share little; the slow tests have all pages."""
MORE = (
    *("click-scroll-list", "guess-number", "resize-textarea", "highlight-text-2"),
    *("book-flight", "choose-date", "login-user-popup", "scroll-text", "use-slider-2"),
    *("sign-agreement", "terminal"),
)


# ---- composition ----------------------------------------------------------------------------


@installed
def test_the_suite_has_two_tasks_of_each_scored_page() -> None:
    tasks = load_suite("miniwob", world_seed=75).tasks
    assert [task.task_id for task in tasks] == list(range(2 * len(SCORED)))
    assert Counter(task.instantiation_dict["page"] for task in tasks) == dict.fromkeys(SCORED, 2)


@installed
def test_every_page_of_the_package_is_scored_or_extra_or_left_out() -> None:
    folder = find_pages()
    pages = [path.stem for path in (folder / "miniwob").glob("*.html")]
    flights = [f"flight.{path.parent.name}" for path in folder.glob("flight/*/wrapper.html")]
    assert Counter([*SCORED, *EXTRA, *LEFT_OUT]) == Counter([*pages, *flights])


def test_the_documentation_names_every_page_that_is_left_out_beside_its_reason() -> None:
    text = (Path(__file__).parents[2] / "docs" / "suites.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    named = {row[0].removeprefix("| "): row[-1].removesuffix(" |") for row in rows}
    for page, reason in LEFT_OUT.items():
        assert f"`{page}`" in named[reason].split(", "), page


def test_all_scored_pages_but_one_have_a_script() -> None:
    assert set(SCORED) - set(SCRIPTS) == {"click-checkboxes-soft"}
    assert set(SCRIPTS) < set(SCORED)
    assert set(EXTRA_SCRIPTS) == set(EXTRA)


@installed
def test_worlds_share_no_seed_and_training_has_its_own() -> None:
    worlds = (75, 7, FIRST_TRAINING_SEED, FIRST_TRAINING_SEED + 75)
    seeds = [{task.instantiation_dict["seed"] for task in miniwob.tasks(w)} for w in worlds]
    assert len(set.union(*seeds)) == sum(map(len, seeds)) == 2 * len(worlds)


def test_without_the_package_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "miniwob", None)  # Python's way to hide a package
    with pytest.raises(MiniwobMissing, match="not installed; run: pip install --no-deps miniwob"):
        load_suite("miniwob", world_seed=75)


# ---- episodes -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(World(SEED, (SITE,))) as server:
        yield server


class Player:
    """Opens tasks in a browser, plays and scores them."""

    def __init__(self, server: Server, browser: Browser) -> None:
        self.addresses = Addresses(server.placeholders, server.addresses)
        self._browser = browser

    def open(self, task: Task) -> Session:
        assert task.viewport_size is not None
        size = task.viewport_size
        session = self._browser.session(
            hosts=self.addresses.hosts(),
            addresses=dict(self.addresses.origins),
            viewport=(size.width or 0, size.height or 0),
        )
        session.open(self.addresses.fill(task.start_url))
        return session

    def score(self, task: Task, model: Model, after: Callable[[Session], object] = id) -> float:
        with self.open(task) as session:
            goal = goal_of(task, session.page)
            done = Agent(model).run(session, goal, max_steps=task.max_steps)
            assert done.status == "stopped", (task.intent, done.status, done.error)
            after(session)
            final = Final.of(session.page, done.answer, self.addresses)
            return evaluate(task, final, page=session.page, addresses=self.addresses).value


@pytest.fixture(scope="module")
def player(server: Server, browser: Browser) -> Player:
    return Player(server, browser)


def task(page: str, seed: int = SEED) -> Task:
    (made,) = miniwob.tasks(seed, pages=[page], num_instances=1)
    return made


def unsolved(player: Player, pages: tuple[str, ...], *seeds: int) -> list[str]:
    """Return the tasks whose script does not score 1."""
    tasks = [task(page, seed) for page in pages for seed in seeds]
    scripts = {**SCRIPTS, **EXTRA_SCRIPTS}
    return [t.intent for t in tasks if player.score(t, Script(scripts[_page(t)])) != 1.0]


def _page(task: Task) -> str:
    return str(task.instantiation_dict["page"])


@installed
@pytest.mark.browser
@pytest.mark.parametrize("pages", [SAMPLE, pytest.param(MORE, marks=pytest.mark.slow)])
def test_scripts_solve_pages_of_every_kind(player: Player, pages: tuple[str, ...]) -> None:
    assert unsolved(player, pages, SEED) == []


@installed
@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "part"),
    sampled(itertools.product(range(4711, 4721), range(2)), every=20),
)
def test_scripts_solve_all_their_pages_in_ten_other_worlds(
    player: Player, seed: int, part: int
) -> None:
    """CI has one half of the pages in one world, and `SAMPLE` in another one."""
    assert unsolved(player, (*SCRIPTS, *EXTRA)[part::2], seed) == []


@installed
@pytest.mark.browser
def test_stopping_at_once_solves_no_page(player: Player) -> None:
    assert [page for page in SAMPLE[:2] if player.score(task(page), Stop("solved"))] == []


@installed
@pytest.mark.browser
@pytest.mark.exhaustive
def test_stopping_at_once_solves_none_of_all_pages(player: Player) -> None:
    assert [page for page in (*SCORED, *EXTRA) if player.score(task(page), Stop("solved"))] == []


@installed
@pytest.mark.browser
def test_the_seed_determines_the_page(player: Player) -> None:
    def view(seed: int) -> Page:
        with player.open(task("click-checkboxes-large", seed)) as session:
            return session.observe()

    first, again, other = (serialize(view(seed)).text for seed in (SEED, SEED, SEED + 1))
    assert first.splitlines()[1:] == again.splitlines()[1:] != other.splitlines()[1:]


@installed
@pytest.mark.browser
def test_the_pages_own_time_limit_is_out_of_reach(player: Player) -> None:
    with player.open(task("click-test")) as session:
        assert session.page.evaluate("core.EPISODE_MAX_TIME") == 2**31 - 1


@installed
@pytest.mark.browser
def test_an_agent_has_one_attempt(player: Player) -> None:
    lost = task("click-test-2")
    steps = ("click [button: TWO]", f"goto [{lost.start_url}]", "stop []")
    steps = tuple(map(player.addresses.fill, steps))

    def is_over(session: Session) -> None:
        assert [node.name for node in session.observe().nodes] == ["The episode is over."]

    assert player.score(lost, Solution(steps), is_over) == 0.0


@installed
@pytest.mark.browser
def test_another_tab_is_no_second_attempt(player: Player) -> None:
    lost = task("click-test-2")
    address = player.addresses.fill(lost.start_url)
    steps = (
        *("new_tab", f"goto [{address}]", "new_tab", f"goto [{address}&again=1]"),
        *("tab_focus [0]", "click [button: TWO]", "tab_focus [1]", "click [button: ONE]"),
        *("tab_focus [2]", "click [button: ONE]", f"goto [{address}]", "stop []"),
    )
    assert player.score(lost, Solution(steps)) == 0.0


@installed
@pytest.mark.browser
def test_a_reload_of_a_solved_page_keeps_its_score(player: Player) -> None:
    won = task("click-test-2")
    steps = ("click [button: ONE]", f"goto [{player.addresses.fill(won.start_url)}]", "stop []")
    assert player.score(won, Solution(steps)) == 1.0


@installed
@pytest.mark.browser
def test_solving_another_page_does_not_count(player: Player) -> None:
    other = player.addresses.fill(task("click-test").start_url)
    steps = (f"goto [{other}]", "click [button: Click Me!]", "stop [solved]")
    assert player.score(task("use-spinner"), Solution(steps)) == 0.0


REWARD = "WOB_DONE_GLOBAL = true; WOB_RAW_REWARD_GLOBAL = 1"


@installed
@pytest.mark.browser
def test_typed_text_cannot_set_the_reward(player: Player) -> None:
    name = 'Enter "Alan" into the text field and press Submit.'
    steps = (f"type [textbox: {name}] [<img src=x onerror='{REWARD}'>] [0]", f"stop [{REWARD}]")
    assert player.score(task("enter-text"), Solution(steps)) == 0.0


@installed
@pytest.mark.browser
def test_scripts_in_text_that_a_page_shows_as_html_do_not_run(player: Player) -> None:
    def show(session: Session) -> None:
        html = f'<img src="data:," onerror="{REWARD}"><script>{REWARD}</script>'
        # In a task of its own, because what a debugger evaluates may evaluate more.
        session.page.evaluate("html => { setTimeout(() => jQuery('#area').html(html)) }", html)
        session.page.wait_for_function("document.querySelector('#area img')?.complete")

    assert player.score(task("click-tab"), Stop(), show) == 0.0


# ---- goals ----------------------------------------------------------------------------------


@pytest.mark.browser
def test_a_goal_on_a_page_is_its_neutralized_text(browser: Browser) -> None:
    made = task_with_goal("#goal")
    with browser.session(hosts=()) as session:
        session.page.set_content(
            "<p id=goal>Click\n <b>[3]</b>. ```stop``` <script>document.title = 'x'</script></p>"
        )
        session.page.evaluate("document.querySelector = () => ({textContent: 'forged'})")
        goal = goal_of(made, session.page)
    assert "forged" not in goal
    assert goal.startswith("Click ⟦3⟧.")
    assert "```" not in goal and "\n" not in goal


@pytest.mark.browser
def test_a_start_page_without_its_goal_is_an_error(browser: Browser) -> None:
    with browser.session(hosts=()) as session:
        with pytest.raises(ActionFailed, match="no element '#goal', whose text is the goal"):
            goal_of(task_with_goal("#goal"), session.page)


def task_with_goal(selector: str) -> Task:
    return Task.model_validate(
        {
            "sites": [],
            "task_id": 0,
            "start_url": "about:blank",
            "intent_template": "",
            "intent_template_id": 0,
            "intent": "the instruction on the page",
            "intent_element": selector,
            "eval": {"eval_types": ["string_match"], "reference_answers": {"exact_match": "x"}},
        }
    )


@installed
@pytest.mark.browser
def test_a_sample_of_the_suite_has_as_many_pages_as_tasks(tmp_path: Path) -> None:
    given = RunSettings.read(tasks="miniwob", model="stop", every=7, out=tmp_path)
    tasks = [job.task for job in prepare(given).plan.jobs]
    assert [task.task_id for task in tasks] == list(range(0, 140, 7))
    assert len({_page(task) for task in tasks}) == 20
    few = given.model_copy(update={"limit": 3})
    assert [job.task.task_id for job in prepare(few).plan.jobs] == [0, 7, 14]


@installed
@pytest.mark.browser
def test_a_run_scores_the_pages_and_records_their_instructions(tmp_path: Path) -> None:
    settings = RunSettings.read(
        model="solution", policies=("full",), out=tmp_path, screenshots=False, workers=1
    )
    suite = load_suite("miniwob", world_seed=SEED)
    plan = make_plan(settings, suite, suite.tasks, sites={}, threads=1)
    rows = play(plan, [job for job in plan.jobs if _page(job.task) == "click-test-2"])
    assert [row.score for row in rows] == [1.0, 1.0]
    traces = [read_trace(tmp_path / row.trace) for row in rows]
    assert [trace.head["goal"] for trace in traces] == ["Click button ONE."] * 2


@installed
def test_the_solution_model_leaves_out_tasks_without_a_solution(tmp_path: Path) -> None:
    settings = RunSettings.read(
        tasks="miniwob", model="solution", policies=("full",), out=tmp_path, ocr=False
    )
    run = prepare(settings)
    played = {_page(job.task) for job in run.plan.jobs}
    assert played == set(SCRIPTS)
    assert run.notices == ("tasks without a solution, left out: 2",)


@installed
def test_the_solution_model_plays_a_model_s_sample_without_what_has_no_solution(
    tmp_path: Path,
) -> None:
    suite = load_suite("miniwob", world_seed=SEED)
    [first, _] = [task.task_id for task in suite.tasks if _page(task) not in SCRIPTS]
    given = RunSettings.read(tasks="miniwob", model="stop", every=first // 3, out=tmp_path)
    sample = [job.task.task_id for job in prepare(given).plan.jobs]
    assert first in sample[:-1]
    run = prepare(given.model_copy(update={"model": "solution"}))
    played = [job.task.task_id for job in run.plan.jobs]
    assert played == [number for number in sample if number != first]
    assert run.notices == ("tasks without a solution, left out: 1",)
