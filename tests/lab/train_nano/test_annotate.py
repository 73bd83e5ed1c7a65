"""Tests for annotated replies: notes, quotations of the goal and quotations of notes."""

from dataclasses import replace

import pytest
from tokenizers import Tokenizer

from agentkv.dialog.grammar import Grammar
from agentkv.dialog.prompt import PlainTemplate
from agentkv.dialog.quotes import MAX_NOTES
from agentkv.models.scripted import resolve
from agentkv_env.actions import extract, parse
from agentkv_env.page import Box, Node, Page
from agentkv_env.sites.names import FIRST_TRAINING_SEED
from agentkv_env.sites.server import Server
from agentkv_env.sites.world import World
from agentkv_tasks.suites import SUITES
from agentkv_tasks.task import Task
from agentkv_tasks.template import says
from tests.tasks.text_walk import Walk, walk
from train_nano.annotate import annotate
from train_nano.data import is_grounded
from train_nano.drills import Drills
from train_nano.episode import RecordedEpisode, RecordedTurn, load
from train_nano.lookups import gathering_episode, lookup_episode
from train_nano.train import MODEL, RECORDINGS

TOKENIZER = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
TEMPLATE = PlainTemplate(TOKENIZER)
GRAMMAR = Grammar(TOKENIZER, end_id=min(TEMPLATE.end_ids))
BOX = Box(0, 0, 1, 1)
DOTS = str.maketrans("[]`()'", "......")
"""Maps characters that `neutralize` may replace to one character."""
SEARCH = Node("element", "textbox", "Search", BOX, id=2)


def make_page(title: str, *texts: str, host: str = "wiki", links: tuple[str, ...] = ()) -> Page:
    nodes = [SEARCH, *(Node("text", "text", text, BOX) for text in texts)]
    nodes += [Node("element", "link", name, BOX, id=10 + i) for i, name in enumerate(links)]
    return Page(f"http://{host}.localhost/{title}", title, tuple(nodes))


def make_episode(goal: str, *steps: tuple[Page, str]) -> RecordedEpisode:
    turns = [RecordedTurn(page, resolve(line, page, goal=goal)) for page, line in steps]
    return RecordedEpisode(goal, tuple(turns))


def replies(episode: RecordedEpisode) -> list[str]:
    return [turn.reply.partition("```")[0] for turn in annotate(episode).turns]


TOWNS = make_episode(
    "When were Bribury, Mirdal and Elford founded? Answer with the years.",
    (make_page("Home"), "type [textbox: Search] [Bribury] [1]"),
    (make_page("Bribury", "Founded | 1241"), "type [textbox: Search] [Mirdal] [1]"),
    (make_page("Mirdal", "Founded | 1501"), "type [textbox: Search] [Elford] [1]"),
    (make_page("Elford", "Founded | 1167"), "stop [1241, 1501, 1167]"),
)


def test_a_fact_that_a_later_step_needs_is_noted_with_its_subject() -> None:
    annotated = replies(TOWNS)
    assert annotated[1].startswith("read Bribury: Founded | 1241\n")
    assert annotated[2].startswith("read Mirdal: Founded | 1501\n")
    assert annotated[3].startswith(
        "from Bribury: Founded | 1241; Bribury, Mirdal: Founded | 1501; "
    )


def test_a_fact_of_the_current_page_is_quoted_without_a_subject() -> None:
    assert replies(TOWNS)[3].endswith("; Founded | 1167\n")


def test_quoted_notes_continue_in_the_goal_only_forward_and_nearby() -> None:
    goal = "When were Elford and Bribury founded? " + "Take your time. " * 8 + "And Mirdal? "
    steps = (
        (make_page("Home"), "type [textbox: Search] [Bribury] [1]"),
        (make_page("Bribury", "Founded | 1241"), "type [textbox: Search] [Elford] [1]"),
        (make_page("Elford", "Founded | 1167"), "type [textbox: Search] [Mirdal] [1]"),
        (make_page("Mirdal", "Founded | 1501"), "type [textbox: Search] [home] [1]"),
        (make_page("Home"), "stop [1241, 1167, 1501]"),
    )
    last = replies(make_episode(goal, *steps))[-1]
    assert last == "from Bribury: Founded | 1241; Elford: Founded | 1167; Mirdal: Founded | 1501\n"


def test_the_goal_is_quoted_from_the_last_item_to_the_current_one_with_the_next_words() -> None:
    annotated = replies(TOWNS)
    assert annotated[0] == "for When were Bribury | , Mirdal and Elford\nat Search\n"
    assert "\nfor Bribury, Mirdal | and Elford founded? Answer\n" in annotated[1]
    assert "\nfor Mirdal and Elford | founded? Answer with the\n" in annotated[2]


def test_a_step_to_another_site_belongs_to_the_next_item_of_the_goal() -> None:
    episode = make_episode(
        "Read the price of the Red Lamp. Then find Bribury in the wiki.",
        (
            make_page("Lamp", "Price | $3", host="shop", links=("All sites",)),
            "click [link: All sites]",
        ),
        (make_page("Sites", host="home", links=("Wiki",)), "click [link: Wiki]"),
        (make_page("Wiki"), "type [textbox: Search] [Bribury] [1]"),
        (make_page("Bribury"), "stop [$3]"),
    )
    assert replies(episode) == [
        "read Read the price of: Price | $3\nfor Bribury in the wiki | .\nat All sites\n",
        "at Wiki\n",
        "for Lamp. Then find Bribury | in the wiki.\nat Search\n",
        "from Read the price of: Price | $3\n",
    ]


def test_a_fact_is_noted_on_the_page_that_was_opened_to_read_it() -> None:
    episode = make_episode(
        "Read the seller of the Red Lamp, then put the Blue Kettle into the cart. Who is it?",
        (make_page("Home"), "type [textbox: Search] [Red Lamp] [1]"),
        (make_page("Red", "Seller | Ona"), "type [textbox: Search] [Blue Kettle] [1]"),
        (make_page("Blue", "Reviewed by | Ona", links=("Add",)), "click [link: Add]"),
        (make_page("Cart"), "stop [Ona]"),
    )
    annotated = replies(episode)
    assert annotated[1].startswith("read Red Lamp: Seller | Ona\n")
    assert annotated[3] == "from Red Lamp: Seller | Ona\n"


def test_a_step_without_training_weight_starts_no_item_of_the_goal() -> None:
    turns = list(TOWNS.turns)
    mistake = replace(turns[1], reply="go_back\n```go_back```", counts=False)
    annotated = replies(replace(TOWNS, turns=(turns[0], mistake, *turns[1:])))
    assert annotated[1] == "go_back\n"
    assert "\nfor Bribury, Mirdal | and Elford founded? Answer\n" in annotated[2]


def test_a_typed_text_may_combine_a_fact_of_a_page_with_words_of_the_goal() -> None:
    episode = make_episode(
        "Who founded what? Search the shop for that company and Pen Set.",
        (make_page("Ona", "She founded Elrilum"), "go_back"),
        (make_page("Shop", host="shop"), "type [textbox: Search] [Elrilum Pen Set] [1]"),
    )
    assert replies(episode)[0].startswith("read Who founded what? Search: She founded Elrilum\n")
    assert "from Who founded what? Search: She founded Elrilum; Pen Set\n" in replies(episode)[1]


def test_a_label_that_ends_with_another_name_stands_for_that_name() -> None:
    page = make_page("Thread", links=("onafen", "Reply to onafen"))
    episode = make_episode(
        "Reply to nobody but onafen.", (page, "click [link: Reply to onafen]"), (page, "stop []")
    )
    assert replies(episode)[0] == "for to nobody but onafen | .\nat Reply to onafen\n"


def has_goal_part(reply: str) -> bool:
    return any(line.startswith("for ") for line in reply.splitlines())


@pytest.fixture(scope="module", params=[FIRST_TRAINING_SEED, FIRST_TRAINING_SEED + 5])
def solved(request: pytest.FixtureRequest) -> list[tuple[Task, Walk]]:
    """The tasks of vwa75 in a training world with walks through their solutions."""
    unscored = says(must_include=["."])  # some checks need a real browser
    with Server(World(request.param)) as server:
        return [
            (task, walk(task.model_copy(update={"eval": unscored}), server))
            for task in SUITES["vwa75"].tasks(server.world)
        ]


def test_every_wording_of_a_goal_has_parts_that_the_steps_work_on(
    solved: list[tuple[Task, Walk]],
) -> None:
    """A wording has a part for at least half as many replies as the best wording of its task."""
    poor = []
    for task, walked in solved:
        turns = tuple(
            RecordedTurn(*pair) for pair in zip(walked.pages, walked.replies, strict=True)
        )
        counts = {
            goal: sum(has_goal_part(reply) for reply in replies(RecordedEpisode(goal, turns)))
            for goal in (task.intent, *task.paraphrases)
        }
        poor += [goal for goal, count in counts.items() if count < max(counts.values()) / 2]
    assert poor == []


EPISODES = [
    *(Drills(seed).walk(12) for seed in range(15)),
    *(lookup_episode(Drills(seed), 12) for seed in range(15)),
    *(gathering_episode(Drills(seed), 12) for seed in range(15)),
    *(
        episode
        for suite in ("miniwob", "vwa75", "vwa-long")
        for episode in [*filter(is_grounded, load(RECORDINGS / f"{suite}-1000000.jsonl.xz"))][::3]
    ),
]
"""Made episodes, and recorded ones of a world of each suite: all worlds take half a minute to
read, in every process that collects tests."""


@pytest.mark.parametrize("episode", EPISODES, ids=lambda episode: episode.name)
def test_actions_are_unchanged_and_the_grammar_accepts_annotated_replies(
    episode: RecordedEpisode,
) -> None:
    annotated = annotate(episode)
    for old, new in zip(episode.turns, annotated.turns, strict=True):
        assert parse(extract(old.reply)) == parse(extract(new.reply))
        matcher = GRAMMAR.start(new.page, episode.goal)
        for id in TEMPLATE.reply(new.reply)[:-1]:
            matcher.consume([id])
        assert matcher.is_complete
        lines = new.reply.splitlines()
        assert sum(line.startswith("read ") for line in lines) <= MAX_NOTES


@pytest.mark.parametrize("episode", EPISODES[::5], ids=lambda episode: episode.name)
def test_every_quotation_was_noted_or_is_on_the_page_or_in_the_goal(
    episode: RecordedEpisode,
) -> None:
    notes: set[str] = set()
    for turn in annotate(episode).turns:
        page_text = "\n".join(" ".join(node.name.split()) for node in turn.page.nodes)
        for line in turn.reply.splitlines():
            if line.startswith("read "):
                notes.add(line.removeprefix("read "))
            if line.startswith("from "):
                rest = line.removeprefix("from ")
                for note in sorted(notes, key=len, reverse=True):
                    rest = rest.replace(note, "")
                for part in filter(None, map(str.strip, rest.split("; "))):
                    quote = part.strip(", ").translate(DOTS)
                    sources = (page_text.translate(DOTS), episode.goal.translate(DOTS))
                    assert any(quote in source for source in sources)
