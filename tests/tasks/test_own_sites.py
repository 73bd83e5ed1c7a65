"""Sites of one's own: written, checked and run, with a real browser and real processes."""

import json
import os
import re
import shutil
import socket
import stat
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from typer.testing import CliRunner, Result

from agentkv_env.browser import Browser
from agentkv_tasks.addresses import Addresses
from agentkv_tasks.cli.app import cli
from agentkv_tasks.evaluate.expressions import syntax_errors
from agentkv_tasks.own_sites import serving, sign_in
from agentkv_tasks.own_sites.serving import OwnServer, SiteError, answers
from agentkv_tasks.own_sites.sign_in import SignInError
from agentkv_tasks.own_sites.site_file import read_site_file
from agentkv_tasks.results import RETRIED
from agentkv_tasks.run.command import prepare
from agentkv_tasks.run.played_task import begun
from agentkv_tasks.run.unreset import UnresetError, unreset_sites
from agentkv_tasks.settings import RunSettings
from agentkv_tasks.task import Task
from tests.local_site import Handler, served
from tests.tasks.runs import REPOSITORY, complete_rows, play, play_all, run
from tests.tasks.test_secrets import spellings

pytestmark = pytest.mark.browser

SECRET = "qu&et <otter> 99"
FILE = """
tasks = "tasks.json"
[sites.diary]
address = "http://127.0.0.1:{port}"
start = ["{python}", "diary.py", "{port}"]
reset = { get = "/reset" }
[sites.diary.login]
page = "/login"
name = "Name"
password = "Password"
button = "Enter"
shows = "Leave"
[sites.diary.accounts.anna]
password = { env = "DIARY_PASSWORD" }
"""
BO = """[sites.diary.accounts.bo]
password = { env = "DIARY_PASSWORD" }
"""
UNRESET = FILE.replace('reset = { get = "/reset" }\n', "")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    rooms = os.pathsep.join(str(REPOSITORY / room) for room in (".", "env", "kernels", "tasks"))
    monkeypatch.setenv("PYTHONPATH", rooms)
    monkeypatch.setenv("DIARY_PASSWORD", SECRET)


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that these tests wait for ever comes."""
    monkeypatch.setattr(serving, "_ENDING_S", 0.2)
    monkeypatch.setattr(sign_in, "STEP_S", 2.0)
    monkeypatch.setattr(sign_in, "FORM_S", 0.5)


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(each) for each in arguments])


def task(number: int = 0, **changes: Any) -> dict[str, Any]:
    return {
        "sites": ["diary"],
        "task_id": number,
        "require_login": True,
        "start_url": "__DIARY__/",
        "intent_template": "Whose diary is it?",
        "intent_template_id": number,
        "intent": "Whose diary is it?",
        "eval": {
            "eval_types": ["string_match"],
            "reference_answers": {"exact_match": "anna"},
        },
        "solution": ["stop [anna]"],
        **changes,
    }


def write(folder: Path, *tasks: dict[str, Any], text: str = FILE) -> Path:
    shutil.copy(Path(__file__).with_name("diary.py"), folder)
    (folder / "tasks.json").write_text(json.dumps(tasks))
    path = folder / "mine.toml"
    path.write_text(text)
    return path


def verdicts(result: Result) -> dict[str, str]:
    """Name of each check to its verdict and detail."""
    lines = [line for line in result.output.splitlines() if line[:8].strip()]
    return {line[8:32].strip(): f"{line[:8].strip()}: {line[32:].strip()}" for line in lines}


def test_a_new_file_passes_its_check_and_is_not_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "first"
    assert call("tasks", "new", folder).exit_code == 0
    assert stat.S_IMODE((folder / "anna.password").stat().st_mode) == 0o600
    checked = call("tasks", "check", folder / "notes.toml")
    assert checked.exit_code == 0, checked.output
    assert {line.split()[0] for line in checked.output.splitlines()} == {"ok"}
    assert verdicts(checked)["task 1 solution"] == "ok: passes in 5 steps"
    assert (folder / "anna.password").read_text().strip() not in checked.output
    before = {path: path.read_bytes() for path in folder.iterdir()}
    (folder / "notes.toml").unlink()
    again = call("tasks", "new", folder)
    assert again.exit_code == 2 and "tasks.json exists already" in again.output
    assert not (folder / "notes.toml").exists()
    assert all(path.read_bytes() == before[path] for path in folder.iterdir())


def by_name(number: int, name: str) -> dict[str, Any]:
    """A task in which an agent logs in with the secret `name`."""
    steps = ["type [textbox: Name] [anna] [0]", f"type [textbox: Password] [{name}] [1]"]
    intent = f"Log in as anna with {name} and say whose diary it is."
    steps += ["goto [__DIARY__/]", "stop [anna]"]
    return task(number, require_login=False, intent=intent, solution=steps)


def test_workers_play_sites_of_their_own_and_write_no_password(tmp_path: Path) -> None:
    said = {"eval_types": ["string_match"], "reference_answers": {"exact_match": f"1: {SECRET}"}}
    path = write(
        tmp_path,
        task(0),
        task(1, storage_state="bo", solution=["stop [bo]"]),
        task(2, eval=said, solution=[f"stop [1: {SECRET}]"]),
        task(3, solution=["goto [__DIARY__/broken]", f"goto [__DIARY__/enter?password={SECRET}]"]),
        by_name(4, "<secret:anna>"),
        task(5, solution=["goto [http://diary.localhost/end]", "stop [nobody]"]),
        text=FILE + BO,
    )
    out = tmp_path / "out"
    output = run(out, "--tasks", str(path), "--model", "solution", "--workers", "2")
    rows = {row.task_id: row for row in complete_rows(out)}
    assert rows[0].success and rows[2].success and rows[4].success, output
    assert rows[1].answer == "bo" and not rows[1].success
    assert rows[0].settings["sites"] == {"__DIARY__": "http://diary.localhost"}
    assert rows[5].status == "env_error" and len(rows[5].attempts) == 1, output
    assert "site diary: `start` ended with exit code 0" in rows[5].error
    files = [each for each in out.rglob("*") if each.is_file()]
    assert len(files) > 6
    for text in (output, *(each.read_text() for each in files)):
        assert [each for each in spellings(SECRET) if each in text] == []
    assert "Diary of bo" in next(out.glob("traces/001*")).read_text()
    by_its_name = next(out.glob("traces/004*.jsonl")).read_text()
    assert "type [2] [<secret:anna>] [1]" in by_its_name
    assert "/enter?name=anna&password=<secret:anna>" in by_its_name


def test_a_page_hides_only_the_secrets_that_its_task_names(
    browser: Browser, tmp_path: Path
) -> None:
    file = read_site_file(write(tmp_path))
    with OwnServer(file, file.passwords()) as server:
        for intent in ("Whose diary is it?", "Log in with <secret:anna>."):
            played = Task.model_validate(task(intent=intent, require_login=False))
            with begun(
                played,
                browser,
                server.addresses,
                ocr=None,
                log_in=None,
                secrets=server.named_secrets,
            ) as (session, _):
                address = "http://diary.localhost/enter?name=anna&password="
                session.open(address + quote(SECRET))
                is_hidden = session.observe().url == address + "<secret:anna>"
                assert is_hidden == ("<secret:anna>" in intent)


def test_a_task_with_an_unknown_secret_is_refused_before_anything_starts(tmp_path: Path) -> None:
    path = write(tmp_path, task(0, intent="Log in with <secret:diary.cy>."), text=FILE + BO)
    known = "known: <secret:anna>, <secret:bo>, <secret:diary.anna>, <secret:diary.bo>"
    refused = call("run", "--tasks", path, "--model", "solution", "--out", tmp_path / "out")
    assert refused.exit_code == 2
    assert f"no account for <secret:diary.cy>; {known}" in " ".join(refused.output.split())
    assert verdicts(call("tasks", "check", path))["task 0"].endswith(known)
    embedded = tmp_path / "embedded.json"
    embedded.write_text(json.dumps([task(0, start_url="__SHOPPING__/", intent="<secret:anna>")]))
    refused = call("run", "--tasks", embedded, "--model", "solution", "--out", tmp_path / "out")
    assert refused.exit_code == 2 and "only a file of sites has secrets" in refused.output


def test_a_check_names_each_thing_that_is_wrong(tmp_path: Path) -> None:
    check = {"url": "last", "locator": "", "required_contents": {"must_include": ["anna"]}}

    def on_page(**changes: Any) -> dict[str, Any]:
        return {"eval_types": ["program_html"], "program_html": [{**check, **changes}]}

    anybody = {"start_url": "__DIARY__/login", "require_login": False}
    path = write(
        tmp_path,
        task(0, solution=["stop [bo]"], **anybody),
        task(1, solution=["click [link: Nowhere]", "stop [anna]"], **anybody),
        task(2, eval=on_page()),
        task(3, eval=on_page(locator="func:open('notes')")),
        task(4, eval=on_page(locator="document.querySelector('h1'")),
        task(5, eval=on_page(locator="func:get_query_text(__page__, 'h1[')")),
        task(6, eval=on_page(url="__WIKI__/")),
        task(7, storage_state="cy"),
        task(8, solution=[], **anybody),
        task(9, eval={**task()["eval"], "reference_answers": {"fuzzy_match": "a name"}}, **anybody),
        task(10, start_url="__DIARY__:x/"),
        text=FILE + BO,
    )
    checked = call("tasks", "check", path)
    assert checked.exit_code == 1, checked.output
    found = verdicts(checked)
    assert found["log-in diary/bo"] == "ok: by the form"
    assert found["task 0 solution"].startswith('failed: string_match: the answer "bo" should be')
    assert found["task 1 solution"].startswith("failed: step 1 `click [link: Nowhere]`")
    assert found["task 2 stop"] == "failed: passes for an agent that stops at once"
    assert "task 2 solution" in found and "task 3 solution" not in found
    for number, problem in (
        (3, "eval.program_html.0.locator: unknown helper 'open'"),
        (4, "eval.program_html.0.locator: SyntaxError: "),
        (5, "eval.program_html.0.locator: 'h1[' is no CSS selector"),
        (6, "no site is known for __WIKI__; known: __DIARY__"),
        (7, "storage_state: 'cy' is no account of its sites; known: anna, bo"),
        (10, "start_url: '__DIARY__:x/' is not a URL"),
    ):
        assert found[f"task {number}"].startswith(f"failed: {problem}"), found
    assert found["task 8 solution"] == "skipped: the task has no `solution`"
    assert found["task 9 solution"].startswith("skipped: cannot be scored: fuzzy_match")


def on_site(name: str, number: int, **changes: Any) -> dict[str, Any]:
    return task(number, sites=[name], start_url=f"__{name.upper()}__/", **changes)


def test_a_check_plays_each_task_again_to_see_whether_the_site_is_as_before(
    tmp_path: Path,
) -> None:
    reset = 'reset = { get = "/reset" }'
    head, table, diary = FILE.partition("[sites.diary]")
    resets = {
        "diary": reset,
        "stuck": 'reset = ["{python}", "-c", "pass"]',
        "steady": "read_only = true\nvolatile = ['^[1-3]:']",
    }
    sites = [
        (table + diary).replace("sites.diary", f"sites.{name}").replace(reset, instead)
        for name, instead in resets.items()
    ]
    visits = "document.querySelectorAll('p')[1].textContent.split(':')[0] >= 3"
    seen = {"url": "last", "locator": visits, "required_contents": {"exact_match": "True"}}
    often = {"eval_types": ["program_html"], "program_html": [seen]}
    twice = ["goto [__STUCK__/]", "goto [__STUCK__/]", "stop []"]
    path = write(
        tmp_path,
        by_name(0, "<secret:diary.anna>"),
        on_site("stuck", 1, eval=often, solution=twice),
        on_site("steady", 2),
        on_site("steady", 3),
        text=head + "".join(sites),
    )
    checked = call("tasks", "check", path)
    assert checked.exit_code == 1, checked.output
    assert [each for each in spellings(SECRET) if each in checked.output] == []
    found = verdicts(checked)
    assert found["task 0 solution"] == "ok: passes in 4 steps"
    assert found["task 0 reset"] == "ok: the start page is as before the solution"
    assert found["reset stuck"] == "ok: done"
    assert found["task 1 reset"] == (
        "failed: after the solution: passes for an agent that stops at once"
    )
    assert found["task 2 reset"] == "ok: the start page is as before the solution"
    assert found["task 3 reset"].startswith(
        "failed: after the solution, the start page shows '6: ***'"
    )


def test_several_policies_on_a_site_without_a_reset_are_refused_before_anything_starts(
    tmp_path: Path,
) -> None:
    path, out = write(tmp_path, task(), text=UNRESET), tmp_path / "out"
    run = ("run", "--tasks", path, "--model", "stop", "--out", out)
    for more in (("--policies", "full,window"), ("--seeds", "1,2")):
        refused = call(*run, *more)
        assert refused.exit_code == 2 and not out.exists()
        assert "each task is played 2 times, and nothing resets diary in between" in refused.output
        assert f"give it a `reset` in {path}" in refused.output
        assert "--allow-unreset" in refused.output


def test_embedded_sites_reset_by_themselves_and_sites_elsewhere_do_not() -> None:
    known = {"__SHOP__": "http://shop.localhost", "__WIKI__": "http://a.test:8023/wiki"}
    addresses = Addresses(known, {})

    def unreset(**changes: Any) -> tuple[str, ...]:
        given = Task(**task(**{"start_url": "__SHOP__/", **changes}))
        elsewhere = {"__WIKI__": known["__WIKI__"]}
        return unreset_sites([given], own=None, elsewhere=elsewhere, addresses=addresses)

    assert unreset() == ()
    assert unreset(start_url="__WIKI__/") == ("__WIKI__",)
    assert unreset(eval={"eval_types": ["url_match"], "reference_url": "__WIKI__/a"}) == (
        "__WIKI__",
    )
    assert unreset(start_url="__SHOP__/ |AND| http://bo:k3y@b.test/") == ("b.test",)


def test_a_site_that_no_task_changes_needs_no_reset(tmp_path: Path) -> None:
    read_only = FILE.replace('reset = { get = "/reset" }', "read_only = true")
    settings = RunSettings.read(
        tasks=str(write(tmp_path, task(), text=read_only)), model="stop", policies=("full", "int4")
    )
    prepared = prepare(settings)
    assert prepared.plan.unreset == ()
    write(tmp_path, task(require_reset=True), text=read_only)
    with pytest.raises(UnresetError, match="nothing resets diary in between"):
        prepare(settings)
    write(tmp_path, task(require_reset=True, sites=["wiki"], require_login=False), text=read_only)
    prepare(settings)


def test_a_run_without_a_reset_carries_a_warning_in_every_table(tmp_path: Path) -> None:
    stranger = task(require_login=False, start_url="__DIARY__/login")
    path, out = write(tmp_path, stranger, text=UNRESET), tmp_path / "out"
    settings = RunSettings.read(
        **{"tasks": str(path), "model": "solution", "policies": ("full", "int4"), "out": out},
        **{"profile": True, "ocr": False, "allow_unreset": True},
    )
    play_all(settings)
    options = ("--model", "solution", "--workers", "1", "--profile", "--no-ocr")
    run = ("run", "--tasks", path, *options, "--out", out)
    both = call(*run, "--policies", "full,int4", "--allow-unreset")
    warning = "warning: nothing reset diary between the episodes"
    for output, num_tables in (
        (both.output, 2),
        (call("report", out).output, 1),
        (call("report", out, "--markdown").output, 1),
    ):
        assert " ".join(output.split()).count(warning) == num_tables, output
    report = (out / "report.html").read_text()
    assert report.count("<table>") == report.count(warning) >= 5
    assert "nothing resets diary" in both.output and "2 of 2 episodes are done" in both.output


def test_a_check_uses_stored_log_ins_and_skips_what_a_failure_makes_pointless(
    tmp_path: Path, browser: Browser, short_waits: None
) -> None:
    tasks = [task(n, storage_state=name) for n, name in enumerate(("anna", "bo", "cy"))]
    path = write(tmp_path, *tasks)
    file = read_site_file(path)
    with OwnServer(file, file.passwords()) as server:
        state = server.sign_in(browser, "diary", "anna")
    for name, cookies in (("anna", state["cookies"]), ("bo", [])):
        stored = tmp_path / f"{name}.json"
        stored.touch(0o600)
        stored.write_text(json.dumps({**state, "cookies": cookies}))
    head, account, password = UNRESET.partition("[sites.diary.accounts.anna]")
    accounts = f'{account}\nstorage_state = "anna.json"\n'
    accounts += accounts.replace("anna", "bo") + account.replace("anna", "cy")
    path.write_text(head + accounts + password.replace("DIARY_PASSWORD", "UNSET"))
    found = verdicts(call("tasks", "check", path))
    assert found["log-in diary/anna"] == "ok: stored"
    assert found["task 0 solution"] == "ok: passes in 1 step"
    assert found["task 0 reset"] == "skipped: nothing resets diary"
    assert found["log-in diary/bo"].endswith("http://diary.localhost does not show 'Leave'")
    assert found["task 1 solution"] == "skipped: diary/bo is not logged in"
    assert found["password diary/cy"].endswith("the environment variable UNSET is not set")
    assert found["log-in diary/cy"] == "skipped: its password is missing"
    assert found["task 2 solution"] == "skipped: diary/cy is not logged in"
    stored.chmod(0o644)
    path.write_text(path.read_text().replace("UNSET", "DIARY_PASSWORD"))
    refused = call("run", "--tasks", path, "--model", "solution", "--out", tmp_path / "out")
    assert refused.exit_code == 2 and "run chmod 600" in refused.output
    text = FILE.replace('"diary.py"', '"-c", "import os; exit(os.environ[\'DIARY_PASSWORD\'])"')
    checked = call("tasks", "check", write(tmp_path, task(), text=text))
    found = verdicts(checked)
    assert found["site diary"].endswith("`start` ended with exit code 1; it printed: ***")
    assert found["task 0 solution"] == "skipped: site diary does not work"
    assert SECRET not in checked.output and checked.exit_code == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"Password"', '"Pass"', "login.password: the log-in page has 0 visible fields for 'Pass'"),
        ('"Enter"', '{ selector = "label" }', "2 visible buttons for selector 'label'; expected"),
        ('"Leave"', '"Diary"', "login.shows: 'Diary' is on the log-in page before anybody logs in"),
        ('"Leave"', '"Bye"', "login.shows: 'Bye' did not appear after the log-in; the page is"),
    ],
)
def test_a_log_in_that_does_not_work_says_at_which_step(
    old: str, new: str, message: str, tmp_path: Path, browser: Browser, short_waits: None
) -> None:
    file = read_site_file(write(tmp_path, text=FILE.replace(old, new)))
    with OwnServer(file, file.passwords()) as server:
        with pytest.raises(SignInError) as raised:
            server.sign_in(browser, "diary", "anna")
    assert "site diary, account anna: " in str(raised.value) and message in str(raised.value)
    assert [each for each in spellings(SECRET) if each in str(raised.value)] == []


def test_expressions_are_compiled_and_not_run(browser: Browser) -> None:
    good = (
        "document.title = (window.ran = 1)",
        "[...document.querySelectorAll('a')].map(each => each.text).join()",
        "lambda:(window.ran = 1)",
        "lambda:() => { window.ran = 1 }",
        "lambda:function () { return window.ran = 1 }",
    )
    bad = ("document.title); window.ran = 1; (0", "document.title; window.ran = 1 }", "lambda:1 +")
    checks = [
        {"url": "last", "locator": locator, "required_contents": {"exact_match": "a"}}
        for locator in (*good, *bad)
    ]
    checks[0]["prep_actions"] = ["window.ran = 1", "if (1) {"]
    given = Task(**task(eval={"eval_types": ["program_html"], "program_html": checks}))
    with browser.session(hosts=()) as session:
        errors = syntax_errors(given, session.page)
        assert session.page.evaluate("window.ran") is None
    wrong = ["0.prep_actions.1", "5.locator", "6.locator", "7.locator"]
    assert [each.partition(": SyntaxError")[0] for each in errors] == [
        f"eval.program_html.{place}" for place in wrong
    ]


@pytest.mark.slow  # test_job_queue.py reserves sites as well
def test_one_episode_at_a_time_is_played_on_each_site_and_it_stays_there(tmp_path: Path) -> None:
    visits: dict[str, list[str]] = {"cats": [], "dogs": []}
    both = threading.Barrier(2)

    def site(name: str) -> type[Handler]:
        class Site(Handler):
            def do_GET(self) -> None:
                visits[name].append(self.path)
                if self.path == "/reset" and visits[name].count("/reset") == 1:
                    both.wait(90)  # both sites are played at the same time
                self.send(b"<title>Pets</title><h1>Pets</h1>")

        return Site

    def on(name: str, other: str, number: int, page: str) -> dict[str, Any]:
        return task(
            number,
            sites=[name],
            require_login=False,
            start_url=f"__{name.upper()}__/{page}",
            solution=[f"goto [__{other.upper()}__/strayed]", "stop [anna]"],
        )

    with served(site("cats")) as cats, served(site("dogs")) as dogs:
        text = "".join(
            f'[sites.{name}]\naddress = "{address}"\nreset = {{ get = "/reset" }}\nready_s = 100\n'
            for name, address in (("cats", cats), ("dogs", dogs))
        )
        tasks = [
            on(name, other, number + 10 * (name == "dogs"), page)
            for name, other in (("cats", "dogs"), ("dogs", "cats"))
            for number, page in enumerate(("first", "second"))
        ]
        path = write(tmp_path, *tasks, text=f'tasks = "tasks.json"\n{text}')
        out = tmp_path / "out"
        more = ("--model", "solution", "--workers", "3", "--retries", "0")
        output = run(out, "--tasks", str(path), *more)
    assert "one episode at a time on cats, dogs" in output
    rows = complete_rows(out)
    assert len(rows) == 4 and all("not on the allowed hosts" in row.error for row in rows), output
    for name in visits:
        pages = [path for path in visits[name] if path not in ("/", "/favicon.ico")]
        assert pages == ["/reset", "/first", "/reset", "/second"]


def test_a_site_is_not_mistaken_for_a_program_that_is_there_already(
    tmp_path: Path, short_waits: None
) -> None:
    file = read_site_file(write(tmp_path))
    with OwnServer(file, file.passwords()) as running:
        address = running.sites["diary"].address
        fixed = FILE.replace("{port}", address.rpartition(":")[2])
        taken = read_site_file(write(tmp_path, text=fixed))
        with pytest.raises(SiteError, match="answers before the start; end the program"):
            OwnServer(taken, {}).__enter__()
        there = re.sub("start = .*", "", fixed)
        with OwnServer(read_site_file(write(tmp_path, text=there)), {}) as elsewhere:
            elsewhere.sites["diary"].reset()
    with pytest.raises(SiteError, match="does not answer, and the file has no `start`"):
        elsewhere.sites["diary"].start()


@pytest.mark.parametrize(
    ("reset", "message"),
    [
        ('{ get = "/broken" }', "reset: GET /broken answers with status 500"),
        ('["{python}", "-c", "exit(\'no\')"]', "`reset` ended with exit code 1; it printed: no"),
        ('["./none"]', "`reset` ended with exit code 127; it printed: ./none cannot be started"),
    ],
)
def test_a_reset_that_fails_is_named(reset: str, message: str, tmp_path: Path) -> None:
    file = read_site_file(write(tmp_path, text=FILE.replace('{ get = "/reset" }', reset)))
    with OwnServer(file, {}) as server:
        with pytest.raises(SiteError) as raised:
            server.sites["diary"].reset()
    assert f"site diary: {message}" in str(raised.value)


def test_a_reset_that_fails_costs_the_episode_and_not_the_run(tmp_path: Path) -> None:
    path = write(tmp_path, task(0), text=FILE.replace('{ get = "/reset" }', '{ get = "/broken" }'))
    settings = RunSettings.read(
        tasks=str(path), model="solution", out=tmp_path / "out", ocr=False, screenshots=False
    )
    (row,) = play(prepare(settings).plan)
    assert row.status == "env_error" and row.status in RETRIED
    assert "answers with status 500" in row.error


def test_one_worker_plays_a_site_at_a_fixed_address_and_nothing_again_without_a_reset(
    tmp_path: Path,
) -> None:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    fixed = UNRESET.replace("{port}", str(port))
    ending = [f"goto [http://127.0.0.1:{port}/end]", "stop [nobody]"]
    path, out = write(tmp_path, task(0, solution=ending), task(1), text=fixed), tmp_path / "out"
    output = run(out, "--tasks", str(path), "--model", "solution", "--workers", "2")
    assert "one episode at a time: the run starts a site of mine.toml at a fixed address" in output
    ended, solved = sorted(complete_rows(out), key=lambda row: row.task_id)
    assert ended.status == "env_error" and not ended.attempts, output
    assert solved.success and not solved.attempts, output  # the site was started again
    assert "warning" not in output  # each task is played once
    assert not answers(f"http://127.0.0.1:{port}")


@pytest.mark.parametrize("reset", ['"restart"', '{ get = "/reset" }'])
def test_every_task_begins_in_the_first_state_even_if_the_site_has_ended(
    reset: str, tmp_path: Path, browser: Browser
) -> None:
    file = read_site_file(write(tmp_path, text=FILE.replace('{ get = "/reset" }', reset)))
    with OwnServer(file, file.passwords()) as server:
        for _ in range(2):
            state = server.begin(Task(**task()), browser)
            hosts, origins = server.addresses.hosts(), dict(server.addresses.origins)
            with browser.session(hosts=hosts, addresses=origins, storage_state=state) as session:
                session.open("http://diary.localhost/")
                assert "1: " in session.page.content()
                session.open("http://diary.localhost/")
                assert "2: " in session.page.content()
            assert not answers(server.sites["diary"].address + "/end")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--site", "DIARY=http://127.0.0.1:9"], "says where its sites are; write"),
        (["--limit", "1"], "the environment variable DIARY_PASSWORD is not set"),
    ],
)  # fmt: skip
def test_a_run_is_refused_before_anything_starts(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DIARY_PASSWORD")
    path, out = write(tmp_path, task()), tmp_path / "out"
    result = call("run", "--tasks", path, "--model", "stop", "--out", out, *arguments)
    assert result.exit_code == 2 and message in result.output
    assert not out.exists()


def test_the_tasks_of_a_file_are_listed_like_those_of_a_suite(tmp_path: Path) -> None:
    path = write(tmp_path, task())
    for arguments in (["tasks", path], ["tasks", "list", path]):
        assert "Whose diary is it?" in call(*arguments).output
    listed = call("tasks", "--json", path)
    assert json.loads(listed.output)[0]["solution"] == ["stop [anna]"]
    assert call("tasks", "chek", path).exit_code == 2
