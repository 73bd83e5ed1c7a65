"""Files of sites: what they say, and the mistakes that are named before anything starts."""

from pathlib import Path
from typing import Any

import pytest

from agentkv.files import PrivateFileError
from agentkv.settings import SettingsError
from agentkv_tasks.own_sites.sign_in import SignInError, read_storage_state
from agentkv_tasks.own_sites.site_file import SiteFile, SiteFileError, read_site_file
from agentkv_tasks.task import Task, TaskError

FILE = """
tasks = "tasks.json"
[sites.wiki]
address = "http://127.0.0.1:{port}/pages/"
start = ["{python}", "serve.py", "{port}"]
reset = "restart"
[sites.wiki.login]
name = "Name"
password = { selector = "#password" }
button = "Log in"
shows = "Log out"
[sites.wiki.accounts.anna]
password = { env = "WIKI_ANNA" }
[sites.wiki.accounts.bo]
name = "bo@example.org"
password = { file = "bo.password" }
[sites.shop-two]
address = "http://127.0.0.1:8123"
placeholder = "__SHOPPING__"
"""


EXACT = {"eval_types": ["string_match"], "reference_answers": {"exact_match": "a"}}


def read(folder: Path, text: str = FILE) -> SiteFile:
    path = folder / "mine.toml"
    path.write_text(text)
    return read_site_file(path)


def task(**changes: Any) -> Task:
    return Task(
        **{
            "sites": ("wiki",),
            "task_id": 3,
            "start_url": "__WIKI__/",
            "intent_template": "Read.",
            "intent_template_id": 0,
            "intent": "Read.",
            "eval": {"eval_types": ["url_match"], "reference_url": "__WIKI__/a"},
            **changes,
        }
    )


def test_a_placeholder_comes_from_the_name_unless_it_is_given(tmp_path: Path) -> None:
    file = read(tmp_path)
    assert file.placeholders == {
        "__WIKI__": "http://wiki.localhost/pages",
        "__SHOPPING__": "http://127.0.0.1:8123",
    }
    assert file.tasks == "tasks.json" and file.folder == tmp_path


def test_sites_with_a_port_of_their_own_can_be_played_side_by_side(tmp_path: Path) -> None:
    assert read(tmp_path).exclusive == {"shop-two"}
    assert not read(tmp_path, FILE + "read_only = true\n").exclusive


def test_an_episode_reserves_the_sites_at_a_fixed_address_that_its_task_names(
    tmp_path: Path,
) -> None:
    more = '[sites.forum]\naddress = "http://127.0.0.1:8124"\n'
    file = read(tmp_path, FILE + more)
    check = {"eval_types": ["url_match"], "reference_url": "__FORUM__/a"}
    for given, held in (
        (task(), set()),  # the wiki is copied
        (task(sites=("shopping", "wiki")), {"shop-two"}),
        (task(sites=("forum",), start_url="__SHOPPING__/"), {"forum", "shop-two"}),
        (task(eval=check), {"forum"}),
        (task(sites=("elsewhere",), start_url="http://example.org", eval=EXACT), file.exclusive),
    ):
        assert file.reserved_by(given) == held
        assert file.left_to_others(given) == {"shop-two", "forum"} - held


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('{ env = "WIKI_ANNA" }', '"hunter2"', "sites.wiki.accounts.anna.password: no password"),
        ('{ env = "WIKI_ANNA" }', '{ text = "hunter2" }', "password.text; known: env, file"),
        ('{ env = "WIKI_ANNA" }', '{ env = "hunter2!" }', "accounts.anna.password.env: String"),
        ("password = { env", "pasword = { env", "anna.pasword; known: name, password, storage_"),
        ('["{python}", "serve.py", "{port}"]', '"python hunter2"', "sites.wiki.start: a command"),
        ('"restart"', '"hunter2"', 'sites.wiki.reset: expected "restart", a command such as'),
        ('"restart"', '{ get = "/a", post = "/b" }', "expected one of restart, command, get and"),
        ('"restart"', '{ get = "http://b.test/" }', 'reset.get: expected a path such as "/login"'),
        ("127.0.0.1:{port}", "an:hunter2@a.test", "sites.wiki.address: expected an address such"),
        ('127.0.0.1:{port}/', '127.0.0.1/{port}/', "expected {port} after the host"),
        ('start = ["{python}", "serve.py", "{port}"]\n', "", "needs a `start` that serves"),
        ("127.0.0.1:{port}/", "127.0.0.1:80/", "{port} stands for a free port, which the address"),
        ('reset = "restart"', 'reset = "restart"\nread_only = true', "needs no `reset`; remove"),
        ('reset = "restart"', "volatile = ['a(']", "volatile.0: expected a regular exp"),
        ('shows = "Log out"', "", "sites.wiki.login.shows: Field required"),
        ('"__SHOPPING__"', '"__WIKI__"', "two sites have __WIKI__; give one a `placeholder`"),
        ("[sites.shop-two]", '[sites."Shop"]', "'Shop' is no name of a site"),
        ('tasks = "tasks.json"', "", "tasks: Field required"),
        ('tasks = "tasks.json"', 'task = "tasks.json"', "unknown key task; known: tasks, settle_s"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_by_its_key_without_its_value(
    old: str, new: str, message: str, tmp_path: Path
) -> None:
    assert FILE.count(old) == 1
    with pytest.raises(SiteFileError) as raised:
        read(tmp_path, FILE.replace(old, new))
    assert message in str(raised.value) and str(raised.value).startswith(f"{tmp_path}/mine.toml: ")
    assert "hunter2" not in str(raised.value)


def test_a_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="mine.toml is no TOML"):
        read(tmp_path, "tasks = ")


def test_a_password_is_read_from_a_variable_or_a_private_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WIKI_ANNA", "quiet otter")
    secret = tmp_path / "bo.password"
    secret.write_text("loud heron\n")
    secret.chmod(0o600)
    assert read(tmp_path).passwords() == {
        ("wiki", "anna"): "quiet otter",
        ("wiki", "bo"): "loud heron",
    }


def test_a_variable_that_is_not_set_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WIKI_ANNA", raising=False)
    with pytest.raises(SiteFileError, match="the environment variable WIKI_ANNA is not set"):
        read(tmp_path).passwords()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_a_secret_that_others_have_rights_to_is_refused(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WIKI_ANNA", "quiet otter")
    secret = tmp_path / "bo.password"
    secret.write_text("{}")
    secret.chmod(mode)
    with pytest.raises(PrivateFileError, match=rf"mode {mode:04o}\); run chmod 600"):
        read(tmp_path).passwords()
    with pytest.raises(PrivateFileError, match="run chmod 600"):
        read_storage_state(secret)


def test_a_secret_that_is_no_small_text_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WIKI_ANNA", "quiet otter")
    file, secret = read(tmp_path), tmp_path / "bo.password"
    with pytest.raises(PrivateFileError, match="cannot be read: No such file"):
        file.passwords()
    secret.touch(0o600)
    with pytest.raises(SiteFileError, match="is empty; expected a password"):
        file.passwords()
    secret.write_bytes(b"\xff")
    with pytest.raises(PrivateFileError, match="is not UTF-8 text"):
        file.passwords()
    secret.write_text("x" * 5000)
    with pytest.raises(PrivateFileError, match="is longer than 4096 bytes"):
        file.passwords()
    secret.unlink()
    secret.mkdir(0o700)
    with pytest.raises(PrivateFileError, match="not a regular file"):
        file.passwords()


@pytest.mark.parametrize("text", ["[]", "{", '{"cookies": [{"name": "quiet otter"}]}', "1e999"])
def test_a_stored_log_in_of_another_format_is_refused_without_being_quoted(
    text: str, tmp_path: Path
) -> None:
    path = tmp_path / "state.json"
    path.touch(0o600)
    path.write_text(text)
    with pytest.raises(SignInError, match="expected Playwright's storage state") as raised:
        read_storage_state(path)
    assert "otter" not in str(raised.value)


def test_a_task_begins_with_the_account_it_names_or_the_first(tmp_path: Path) -> None:
    file = read(tmp_path)
    assert file.accounts_of(task()) == []
    assert file.accounts_of(task(require_login=True)) == [("wiki", "anna")]
    assert file.accounts_of(task(storage_state="bo")) == [("wiki", "bo")]


def test_an_official_task_begins_with_the_first_account(tmp_path: Path) -> None:
    stored = "./.auth/wiki_state.json"
    file = read(tmp_path)
    assert file.accounts_of(task(storage_state=stored)) == [("wiki", "anna")]
    assert file.accounts_of(task(storage_state=stored, sites=("shopping",))) == []


def test_a_task_whose_account_is_missing_is_refused(tmp_path: Path) -> None:
    file = read(tmp_path)
    with pytest.raises(TaskError, match="task 3: storage_state: 'cy' is no account of its sites"):
        file.accounts_of(task(storage_state="cy"))
    with pytest.raises(TaskError, match="task 3: require_login: no site of shopping has an acc"):
        file.accounts_of(task(require_login=True, sites=("shopping",)))
