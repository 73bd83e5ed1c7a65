"""A replay says where the pages differ from the recorded ones."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentkv.trace import TraceWriter
from agentkv_env.page import Box, Cell, Node, Page
from agentkv_env.serialize import serialize
from agentkv_tasks.cli.app import cli
from agentkv_tasks.run.replay import Recorded, page_difference, replay
from tests.agentkv.agent.test_trace import STEP
from tests.tasks.runs import SMALL

PAGE = "url http://shop.localhost/\ntitle Shop\nlink Kayak [3]\n$39.00\nmore below"


@pytest.mark.parametrize(
    ("recorded", "present", "shown"),
    [
        (PAGE, PAGE, []),
        ("", PAGE, []),
        (PAGE, "", []),
        (
            PAGE,
            PAGE.replace("$39", "$41"),
            ["@@ -3,3 +3,3 @@", " link Kayak [3]", "-$39.00", "+$41.00", " more below"],
        ),
        # a part of the page was cut off
        ("url http://shop.localhost/\ntitle Shop\nmore below\ncut: 2 more lines", PAGE, []),
        ("url http://shop.localhost/\ntitle Shop\nlink Ka ...\ncut: 2 more lines", PAGE, []),
        ("url http://shop.localhost/\ntitle Stop\ncut: 3 more lines", PAGE, ["-title Stop"]),
        # a secret was masked
        (PAGE.replace("Kayak", "***"), PAGE, []),
        (PAGE.replace("Kayak", "*** x"), PAGE, ["-link *** x [3]", "+link Kayak [3]"]),
    ],
)
def test_the_first_lines_that_differ_are_named(
    recorded: str, present: str, shown: list[str]
) -> None:
    found = page_difference(recorded, present)
    assert bool(found) == bool(shown) and set(shown) <= set(found)


def test_a_difference_is_short_however_long_the_pages_are() -> None:
    one, other = ("\n".join(f"{sign} {i}" for i in range(500)) for sign in "ab")
    assert len(page_difference(one, other)) == 12


@pytest.mark.parametrize("layout", ["after", "before"])
@pytest.mark.parametrize("cell", [None, 0])
def test_a_replay_shows_pages_in_the_format_of_the_trace(layout: str, cell: int | None) -> None:
    nodes = (
        Node("text", "text", "$39.00", Box(1, 2, 3, 4)),
        Node("element", "link", "Kayak", Box(-1, 2, 3, 4), id=3),
    )
    if cell is not None:
        nodes = (replace(nodes[0], cell=Cell(1, cell)), replace(nodes[1], cell=Cell(1, cell + 1)))
    page = Page("http://shop.localhost/", "Shop", nodes)
    text = serialize(page, layout=layout).text  # type: ignore[arg-type]
    reply = Recorded((replace(STEP, observation=text),)).begin("x").reply(page)
    assert reply.observation == text
    changed = replace(STEP, observation=f"{text}\nsame: 20 lines")
    assert Recorded((changed,)).begin("x").reply(page).observation == ""
    boxed = replace(
        STEP, observation="url x\ntitle\ntext '$39.00' @1,2,3,4\n[3] link 'Kayak' @1,2,3,4"
    )
    assert Recorded((boxed,)).begin("x").reply(page).observation == ""


@pytest.mark.browser
def test_a_replay_names_the_step_whose_page_differs(tmp_path: Path) -> None:
    task = json.loads(SMALL.read_text())[0]

    def record(name: str, observation: str) -> Path:
        path = tmp_path / name
        with TraceWriter(path, head={"goal": "Stay.", "task": task, "world_seed": 75}) as trace:
            for index, reply in enumerate(("```scroll [down]```", "```stop []```")):
                shown = observation if index else "title x"
                trace.step(replace(STEP, index=index, observation=shown, reply=reply))
        return path

    pages: list[str] = []
    replay(record("one.jsonl", "title x"), on_step=lambda _, now: pages.append(now.observation))
    assert len(pages) == 2 and pages[1].startswith("url http://")
    output = CliRunner().invoke(cli, ["replay", str(record("two.jsonl", pages[1]))]).output
    assert "the page of step 1 differs from the recorded one" in output
    assert "      -title x" in output and "the page differed at step 1\n" in output
    assert "step 2" not in output
    changed = pages[1].replace("title ", "title Old ", 1)
    output = CliRunner().invoke(cli, ["replay", str(record("three.jsonl", changed))]).output
    assert "the page differed at steps 1, 2\n" in output
