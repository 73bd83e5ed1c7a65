"""The command line: help, lists, and usage errors in one line with exit code 2."""

import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from rich.live import Live
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

from agentkv.advice import ADVICE
from agentkv.defaults import POLICY
from agentkv.policies.registry import DECLARED
from agentkv.terminal import Terminal
from agentkv.trace import read_trace
from agentkv_env.named_secrets import Secret
from agentkv_tasks.cli.app import cli
from agentkv_tasks.cli.options import read_secrets
from agentkv_tasks.provenance import versions
from agentkv_tasks.run.episode_runner import blank_row
from agentkv_tasks.run.plan import make_plan
from agentkv_tasks.settings import RunSettings
from agentkv_tasks.suites import load_suite

SMALL = Path(__file__).parents[1] / "tasks" / "data" / "small.json"


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def test_help_names_all_commands_and_fits_80_columns() -> None:
    output = call("--help").output
    for command in (
        "run",
        "report",
        "policies",
        "plan",
        "tasks",
        "sites",
        "act",
        "mcp",
        "record",
        "show",
        "replay",
        "doctor",
    ):
        assert command in output
        assert all(len(line) <= 80 for line in call(command, "--help").output.splitlines())
    for command in ("list", "check", "new"):
        assert command in call("tasks", "--help").output
        lines = call("tasks", command, "--help").output.splitlines()
        assert all(len(line) <= 80 for line in lines)


def test_help_loads_neither_torch_nor_the_browser() -> None:
    code = (
        "import sys, agentkv_tasks.cli.app\n"
        "sys.exit(bool({'torch', 'playwright'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=SMALL.parents[3]).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["run", "--tasks", "vwa76"],
            "unknown suite or file 'vwa76'; did you mean 'vwa75'? suites",
        ),
        (["run", "--policies", "full,gatd"], "unknown policy 'gatd'; known: "),
        (["run", "--policies", "lookbak"], "'lookbak'; did you mean 'lookback'? known: ada-"),
        (
            ["run", "--tasks", str(SMALL), "--model", "solutoin"],
            "did you mean 'solution'? scripts: solution, stop",
        ),
        (["plan", "mine.gguf"], "mine.gguf: there is no such file"),
        (
            ["plan", "me/model-GGUF"],
            "names a repository of GGUF files; give the path of one of its",
        ),
        (["act", "--goal", "x"], "give the start page with --url, or a Chrome with --connect"),
        (["act", "--goal", "x", "--connect", "http://a.test:9222"], "is another machine"),
        (
            ["act", "--goal", "x", "--url", "http://a.test", "--confirm"],
            "--confirm asks on a terminal, and standard input or error is none",
        ),
        (
            ["act", "--goal", "x", "--url", "http://a.test", "--confirm", "--dry-run"],
            "--confirm and --dry-run exclude one another",
        ),
        (["run", "--policies", "full,,window"], "holds an empty name"),
        (["run", "--policies", "full,full"], "named twice"),
        (["run", "--seeds", "one"], "seeds.0: expected a whole number, found 'one'"),
        (
            ["run", "--decoding", "magic"],
            "decoding: expected 'constrained' or 'free', found 'magic'",
        ),
        (["run", "--scoring", "kind"], "scoring: expected 'compat' or 'mended', found 'kind'"),
        (
            ["run", "--observations", "some"],
            "observations: expected 'whole' or 'changes', found 'some'",
        ),
        (["run", "--limit", "0"], "limit: expected greater than or equal to 1"),
        (["run", "--workers", "0"], "workers: expected greater"),
        (["run", "--world-seed", "-1"], "world_seed: expected greater"),
        (["run", "--site", "SHOPPING"], "--site 'SHOPPING': expected NAME=VALUE"),
        (["run", "--config", "nowhere.toml"], "cannot read nowhere.toml"),
        (["run", "--browser-path", "/nowhere/chromium"], "/nowhere/chromium"),
        (["run", "--no-such-option"], "--no-such-option"),
        (["run", "--site", "X=http://[bad"], "expected NAME=http://host"),
        (["run", "--seeds", "²"], "expected a whole number"),
        (["run", "--seeds", "9" * 5000], "expected a whole number"),
        (["run", "--temperature", "inf"], "temperature"),
        (["run", "--temperature", "nan"], "temperature"),
        (["run", "--temperature", "1e-320"], "must be 0, or at least 0.001"),
        (["run", "--timeout", "inf"], "timeout_s"),
        (["run", "--step-timeout", "inf"], "step_timeout_s: expected"),
        (["run", "--out", "a\0b"], "holds a zero byte"),
        (["act", "--url", "http://a.test", "--goal", "\udcff"], "bytes that are not UTF-8"),
        (["act", "--url", "http://[bad", "--goal", "x"], "is not a web address"),
        (["tasks", "a" * 5000], "File name too long"),
        (["tasks", "/dev/zero"], "longer than 64000000 bytes"),
        (["policies", "gatd"], "unknown policy 'gatd'; known: ada-pyramidkv"),
        (["run", "--policies", "mine.toml"], "cannot read mine.toml"),
        (["tasks", "vwa76"], "unknown suite or file 'vwa76'"),
        (["tasks", "list", "vwa76"], "unknown suite or file 'vwa76'"),
        (["tasks", "check", "nowhere.toml"], "cannot read nowhere.toml: No such file or directory"),
        (["tasks", "check", str(SMALL)], "small.json is no TOML"),
        (["report", "nowhere"], "nowhere/results.jsonl: cannot be read"),
        (["replay", "nowhere"], "neither a trace nor a folder"),
        (["show", "nowhere"], "neither a trace nor a folder"),
        (["act", "--url", "shop", "--goal", "buy"], "'shop' is not a web address"),
        (["act", "--url", "http://a.test", "--goal", "buy", "--policy", "gatd"], "unknown policy"),
        (
            ["act", "--url", "http://a.test", "--goal", "buy", "--observations", "some"],
            "observations: expected 'whole' or 'changes', found 'some'",
        ),
    ],
    ids=lambda value: ascii(value)[:60],
)
def test_a_usage_error_says_what_is_expected_before_anything_starts(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if arguments[0] == "run" and "--tasks" not in arguments:
        arguments = [*arguments, "--tasks", str(SMALL), "--model", "stop"]
    result = call(*arguments)
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert "Traceback" not in result.output
    assert not list(tmp_path.iterdir())


def test_a_misspelled_field_of_a_task_file_is_rejected_by_name(tmp_path: Path) -> None:
    tasks = json.loads(SMALL.read_text())
    tasks[1]["intnet"] = "oops"
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(tasks))
    result = call("run", "--tasks", str(path), "--model", "stop", "--out", str(tmp_path / "out"))
    assert result.exit_code == 2
    assert "mine.json: task 1 (number 1): intnet" in result.output


def test_a_placeholder_without_a_site_is_rejected(tmp_path: Path) -> None:
    tasks = json.loads(SMALL.read_text())
    tasks[0]["start_url"] = "__GITLAB__/x"
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(tasks))
    result = call("run", "--tasks", str(path), "--model", "stop", "--out", str(tmp_path / "out"))
    assert result.exit_code == 2
    assert "task 0 needs __GITLAB__" in result.output and "__SHOPPING__" in result.output


def test_policies_are_listed_in_a_line_each_within_80_columns() -> None:
    lines = call("policies").output.splitlines()
    assert all(len(line) <= 80 and line == line.rstrip() for line in lines)
    names = [line.split()[0] for line in lines if "  " in line]
    assert sorted(names) == sorted(DECLARED)
    assert names.index("int4") < names.index("lookback-int8") < names.index("window")
    assert not any(line.endswith("...") for line in lines)
    assert f"The default is {POLICY}." in lines[-2]


def test_policies_are_listed_with_their_parts_parameters_and_papers_within_80_columns() -> None:
    lines = call("policies", "--long").output.splitlines()
    about = lines[lines.index("conf-kv-int8") :]
    assert "8 bits" in about[1] and about[2].count(" / ") == 5
    assert any("threshold=0.7" in line for line in about)
    assert "    CONF-KV (arXiv 2605.24786)" in about
    assert "    (no parameters)" in lines[lines.index("full") : lines.index("window")]
    assert all(len(line) <= 80 and line == line.rstrip() for line in lines)


def test_a_budget_that_a_policy_ignores_is_said_in_a_line() -> None:
    given = ("plan", "nano", "--policies", "full,window,int4", "--budget")
    note = "agentkv: note: the budget 700 has no effect on full, int4, which keep every token"
    assert [line for line in call(*given, "700").output.splitlines() if note in line]
    assert "note" not in call("plan", "nano", "--policies", "full").output


def test_one_policy_is_explained_down_to_its_parameters() -> None:
    lines = call("policies", "ada-pyramidkv").output.splitlines()
    assert lines[:2] == ["ada-pyramidkv", "    `ada-snapkv` with the layers of `pyramidkv`."]
    parts = [
        line.split(":")[0].strip() for line in lines if line.startswith("    ") and ": " in line
    ]
    assert parts[:5] == ["gate", "allocator", "scorer", "selector", "precision"]
    beta = lines.index("    beta=20")
    assert "The last layer gets 1 / beta" in lines[beta + 1]
    assert "Ada-KV (arXiv 2407.11550)" in lines[-1]
    assert all(len(line) <= 80 for line in lines)


def test_tasks_are_listed_and_printed_in_the_schema_of_task_files(tmp_path: Path) -> None:
    listed = call("tasks", str(SMALL)).output
    assert "Stay on the home page." in listed
    path = tmp_path / "again.json"
    path.write_text(call("tasks", str(SMALL), "--json").output)
    for arguments in ([str(path), "--json"], ["--json", str(path)], ["list", str(path), "--json"]):
        assert call("tasks", *arguments).output == path.read_text()
    assert call("tasks").output == call("tasks", "vwa75").output


def test_options_override_the_settings_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = tmp_path / "run.toml"
    settings.write_text(f'tasks = "{SMALL}"\nmodel = "stop"\npolicies = ["gatd"]\n')
    assert "unknown policy 'gatd'" in call("run", "--config", str(settings)).output
    output = call("run", "--config", str(settings), "--policies", "gate").output
    assert "unknown policy 'gate'" in output


def test_several_runs_are_reported_as_one_table(tmp_path: Path) -> None:
    rows = [
        json.dumps({
            **{"suite": "small", "world_seed": world, "task_id": 0, "category": "form"},
            **{"policy": policy, "policy_parameters": {}, "model": "nano", "seed": 0},
            **{"status": "stopped", "success": policy == "full", "score": 1.0, "schema": 1},
        })
        for world in (75, 76)
        for policy in ("full", "window")
    ]  # fmt: skip
    for name, lines in (("a", rows[:2]), ("b", rows[2:])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.jsonl").write_text("\n".join(lines) + "\n")
    folders = [str(tmp_path / name) for name in ("a", "b")]
    output = call("report", *folders, "--markdown").output
    assert "| 0 won, 2 lost, -100.0 (-100.0 to -100.0) points, p 1.000 |" in output
    assert not list(tmp_path.glob("**/report.html"))
    output = call("report", *folders).output
    assert f"report: {tmp_path / 'report.html'}" in output and "0/2" in output
    refused = call("report", *folders, "--against", "full,h2o")
    assert refused.exit_code == 2 and "no policy 'h2o'" in refused.output


STEERING = "\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202e"


def test_an_error_quotes_no_credentials() -> None:
    output = call("run", "--tasks", str(SMALL), "--site", "SHOP1=http://bo:k3y99999@a.test/").output
    assert "http://***@a.test" in output and "k3y99999" not in output


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("hunter22", "expected NAME=env:VARIABLE"),
        ("shop=hunter22", "expected NAME=env:VARIABLE"),
        ("shop=env:NO_SUCH_VARIABLE", "NO_SUCH_VARIABLE is not set or empty"),
        ("shop@a/b=env:PATH", "is no host name"),
        ("shop=file:{open}", "run chmod 600"),
    ],
)
def test_a_secret_comes_from_a_variable_or_a_private_file_only(
    given: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "open").write_text("hunter22")
    (tmp_path / "open").chmod(0o644)
    given = given.format(open=tmp_path / "open")
    refused = call("act", "--url", "http://a.test", "--goal", "x", "--secret", given)
    assert refused.exit_code == 2 and message in refused.output
    assert "hunter22" not in refused.output


@pytest.mark.parametrize(
    "command", [("act", "--url", "http://a.test", "--goal", "x"), ("mcp", "--hosts", "a.test")]
)
def test_dialogs_are_answered_in_one_of_three_ways(command: tuple[str, ...]) -> None:
    refused = call(*command, "--dialogs", "never")
    assert refused.exit_code == 2
    assert "'never' is not one of 'ask', 'accept', 'dismiss'" in refused.output


def test_a_goal_may_name_only_secrets_that_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "hunter22")
    given = ("act", "--url", "http://a.test", "--secret", "shop=env:SHOP_PASSWORD")
    refused = call(*given, "--goal", "Log in with <secret:bank>")
    assert refused.exit_code == 2
    assert "no <secret:bank>; there are: <secret:shop>" in refused.output


def test_a_secret_of_one_of_several_hosts_names_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "hunter22")
    with pytest.raises(ValueError, match="say on which host"):
        read_secrets(["shop=env:SHOP_PASSWORD"], ["a.test", "b.test"])
    found = read_secrets(["shop@b.test=env:SHOP_PASSWORD"], ["a.test", "b.test"])
    assert found == {"shop": Secret("hunter22", ["b.test"])}
    assert read_secrets(["shop=env:SHOP_PASSWORD"], ["a.test"])["shop"].hosts == ["a.test"]


def test_no_text_controls_the_terminal(tmp_path: Path) -> None:
    row = {
        **{"suite": "small", "world_seed": 75, "task_id": 0, "category": "form"},
        **{"policy": f"full{STEERING}", "policy_parameters": {}, "model": "nano", "seed": 0},
        **{"status": f"crash{STEERING}", "success": False, "score": 0.0, "schema": 1},
    }
    (tmp_path / "results.jsonl").write_text(json.dumps({**row, "error": STEERING}) + "\n")
    tasks = json.loads(SMALL.read_text())
    tasks[0] |= {"intent": f"Say {STEERING}", "start_url": "__NOSITE__/"}
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(tasks))
    results = [
        call("report", str(tmp_path)),
        call("report", str(tmp_path), "--markdown"),
        call("tasks", str(path)),
        call("run", "--tasks", f"nowhere{STEERING}"),
        call("act", "--url", f"http:{STEERING}", "--goal", "buy"),
    ]
    assert [result.exit_code for result in results] == [0, 0, 0, 2, 2]
    for result in results:
        assert not set(STEERING) - set("0123456789;owned[]J m") & set(result.output)
        assert "␛" in result.output


def test_a_terminal_shows_our_styles_and_no_control_characters() -> None:
    file = io.StringIO()
    console = Terminal(file=file, force_terminal=True, color_system="standard", width=60)
    table = Table()
    table.add_column(STEERING)
    table.add_row(Text(f"a{STEERING}", style="red"))
    with Live(table, console=console, refresh_per_second=1):
        console.print(Text(STEERING, style="red"))
    output = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())  # rich's own
    assert "owned" in output and "␛]0;owned␛[2J�31m␡�" in output  # rich drops the bell itself
    assert not set("\x1b\x07\x9b\x7f\u202e") & set(output)


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ("²", "budget '²' is neither"),
        ("9" * 400 + "MiB", "expected a number, a share such as '25%'"),
        ("0", "at least one token"),
        ("many", "budget 'many' is neither"),
    ],
    ids=lambda value: ascii(value)[:12],
)
def test_an_invalid_budget_is_rejected_before_anything_starts(
    budget: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call("run", "--tasks", str(SMALL), "--budget", budget)
    assert result.exit_code == 2 and message in result.output
    assert not list(tmp_path.iterdir())


def test_an_error_is_one_line_without_control_characters(tmp_path: Path) -> None:
    result = call("tasks", str(tmp_path / "a\n\x1b[31mb"))
    assert result.stderr.count("\n") == 1 and "\x1b" not in result.stderr
    assert "␛[31mb" in result.stderr


def test_a_run_does_not_resume_rows_of_other_versions_weights_or_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = RunSettings.read(model="nano", tasks=str(SMALL), policies=("full",), out=tmp_path)
    suite = load_suite(str(SMALL), world_seed=75)
    plan = make_plan(settings, suite, suite.tasks, sites={}, threads=1)
    assert len(plan.weights) == 16
    row = replace(blank_row(plan, plan.jobs[0]), versions=versions(), commit="0123456789ab")
    settings_then = dict(row.settings)
    del settings_then["weights"]
    for made, message in (
        (replace(row, versions={**versions(), "torch": "1.0"}), "torch was 1.0, now "),
        (replace(row, versions={**versions(), "agentkv": "0.0.1"}), "agentkv was 0.0.1, now "),
        (replace(row, settings={**row.settings, "weights": "0" * 16}), "weights was '0000"),
        (replace(row, settings=settings_then), "weights was '', now '"),
    ):
        (tmp_path / "results.jsonl").write_text(made.to_json() + "\n")
        result = call(
            *("run", "--tasks", str(SMALL), "--policies", "full", "--out", str(tmp_path)),
            *("--no-ocr",) if not plan.row_settings["ocr"] else (),
        )
        assert result.exit_code == 2
        assert message in result.output and "--fresh" in result.output


@pytest.mark.browser
def test_act_keeps_a_trace_with_screenshots_and_says_how_it_ended(tmp_path: Path) -> None:
    out = tmp_path / "acted"
    given = ("act", "--url", "http://shop.localhost/", "--goal", "buy", "--out", str(out))
    result = call(*given, "--model", "stop", "--json")
    step, end = map(json.loads, result.stdout.splitlines())
    assert result.exit_code == 0
    assert (step["action"], step["url"]) == ("stop []", "http://shop.localhost/")
    assert end == {
        "status": "stopped",
        "answer": "",
        "error": "",
        "success": None,
        "advice": "",
        "num_steps": 1,
    }
    assert len(read_trace(out / "trace.jsonl").steps) == 1
    assert [path.name for path in (out / "screenshots").iterdir()] == ["000.jpg"]
    again = call(*given, "--model", "stop")
    assert again.exit_code == 2 and "has a trace.jsonl already" in again.output
    failed = call(*given[:5], "--model", "random", "--max-steps", "1")
    assert failed.exit_code == 1 and "step_limit after 1 step" in failed.output
    assert failed.output.splitlines()[-1] == ADVICE["step_limit"]


@pytest.mark.browser
def test_a_dry_run_looks_around_and_ends_before_the_first_change(tmp_path: Path) -> None:
    given = ("act", "--url", "http://shop.localhost/", "--goal", "x", "--dry-run", "--json")
    result = call(*given, "--model", "random")
    *steps, end = map(json.loads, result.stdout.splitlines())
    assert result.exit_code == 0 and end["status"] == "cancelled"
    assert [step["error"] == "not done: cancelled" for step in steps][-1]
    assert end["not_done"].startswith(steps[-1]["action"])
    assert not {step["action"].split()[0] for step in steps[:-1]} - {"scroll", "go_back"}
