"""`agentkv show` tells what the steps of recorded episodes read, did and forgot."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from rich.cells import cell_len
from typer.testing import CliRunner

from agentkv.trace import Episode, Step, TraceWriter
from agentkv_tasks.cli.app import cli
from agentkv_tasks.results import Results, Row
from tests.agentkv.agent.test_trace import STEP as PLAIN_STEP

MakeRow = Callable[..., Row]
STEERING = "\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202e [bold]x[/bold] [/red]"

STEP = replace(
    PLAIN_STEP,
    observation="url http://shop.localhost/\ntitle Shop\nlink Blue Kayak [3]\n$39.00",
    reply="link Blue Kayak\n```click [3]```",
    cache_bytes=4096,
    cache_peak_bytes=5120,
    token_ends=(4, 9, 15, 25, 31),
    confidences=(None, 0.93, 0.121, None, 0.5),
    piece_ends=(27, 38, 58, 64),
)
STEPS = (
    STEP,
    replace(
        STEP, index=1, turn=1, action="type [5] [kayak] [1]", num_evicted=1200,
        observation="title Found\nlink Red Tent [7]", piece_ends=(12, 29),
        held={"page 0": "0044", "reply 0": "2"}, note="error: nothing happened",
    ),
    replace(
        STEP, index=2, turn=2, action="stop [39]", num_evicted=1500,
        held={"page 0": "0004", "page 1": "30", "goal": "0"}, cold_bytes=2048,
    ),
)  # fmt: skip


def call(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(cli, ["show", *map(str, arguments)], env={"COLUMNS": "80"})
    assert all(cell_len(line) <= 80 for line in result.stdout.splitlines())
    return result


def record(folder: Path, stem: str, steps: tuple[Step, ...], **head: Any) -> None:
    head = {"goal": "What costs the kayak?", "task": {"task_id": 3}, "policy": "full", **head}
    with TraceWriter(folder / "traces" / f"{stem}.jsonl", head=head) as trace:
        for step in steps:
            trace.step(step)
        trace.end(Episode("stopped", "39", steps, seconds=1.0))


@pytest.fixture
def out(tmp_path: Path, row: MakeRow) -> Path:
    """A run of two policies on task 3, and one on task 4."""
    other = (STEPS[0], replace(STEPS[1], action="scroll [down]", held={"page 0": "0400"}))
    with Results(tmp_path / "results.jsonl") as results:
        for stem, policy, task, steps in (
            ("003-full-0-x", "full", 3, STEPS),
            ("003-window-0-y", "window", 3, other),
            ("004-full-0-z", "full", 4, STEPS[:1]),
        ):
            record(tmp_path, stem, steps, policy=policy, task={"task_id": task})
            cold = 1024 if (policy, task) == ("full", 3) else 0
            made = row(policy=policy, task_id=task, steps=len(steps), kv_peak_bytes=5120)
            made = replace(made, kv_cold_bytes=cold)
            results.append(replace(made, trace=f"traces/{stem}.jsonl", reason="the price"))
    return tmp_path


def test_a_folder_lists_its_episodes(out: Path) -> None:
    lines = call(out).output.splitlines()
    names = ["task", "policy", "seed", "status", "score", "steps", "hot", "cold", "all"]
    assert lines[0].split() == names
    assert [line.split()[:6] for line in lines[1:]] == [
        ["3", "full", "0", "stopped", "1", "3"],
        ["3", "window", "0", "stopped", "1", "2"],
        ["4", "full", "0", "stopped", "1", "1"],
    ]
    assert lines[1].split()[6:] == ["5.0", "KiB", "1.0", "KiB", "6.0", "KiB"]
    assert lines[2].split()[6:] == ["5.0", "KiB", "-", "5.0", "KiB"]
    assert len(call(out, "--policy", "window").output.splitlines()) == 2


def test_an_episode_is_told_step_by_step(out: Path) -> None:
    output = call(out, "3", "--policy", "full").output
    for text in (
        "What costs the kayak?",
        "1 click [3]",
        "on: link Blue Kayak",
        "note: error: nothing happened",
        "100 tokens in, 9 out; least sure 0.12: link Blue> Kayak< ```clic",
        "cache 4.0 KiB; 1,200 entries evicted",
        "cache 4.0 KiB, cold 2.0 KiB; 300 entries evicted",
        "forgot page 1: 2 pieces: url http://shop.localhost/; title Shop",
        "forgot reply 1: 1 in part",
        "to the cold tier: page 1: 1 piece: link Blue Kayak [3]",
        "to the cold tier: page 2: 1 piece, 1 in part: link Red Tent [7]",
        "to the cold tier: goal: all of it",
        "stopped after 3 steps, score 1 (the price)",
        "answer: 39",
    ):
        assert text in output, text
    assert call(out, "003-full").output == output


def test_one_step_is_shown_whole_with_what_was_forgotten_of_its_page(out: Path) -> None:
    output = call(out, "003-full", "--step", "1").output
    assert 'forced .......... "link"' in output and ' 0.121 #......... " Kayak"' in output
    assert "    2 | url http://shop.localhost/" in output and "    3 | link Blue Kayak" in output
    assert "      | $39.00" in output
    output = call(out, "003-full", "--step", "3").output
    assert "- link Red Tent [7]" in output
    gone = replace(STEP, held={"page 0": "0124"})
    record(out, "005", (gone,))
    lines = call(out, "005", "--step", "1").output.splitlines()
    assert "x   1 | url http://shop.localhost/" in lines
    assert "~     | title Shop" in lines and "      | $39.00" in lines


def test_two_episodes_are_compared_up_to_where_they_part(out: Path) -> None:
    output = call(out, "3", "--policy", "full", "--against", "window").output
    lines = output.splitlines()
    assert "!  2  type [5] [kayak] [1] " in output and "scroll [down]" in output
    assert "   1  click [3] on link Blue Kayak " in output
    assert "the actions part at step 2 (!)" in lines
    assert "the pages of all common steps are equal" in lines
    assert "before that step the cache of window held all that it had read" in lines
    back = call(out, "003-window", "--against", "003-full").output
    assert "full: stopped after 3 steps, score 1 (the price)" in back
    later = (*STEPS[:2], replace(STEPS[2], action="go_back", observation="title Other"))
    record(out, "003-h2o-0-v", later, policy="h2o")
    output = call(out, "003-full", "--against", "h2o").output
    assert "the actions part at step 3 (!)" in output
    assert "the pages differ first at step 3 (~)" in output
    assert "before that step the cache of h2o held in part or not at all:" in output
    assert "page 1: 2 pieces: url http://shop.localhost/; title Shop" in output


def test_a_comparison_breaks_lines_between_words(out: Path) -> None:
    element = "combobox Colour of the kayak = midnight blue (options: blue | red | midnight blue)"
    steps = (replace(STEPS[0], observation=f"{element} [3]", piece_ends=(len(element),)), STEPS[1])
    record(out, "003-h2o-0-v", steps, policy="h2o")
    lines = call(out, "003-full", "--against", "h2o").output.splitlines()
    head = next(place for place, line in enumerate(lines) if line.split() == ["full", "h2o"])
    column = lines[head].index("h2o")
    second = next(place for place, line in enumerate(lines) if line[:4].strip(" !~") == "2")
    cells = [line[column:].strip() for line in lines[head + 1 : second]]
    assert len(cells) > 2 and " ".join(cells) == f"click [3] on {element}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["9"], "no episode of task '9'; there are: 003-full-0-x, 003-window-0-y, 004"),
        (["3"], "has several episodes; give --policy or one of: 003-full-0-x, 003-window-0-y"),
        (["3", "--policy", "h2o"], "no episode under the policy 'h2o'; there are: full, window"),
        (["4", "--step", "2"], "004-full-0-z has the steps 1 to 1; found 2"),
        (["4", "--against", "window"], "no other episode of the task matches"),
        (["003-full", "--against", "h2o"], "there are: 003-window-0-y"),
        (["--step", "2"], "about one task; give its number"),
    ],
)
def test_a_wrong_request_names_what_there_is(out: Path, arguments: list[str], message: str) -> None:
    result = call(out, *arguments)
    assert result.exit_code == 2 and message in result.stderr and result.stderr.count("\n") == 1


def test_a_single_trace_and_a_script_can_be_shown(tmp_path: Path) -> None:
    bare = replace(
        STEP, token_ends=(), confidences=(), piece_ends=(), seen_tokens=0, observation=""
    )
    record(tmp_path, "one", (bare,), model="stop")
    output = call(tmp_path / "traces" / "one.jsonl").output
    assert "does not say what was forgotten" in output and "tokens in" not in output
    assert "link Blue Kayak" in call(tmp_path, "one", "--step", "1").output
    assert call(tmp_path).output == output


def test_no_text_of_a_page_acts_on_the_terminal(tmp_path: Path) -> None:
    text = f"a{STEERING}\nb"
    hostile = replace(
        STEP, url=text, observation=text, reply=text, action=text, error=text, note=text,
        token_ends=(3, len(text)), confidences=(0.1, None), piece_ends=(len(text),),
        held={"page 0": "0", STEERING: "0"},
    )  # fmt: skip
    for stem in ("003-a", "003-b"):
        record(tmp_path, stem, (hostile, replace(hostile, index=1, turn=1)), goal=text, policy=stem)
    for arguments in (
        [],
        ["003-a"],
        ["003-a", "--step", "1"],
        ["003-a", "--against", "003-b"],
    ):
        output = call(tmp_path, *arguments).output
        assert not set("\x1b\x07\x9b\x7f\u202e") & set(output)
    assert "[bold]x[/bold]" in call(tmp_path, "003-a").output


def test_wide_characters_are_cut_and_aligned_by_their_cells(tmp_path: Path) -> None:
    wide = "青いカヤックを買い物かごに入れる" * 9
    step = replace(
        STEP, observation=f"{wide}\n", reply=wide, action=f"type [1] [{wide}]", token_ends=(),
        confidences=(), piece_ends=(),
    )  # fmt: skip
    for stem in ("003-a", "003-b"):
        record(tmp_path, stem, (step,), policy=stem)
    for arguments in (["003-a"], ["003-a", "--step", "1"], ["003-a", "--against", "003-b"]):
        lines = call(tmp_path, *arguments).output.splitlines()
    columns = next(line for line in lines if line.count("type [1]") == 2)
    assert cell_len(columns[: columns.rindex("type")]) == 6 + (80 - 6) // 2
    whole = call(tmp_path, "003-a", "--step", "1").output
    assert "".join(line.strip(" |") for line in whole.splitlines()).count(wide) == 2


def test_a_trace_with_absurd_places_is_shown_all_the_same(tmp_path: Path) -> None:
    absurd = replace(
        STEP, token_ends=(-5, 10**9, 2), confidences=(float("nan"), -3.0, 1e9), num_evicted=-7,
        piece_ends=(10**9, -1), turn=-4, held={"page -4": "\u0663x", "page 9": "", "": "0"},
    )  # fmt: skip
    record(tmp_path, "one", (absurd, replace(absurd, index=1)))
    for arguments in (["one"], ["one", "--step", "2"], ["one", "--against", "one"]):
        result = call(tmp_path, *arguments)
        assert result.exit_code in (0, 2) and not isinstance(result.exception, IndexError)
    line = json.dumps({"schema": 1, "kind": "head"})
    (tmp_path / "traces" / "two.jsonl").write_text(line + "\n")
    assert "interrupted after 0 steps" in call(tmp_path, "two").output
