"""Tests for the BrowserGym agent, with BrowserGym's own observations, parser and actions."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkv.adapters.browsergym import PAGE, BrowserGymAgent
from agentkv.adapters.browsergym_calls import to_calls
from agentkv.adapters.browsergym_page import Bids, page_of
from agentkv.agent import Agent
from agentkv.models.local import LocalModel
from agentkv.models.scripted import Solution
from agentkv_env.actions import Action, ActionError, ActionKind, Point
from agentkv_env.page import Box, Node, Page
from agentkv_env.serialize import serialize
from tests.agentkv.adapters.conftest import Gym
from tests.agentkv.agent.fixed_replies import FixedReplies

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[3]

HTML = """<title>Shop</title><h1>Boats</h1><p>The <b>Heron</b>: berth 42.</p><a href="/x">Home</a>
<label>Search <input value="kayak"></label>
<label>Password <input type="password" value="geheim"></label>
<select aria-label="Colour"><option>Red<option selected>Blue</select>
<div onclick="this.textContent = 'Tapped'">Tap me</div><img alt="A boat">
<input type="checkbox" checked aria-label="Yes"><button disabled>No</button>
<iframe srcdoc="<button>Inside</button>"></iframe>
<div><div>One</div><div>Two</div></div>
<div><span>$9</span><span>2 left</span></div><p style="display: none">Hidden</p>
<div style="height: 3000px"></div><p>Far below</p>"""

LINES = """url about:blank
title Shop
heading Boats
The Heron: berth 42.
link Home [0]
textbox Search = kayak [1]
textbox Password = ******** (password) [2]
combobox Colour = Blue (options: Red | Blue) [3]
button Tap me [4]
image A boat
checkbox Yes (checked) [5]
button No (disabled) [6]
button Inside [7]
One
Two
$9 2 left
more below"""


def test_an_observation_reads_as_one_of_our_pages(gym: Gym) -> None:
    gym.page.set_content(HTML)
    assert serialize(page_of(gym.observe(), Bids())).text == LINES


def test_a_box_that_is_half_checked_reads_as_mixed(gym: Gym) -> None:
    gym.page.set_content("""<input type=checkbox aria-label=All id=all>
        <button aria-pressed=mixed>Bold</button><script>all.indeterminate = true</script>""")
    states = [node.states for node in page_of(gym.observe(), Bids()).nodes]
    assert states == [("mixed",), ("mixed",)]


def test_a_row_of_a_table_is_one_line_for_chat_models(gym: Gym) -> None:
    gym.page.set_content(
        "<table><tr><th>Order<th>Boxes<th><tr><td>1043<td><input value=2><td><button>Ship</button>"
        "<tr><td>1044<td><input value=5><td><button>Ship</button></table>"
    )
    page = page_of(gym.observe(), Bids())
    assert serialize(page, layout="before").text.splitlines()[2:] == [
        "columns Order | Boxes",
        "row 1043 | [0] textbox '' value: 2 | [1] Ship",
        "row 1044 | [2] textbox '' value: 5 | [3] Ship",
    ]


def test_scrolling_shows_what_is_below_and_keeps_the_numbers(gym: Gym) -> None:
    gym.page.set_content(HTML + "<button>Last</button>")
    agent = BrowserGymAgent(Agent(Solution(["scroll [down]", "stop"])))
    for _ in range(8):  # a wheel turns by a screen
        gym.act(agent, "scroll(0, 720)")
    bids = Bids()
    page_of(gym.observe(), bids)
    gym.page.mouse.wheel(0, -9999)
    gym.page.wait_for_function("scrollY === 0")
    top = page_of(gym.observe(), bids)
    assert [node.id for node in top.nodes if node.id is not None] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert (top.pixels_above, top.pixels_below > 2000) == (0, True)


def test_actions_have_their_effect_in_browsergym(gym: Gym) -> None:
    gym.page.set_content(HTML)
    steps = [
        'type [textbox: Search] [it\'s a "boat" # 7] [0]',
        "type [combobox: Colour] [Red] [0]",
        "click [checkbox: Yes]",
        "click [button: Tap me]",
        "click [button: Inside]",
        "hover [link: Home]",
        "clear [textbox: Password]",
        "press [Shift+Tab]",
        "new_tab",
        "tab_focus [0]",
        "close_tab",
        "stop [berth 42]",
    ]
    agent = BrowserGymAgent(Agent(Solution(steps), strict=True))
    first = gym.page
    for step in range(len(steps)):
        calls, info = agent.get_action(agent.obs_preprocessor(gym.observe()))
        if step == 8:
            assert first.get_by_label("Search").input_value() == 'it\'s a "boat" # 7'
            assert first.get_by_label("Colour").input_value() == "Red"
            assert not first.get_by_label("Yes").is_checked()
            assert first.get_by_text("Tapped").is_visible()
            assert first.get_by_label("Password").input_value() == ""
            assert first.get_by_label("Search").evaluate(
                "field => field === document.activeElement"
            )
        gym.act(agent, calls)
        assert gym.error == ""
    assert gym.messages == ["berth 42"]
    assert set(info) == {"think", "stats", "extra_info"}


def test_enter_after_typing_sends_the_form(gym: Gym, site: str) -> None:
    gym.page.goto(site + "/")
    agent = BrowserGymAgent(Agent(Solution(["type [textbox: Search] [kayak] [1]", "go_back"])))
    for title in ("Found", "Home"):
        calls, _ = agent.get_action(gym.observe())
        gym.act(agent, calls)
        gym.page.wait_for_function(f"document.title === '{title}'")


def test_a_model_decides_on_one_cache_for_all_steps(
    gym: Gym, site: str, tiny_model: LocalModel
) -> None:
    gym.page.goto(site + "/")
    gym.goal = "find the Heron"
    agent = BrowserGymAgent(
        Agent(tiny_model, "lookback-int8", budget=256, temperature=1.0, max_new_tokens=48), seed=2
    )
    seen = 0
    for _ in range(3):
        obs = agent.obs_preprocessor(gym.observe())
        assert "axtree_object" not in obs and isinstance(obs[PAGE], Page)
        calls, info = agent.get_action(obs)
        stats = info["stats"]
        # what the template puts between a reply and the next page counts as neither
        assert 0 < stats["seen_tokens"] - seen <= stats["tokens_in"] + stats["tokens_out"]
        seen = stats["seen_tokens"]
        gym.act(agent, calls)
        gym.goal = "count to two"  # goes on with the same cache
    assert seen > 200


def test_an_error_of_browsergym_is_told_to_the_model(gym: Gym) -> None:
    gym.page.set_content("<button>Go [7]</button>")
    model = FixedReplies(["```click [0]```"])
    agent = BrowserGymAgent(Agent(model))
    agent.get_action(gym.observe())
    gym.error = "TimeoutError: <button>Go [7]</button> is ```covered\nCall log: ..."
    agent.get_action(gym.observe())
    assert model.notes == ["", "error: TimeoutError: <button>Go ⟦7⟧</button> is '''covered"]


def test_a_reply_that_cannot_be_carried_out_does_nothing_and_is_explained(gym: Gym) -> None:
    gym.page.set_content(HTML)
    model = FixedReplies(
        ["hm", "```click [99]```", "```type [3] [Green] [0]```", "```click [0]```"]
    )
    agent = BrowserGymAgent(Agent(model))
    calls = [agent.get_action(gym.observe())[0] for _ in range(4)]
    assert calls[:3] == ["noop(0)"] * 3 and calls[3].startswith("click(")
    assert [note.partition(":")[0] for note in model.notes] == ["", "error", "error", "error"]
    assert "no option 'Green'" in model.notes[3]


PAGE_WITH_A_FIELD = Page("", "", (Node("element", "textbox", "Note", Box(0, 0, 1, 1), id=0),))


@settings(max_examples=settings.default.max_examples // 3)
@given(text=st.text())
def test_any_text_reaches_browsergym_as_it_is(text: str, browsergym: None) -> None:
    from browsergym.core.action.parsers import highlevel_action_parser

    bids = Bids()
    bids.number("a51")
    for action, expected in (
        (Action("type", element_id=0, text=text), [["fill", ["a51", text]], _ENTER]),
        (Action("stop", answer=text), [["send_msg_to_user", [text]]]),
        (Action("goto", url=text), [["goto", [text]]]),
    ):
        calls = to_calls(action, PAGE_WITH_A_FIELD, bids)
        assert highlevel_action_parser.parse_string(calls, parse_all=True).as_list() == expected


_ENTER = ["keyboard_press", ["Enter"]]


def test_every_action_is_one_of_the_action_set(browsergym: None) -> None:
    agent = BrowserGymAgent(Agent(Solution([])))
    bids = Bids()
    bids.number("a51")
    actions: list[Action] = [
        *(Action(kind, element_id=0) for kind in ("click", "hover", "type", "clear")),
        *(Action(kind) for kind in ("new_tab", "close_tab", "go_back", "go_forward", "stop")),
        Action("press", key="ctrl+a"),
        Action("goto", url="http://shop.localhost/"),
        Action("scroll", direction="up"),
        Action("tab_focus", tab=1),
        *(Action(kind, element_id=0) for kind in ("double_click", "right_click", "select_text")),
        *(Action(kind, element_id=0, text="x") for kind in ("append", "insert")),
        *(Action(kind, element_id=0, point=Point(5, 6)) for kind in _AT_POINTS),
        Action("drag", element_id=0, target_id=0),
        Action("drag", element_id=0, target_id=0, target_point=Point(50, 50, "%")),
        Action("scroll", direction="left", element_id=0),
        Action("choose", element_id=0),
        Action("wait"),
    ]
    codes = [
        agent.action_set.to_python_code(to_calls(action, PAGE_WITH_A_FIELD, bids)).splitlines()[-1]
        for action in actions
    ]
    assert "keyboard_press('Control+a')" in codes and "scroll(0, -720)" in codes


_AT_POINTS: tuple[ActionKind, ...] = ("click", "double_click", "right_click", "hover")


def test_actions_at_points_become_places_in_the_viewport() -> None:
    bids = Bids()
    bids.number("a51")
    field = Node("element", "textbox", "Note", Box(100, 200, 50, 20), id=0)
    page = Page("", "", (field,))
    for action, expected in (
        (Action("click", element_id=0, point=Point(5, 6)), "mouse_click(105, 206)"),
        (Action("right_click", element_id=0), "click('a51', 'right')"),
        (
            Action("drag", element_id=0, target_id=0, target_point=Point(100, 50, "%")),
            "mouse_drag_and_drop(125, 210, 150, 210)",
        ),
        (
            Action("scroll", direction="down", element_id=0),
            "mouse_move(125, 210)\nscroll(0, 20)",
        ),
    ):
        assert to_calls(action, page, bids) == expected


def test_no_file_is_uploaded_through_browsergym() -> None:
    bids = Bids()
    bids.number("a51")
    action = Action("upload", element_id=0, items=("/etc/passwd",))
    with pytest.raises(ActionError, match="cannot be done here"):
        to_calls(action, PAGE_WITH_A_FIELD, bids)


def test_a_deeply_nested_page_is_read(gym: Gym) -> None:
    def node(number: int, **more: Any) -> dict[str, Any]:
        return {"nodeId": str(number), "role": {"value": "generic"}, "childIds": [], **more}

    depth = 20_000
    nodes = [node(number, childIds=[str(number + 1)]) for number in range(depth)]
    nodes.append(node(depth, role={"value": "StaticText"}, name={"value": "Deep"}, childIds=["0"]))
    page = page_of({"axtree_object": {"nodes": nodes}}, Bids())
    assert [each.name for each in page.nodes] == ["Deep"]


def test_without_browsergym_the_action_set_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['browsergym'] = None;"
        "from agentkv.adapters.browsergym import BrowserGymAgent; from agentkv import Agent;"
        "from agentkv.models.scripted import Stop; BrowserGymAgent(Agent(Stop())).action_set"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert "PackageMissing: this needs browsergym-core" in done.stderr
