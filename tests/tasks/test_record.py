"""`agentkv tasks record`: solutions and successful episodes, with their pages and replies."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentkv.recordings import Recording, read_recordings
from agentkv_env.serialize import serialize
from agentkv_tasks.cli.app import cli
from agentkv_tasks.results import Results, Row
from agentkv_tasks.suites import load_suite
from tests.tasks.runs import SMALL

SEED = "1000000"


def called(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, list(arguments))
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


@pytest.mark.browser
def test_solutions_and_successes_of_a_run_are_recorded_once(tmp_path: Path) -> None:
    file, run = tmp_path / "some.jsonl", tmp_path / "run"
    command = ("tasks", "record", str(file), "--limit", "1")
    assert "1 of 1 episodes" in called(*command)
    content = file.read_bytes()
    (solution,) = read_recordings(file)
    assert solution.world_seed == 1_000_000 and solution.suite == "vwa75"
    pages = [serialize(step.page).text for step in solution.steps]
    assert all("localhost" in page and "127.0.0.1" not in page for page in pages)
    assert solution.steps[-1].reply.startswith("done\n```stop")
    assert all(step.counts for step in solution.steps)

    assert "1 of 1 episodes" in called(*command)
    assert file.read_bytes() == content, "an episode that the file holds is not played again"

    options = ("--model", "solution", "--workers", "1", "--no-screenshots", "--no-ocr")
    called("run", *options, "--limit", "1", "--world-seed", SEED, "--out", str(run))
    called("tasks", "record", str(file), "--from", str(run), "--only", "successes")
    first, second = read_recordings(file)
    assert first == solution and second.key != solution.key
    assert shown(second) == shown(first)


@pytest.mark.browser
def test_successes_on_sites_of_a_file_are_played_again_there(tmp_path: Path) -> None:
    called("tasks", "new", str(tmp_path / "notes"))
    sites, run, file = tmp_path / "notes" / "notes.toml", tmp_path / "run", tmp_path / "some.jsonl"
    options = ("--model", "solution", "--workers", "1", "--no-screenshots", "--no-ocr")
    called("run", *options, "--tasks", str(sites), "--limit", "1", "--out", str(run))
    command = ("tasks", "record", str(file), "--from", str(run))
    assert "was played on sites of a file; give it as well" in called(*command, code=2)
    assert "1 of 1 episodes" in called(*command, "--tasks", str(sites))
    (episode,) = read_recordings(file)
    assert episode.world_seed is None and episode.suite == "notes"
    assert episode.steps[-1].reply.endswith("```stop [Thursday]```")

    changed = sites.parent / load_suite(str(sites), world_seed=0).sites.tasks  # type: ignore[union-attr]
    changed.write_text(changed.read_text().replace('"intent": "', '"intent": "Please: '))
    file.unlink()
    assert "is another one in the file of sites now" in called(
        *command, "--tasks", str(sites), code=2
    )


def shown(recording: Recording) -> object:
    return recording.goal, [(serialize(step.page).text, step.reply) for step in recording.steps]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--world-seed", "75"), "vwa75 would be recorded in world 75, and worlds below 1000000"),
        (("--tasks", str(SMALL), "--world-seed", "4711"), "recorded in world 4711"),
        (("--tasks", "vwa-unseen"), "vwa-unseen measures what models were not trained on"),
        (("--tasks", "vwa75-live:x.json"), "measures what models were not trained on"),
        (("--tasks", "vwa76"), "unknown suite"),
        (("--from", "nowhere"), "nowhere/results.jsonl: cannot be read"),
        (("--from", "nowhere", "--tasks", "vwa75"), "--from and --tasks exclude one another"),
    ],
)
def test_what_must_not_or_cannot_be_recorded_is_refused_in_a_line(
    options: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    file = tmp_path / "some.jsonl"
    assert said in called("tasks", "record", str(file), *options, code=2)
    assert not file.exists()


def test_a_run_without_successes_or_in_an_evaluation_world_is_refused(
    row: Callable[..., Row], tmp_path: Path
) -> None:
    command = ("tasks", "record", str(tmp_path / "a"), "--from", str(tmp_path))
    with Results(tmp_path / "results.jsonl") as results:
        results.append(row(success=False))
        assert "no successful episode to record among 0 successes" in called(*command, code=2)
        results.append(row(seed=1))
    said = called(*command, code=2)
    assert "was played in world 75, and worlds below 1000000 evaluate models" in said
