"""`agentkv bench calls`: conversations of BFCL's form, and answers that are given to tiny random
weights, against plain forwards of the whole conversation."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from agentkv.models.load import load_model
from agentkv.models.local import LocalModel
from agentkv_tasks.bench.calls.conversations import read_conversations
from agentkv_tasks.bench.calls.read import encoded, read
from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.cli.app import cli
from tests.tasks.tiny_folder import save_model

FILES = (
    "gorilla_file_system", "math_api", "message_api", "ticket_api", "trading_bot",
    "travel_booking", "posting_api", "vehicle_control",
)  # fmt: skip


def function(name: str, **parameters: dict[str, Any]) -> dict[str, Any]:
    required = [each for each, about in parameters.items() if "default" not in about]
    return {
        "name": name,
        "description": f"This tool belongs to a set. Tool description: Does {name}.",
        "parameters": {"type": "dict", "properties": parameters, "required": required},
    }


MOVE = function(
    "mv",
    source={"type": "string", "description": "What to move."},
    force={"type": "boolean", "default": False, "description": "Overwrite. "},
)


def questions(number: int) -> dict[str, Any]:
    return {
        "id": f"multi_turn_base_{number}",
        "question": [
            [{"role": "user", "content": f"Move file {number}."}],
            [{"role": "user", "content": "Thank you."}],
            [{"role": "user", "content": "Add 1 and 2."}],
        ],
        "involved_classes": ["GorillaFileSystem", "MathAPI"],
        "excluded_function": ["cp"],
    }


def answers(number: int) -> dict[str, Any]:
    calls = [[f"cd(folder='{number}')", f"mv(source='{number}')"], [], ["add(a=1, b=2)"]]
    return {"id": f"multi_turn_base_{number}", "ground_truth": calls}


def contents() -> dict[str, list[dict[str, Any]]]:
    numbers = range(4)
    files = {f"multi_turn_func_doc/{name}.json": [function("other")] for name in FILES}
    files["multi_turn_func_doc/gorilla_file_system.json"] = [MOVE, function("cp")]
    files["multi_turn_func_doc/math_api.json"] = [function("add", a={"type": "float"})]
    files["BFCL_v4_multi_turn_base.json"] = [questions(n) for n in numbers]
    files["possible_answer/BFCL_v4_multi_turn_base.json"] = [answers(n) for n in numbers]
    return files


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wheels") / "bfcl_eval-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        for name, rows in contents().items():
            file.writestr(f"bfcl_eval/data/{name}", "\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "tiny", is_chat=False)


@pytest.fixture(scope="module")
def local(folder: Path) -> LocalModel:
    return load_model(folder, device="cpu")


def test_a_conversation_has_its_functions_and_the_turns_that_call_them(wheel, tmp_path):
    found = read_conversations(wheel)
    assert [each.name for each in found] == [f"multi_turn_base_{n}" for n in range(4)]
    assert found[1].functions.splitlines() == [
        "mv(source, force=False): Does mv.",
        "  source (string): What to move.",
        "  force (boolean): Overwrite.",
        "add(a): Does add.",
        "  a (float): ",
    ]
    assert [(turn.asks, turn.answer) for turn in found[1].turns] == [
        ("Move file 1.", "[cd(folder='1'), mv(source='1')]"),
        ("Add 1 and 2.", "[add(a=1, b=2)]"),
    ]
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path)
    assert read_conversations(tmp_path) == found


@pytest.mark.parametrize(
    ("content", "why"), [(None, "FileNotFoundError"), (b"", "BadZipFile"), (b"PK", "BadZipFile")]
)
def test_what_holds_no_conversations_is_refused_with_how_to_get_them(tmp_path, content, why):
    path = tmp_path / "bfcl.whl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BenchError, match=rf"holds no conversations .*{why}.*pip download"):
        read_conversations(path)


def test_a_wheel_of_another_form_is_refused(tmp_path):
    path = tmp_path / "bfcl.whl"
    with zipfile.ZipFile(path, "w") as file:
        for name in contents():
            file.writestr(f"bfcl_eval/data/{name}", '{"id": 1}\n')
    with pytest.raises(BenchError, match="KeyError: 'ground_truth'"):
        read_conversations(path)


def test_a_full_cache_scores_what_one_forward_of_the_conversation_gives(wheel, folder, local):
    conversation = encoded(read_conversations(wheel)[2], local.template)
    found = read(local.model, local.with_cache("full", cache_dtype="float32").new_cache(),
                 conversation)  # fmt: skip
    ids, places = list(conversation.opening), list[int]()
    for turn in conversation.turns:
        ids += turn.asks
        places += range(len(ids), len(ids) + len(turn.answer))
        ids += [*turn.answer[:-1], *turn.closes]
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits = plain(torch.tensor([ids])).logits[0].double()
    expected = [-float(logits[place - 1].log_softmax(-1)[ids[place]]) for place in places]
    assert found.nll == pytest.approx(expected, abs=1e-4)
    assert found.hits == tuple(int(logits[p - 1].argmax()) == ids[p] for p in places)
    assert found.exact == (False, False) and found.num_looks == 0
    assert conversation.num_tokens == len(ids)


def bench(folder: Path, wheel: Path, out: Path, *flags: str, **changes: object) -> Result:
    values: dict[str, object] = {
        "model": folder, "bfcl": wheel, "out": out, "policies": "full,window,lookback-int8",
        "samples": 2, "tokens": 600, "entries": 110, "device": "cpu", **changes,
    }  # fmt: skip
    given = {name: value for name, value in values.items() if value is not None}
    arguments = [part for name, value in given.items() for part in (f"--{name}", str(value))]
    return CliRunner().invoke(cli, ["bench", "calls", *flags, *arguments])


def test_rows_say_what_each_policy_foresaw_and_which_bytes_that_took(wheel, folder, tmp_path):
    out = tmp_path / "calls.jsonl"
    result = bench(folder, wheel, out)
    assert result.exit_code == 0, result.output
    rows = {row["label"]: row for row in map(json.loads, out.read_text().splitlines())}
    assert list(rows) == ["full", "window", "lookback-int8"]
    for row in rows.values():
        assert row["names"] == ["multi_turn_base_0", "multi_turn_base_2"]
        assert row["num_answers"] == [2, 2] and sum(row["exact"]) == 0
        assert row["hit_share"] == sum(row["hits"]) / sum(row["num_answer_tokens"])
        assert row["nll"] == pytest.approx(sum(row["sum_nll"]) / sum(row["num_answer_tokens"]))
        assert row["all_bytes"] == pytest.approx(row["mean_bytes"] + row["cold_bytes"])
        assert row["source"] == wheel.name and row["commit"] and row["command"]
    assert rows["window"]["mean_bytes"] < rows["full"]["mean_bytes"]
    assert rows["lookback-int8"]["cold_bytes"] > 0 == rows["window"]["cold_bytes"]
    assert rows["lookback-int8"]["look_share"] > 0 == rows["full"]["look_share"]
    lines = result.output.splitlines()
    assert all(len(line) <= 80 for line in lines[:-3])
    assert "full is under 60 %" in " ".join(result.output.split())
    again = bench(folder, wheel, out)
    assert again.exit_code == 0 and len(out.read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"policies": "window"}, "lacks full"),
        ({"tokens": 5000}, "has 1200 positions"),
        ({"tokens": 90}, "--tokens 90: 0 of 4 conversations fit; --samples 2 needs --tokens"),
        ({"samples": 5}, "4 of 4 conversations fit; --samples 5"),
        ({"bfcl": "nothing.whl"}, "holds no conversations"),
        ({"budget": "64"}, "give --entries or --budget"),
    ],
)
def test_a_mistake_is_answered_before_anything_is_measured(wheel, folder, tmp_path, changes, why):
    out = tmp_path / "calls.jsonl"
    result = bench(folder, wheel, out, **changes)
    assert result.exit_code == 2, result.output
    assert why in " ".join(result.output.split()) and not out.exists()


def test_rows_of_other_conversations_are_refused(wheel, folder, tmp_path):
    out = tmp_path / "calls.jsonl"
    assert bench(folder, wheel, out, policies="full").exit_code == 0
    refused = bench(folder, wheel, out, policies="full,window", samples=3)
    assert refused.exit_code == 2 and "names were" in " ".join(refused.output.split())
