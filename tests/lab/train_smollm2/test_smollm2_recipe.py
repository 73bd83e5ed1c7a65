"""The recipe of smollm2-web: one command from the recordings to the adapter, with a tiny model."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from agentkv.models.adapter import WEIGHTS
from agentkv.recordings import RecordingFile
from agentkv_tasks.train import command
from agentkv_tasks.train.settings import TrainSettings
from tests.agentkv.test_recordings import CLICK, EPISODE, STOP
from tests.tasks.tiny_folder import save_model
from train_smollm2 import recipe
from train_smollm2.recipe import PARTS, Part, follow

SHORT = (Part("one", steps=2), Part("two", steps=1, shuffle_seed=1, reads_text=True))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model") / "plain", is_chat=False)


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    path = tmp_path / "some.jsonl"
    with RecordingFile(path) as file:
        for number in range(30):
            goal = f"Which model is number {number}?"
            file.append(replace(EPISODE, key=str(number), goal=goal, steps=(CLICK, STOP)))
    return path


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("The museum of the harbour opens at nine and closes at five.\n" * 400)
    return path


def followed(parts: tuple[Part, ...], recordings: Path, text: Path, model: Path) -> str:
    said = io.StringIO()
    work = recordings.parent / "work"
    follow(parts, recordings, work, text, Console(file=said), model=str(model), device="cpu")
    return said.getvalue()


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / WEIGHTS)


def test_each_part_begins_with_the_adapter_of_the_part_before(
    model: Path, recordings: Path, text: Path
) -> None:
    followed(SHORT, recordings, text, model)
    one, two = (recordings.parent / "work" / part.name for part in SHORT)
    first, last = weights(one / "bf16"), weights(two / "bf16")
    assert {each.dtype for each in last.values()} == {torch.bfloat16}
    # one small step away, where another beginning would share nothing
    names = [name for name in first if "lora_A" in name]
    assert names
    for name in names:
        assert not torch.equal(first[name], last[name])
        torch.testing.assert_close(last[name], first[name], atol=5e-3, rtol=0.05)
    checks = [
        json.loads((folder / "adapter" / "log.jsonl").read_text().splitlines()[-1])
        for folder in (one, two)
    ]
    assert [check["step"] for check in checks] == [2, 1]
    assert [check["text_loss"] is None for check in checks] == [True, False]


def test_a_recipe_that_was_stopped_goes_on_with_the_part_that_was_not_done(
    model: Path, recordings: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = command.prepare

    def stopped(settings: TrainSettings) -> object:
        if settings.replay is not None:
            raise KeyboardInterrupt
        return prepare(settings)

    with monkeypatch.context() as patch:
        patch.setattr(command, "prepare", stopped)
        with pytest.raises(KeyboardInterrupt):
            followed(SHORT, recordings, text, model)
    work = recordings.parent / "work"
    before = (work / "one" / "bf16" / WEIGHTS).read_bytes()
    said = followed(SHORT, recordings, text, model)
    assert "two training" in said and "one training" not in said
    assert (work / "one" / "bf16" / WEIGHTS).read_bytes() == before
    assert (work / "two" / "bf16" / WEIGHTS).exists()
    assert followed(SHORT, recordings, text, model) == ""


def test_the_recipe_has_the_steps_of_the_committed_logs() -> None:
    folder = Path(recipe.__file__).parent
    logs = ("log-miniwob.jsonl", "log-miniwob-more.jsonl", "log-miniwob-held.jsonl")
    for part, name in zip(PARTS, logs, strict=True):
        last = json.loads((folder / name).read_text().splitlines()[-1])
        assert last["step"] == part.steps
        assert (last["text_loss"] is not None) == part.reads_text


def test_without_its_text_the_recipe_says_so_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    work = tmp_path / "work"
    given = ["recipe", "--work", str(work), "--text", str(tmp_path / "none.txt")]
    monkeypatch.setattr("sys.argv", given)
    with pytest.raises(SystemExit):
        recipe.main()
    assert "--text: there is no file" in capsys.readouterr().err
    assert not work.exists()
