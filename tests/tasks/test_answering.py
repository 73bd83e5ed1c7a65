"""Sites and judges that run elsewhere are asked for an answer before the first episode."""

from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from agentkv.settings import SettingsError
from agentkv_env.sites.server import Server
from agentkv_env.sites.world import World
from agentkv_tasks.cli.app import cli
from agentkv_tasks.settings import RunSettings

SMALL = Path(__file__).parent / "data" / "small.json"


def run(*options: str) -> Result:
    return CliRunner().invoke(cli, ["run", "--model", "stop", "--workers", "1", *options])


def test_every_silent_site_is_named_before_the_first_episode(tmp_path: Path) -> None:
    sites = tmp_path / "sites.toml"
    sites.write_text(
        f'tasks = "{SMALL}"\n'
        '[sites.homepage]\naddress = "http://127.0.0.1:9"\n'
        '[sites.wikipedia]\naddress = "http://127.0.0.1:19"\n'
        '[sites.shopping]\naddress = "http://127.0.0.1:29"\n'
    )
    done = run("--tasks", str(sites), "--out", str(tmp_path / "out"))
    assert done.exit_code == 2, done.stderr
    said = " ".join(done.stderr.split())
    assert "no web server answers for homepage at http://127.0.0.1:9 (" in said
    assert "wikipedia at http://127.0.0.1:19 (" in said
    assert not (tmp_path / "out" / "results.jsonl").read_text()


@pytest.mark.parametrize(
    ("address", "model", "problem"),
    [
        ("http://127.0.0.1:9/v1", None, "give both"),
        (None, "m", "give both"),
        ("here", "m", "expected an address such as"),
        ("http://user:word@host/v1", "m", "put the key of the judge into AGENTKV_JUDGE_KEY"),
    ],
)
def test_a_judge_without_address_or_name_is_refused(
    address: str | None, model: str | None, problem: str
) -> None:
    with pytest.raises(SettingsError, match=f"judge.*{problem}"):
        RunSettings.read(judge=address, judge_model=model)


@pytest.mark.parametrize(
    "given",
    [
        {"judge": "http://user:word@host/v1", "judge_model": "m"},
        {"sites": {"A1": "http://u:word@h"}},
    ],
)
def test_a_refused_address_is_told_without_its_password(given: dict[str, object]) -> None:
    with pytest.raises(SettingsError) as refused:
        RunSettings.read(**given)
    assert "word" not in str(refused.value) and "http://***" in str(refused.value)


def test_a_silent_judge_is_named_before_the_first_episode(tmp_path: Path) -> None:
    judge = ("--judge", "http://127.0.0.1:9/v1", "--judge-model", "m")
    done = run("--tasks", str(SMALL), "--out", str(tmp_path / "out"), *judge)
    assert done.exit_code == 2, done.stderr
    said = " ".join(done.stderr.split())
    assert "--judge: http://127.0.0.1:9/v1/chat/completions does not answer" in said


@pytest.mark.browser
def test_sites_that_answer_are_played(tmp_path: Path) -> None:
    with Server(World(7)) as server:
        address = server.addresses[server.placeholders["__HOMEPAGE__"]]
        given = ("--site", f"HOMEPAGE={address}")
        done = run("--tasks", str(SMALL), "--out", str(tmp_path / "out"), "--limit", "1", *given)
    assert done.exit_code == 0, done.stderr
