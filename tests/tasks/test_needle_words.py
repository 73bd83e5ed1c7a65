"""`agentkv bench needle` with a chat model, which is asked for words; its weights are random."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from agentkv.models.load import load_model
from agentkv_tasks.bench.needle.kinds import is_right, share_right
from agentkv_tasks.bench.needle.page import NONCE, NeedleSpot, make_needle, observe
from agentkv_tasks.bench.needle.words import codes_in, words_template
from agentkv_tasks.cli.app import cli
from tests.tasks.tiny_folder import save_model


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "chat", is_chat=True)


@pytest.fixture(scope="module")
def acts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "acts", is_chat=False)


def call(model: Path, out: Path, *arguments: str) -> Result:
    sizes = ["--lengths", "400", "--depths", "50", "--needles", "1", "--device", "cpu"]
    given = ["--model", str(model), "--out", str(out), *sizes, *arguments]
    return CliRunner().invoke(cli, ["bench", "needle", *given])


def test_a_chat_model_is_shown_a_question_and_a_page_and_no_actions(chat: Path) -> None:
    template = words_template(load_model(chat))
    assert template is not None
    for question in ("before", "after"):
        needle = make_needle(
            template, NeedleSpot(seed=0, number=0, length=400, depth=50, question=question)
        )
        opening = template.opening(needle.goal, NONCE)
        read = [*opening, *template.turn(observe(template, needle.page), "", NONCE)]
        text = template._tokenizer.decode_all(read)
        assert text.startswith("<|im_start|>system\n") and text.endswith("<|im_start|>assistant\n")
        name = needle.lines[0].removeprefix("code of ").split(" | ")[0]
        assert needle.goal in text and f"\nThe code of {name} is {needle.values[0]}.\n" in text
        assert f"What is the code of {name}?" in text and "url" not in text
        assert len(read) == needle.num_tokens <= 400
        assert "click" not in text and "@0,0" not in text
        assert len(opening) < 64, "the default budgets hold what is pinned"


def test_a_model_that_was_trained_on_actions_keeps_its_form(acts: Path) -> None:
    assert words_template(load_model(acts)) is None


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("The code of Ada's lamp is AX-4972.", True),
        ("ax-4972", True),
        ("**AX-4972**, as in: code of Ada's lamp | AX-4972", True),
        ("AX-497", False),
        ("It is AX-49723.", False),
        ("KAX-4972", False),
        ("AX-4972-2", False),
        ("Either AX-4972 or KN-2743.", False),
        ("I do not know.", False),
        ("", False),
    ],
)
def test_an_answer_in_words_is_right_if_its_codes_are(text: str, right: bool) -> None:
    answer = codes_in(text)
    assert is_right(answer, ("AX-4972",)) is right
    several = codes_in(f"{text} And KN-2743")
    assert is_right(several, ("KN-2743", "AX-4972")) is (right or "KN-2743" in text)
    assert share_right(several, ("KN-2743", "AX-4972")) >= 0.5


def test_rows_say_that_the_answers_were_words(chat: Path, tmp_path: Path) -> None:
    out = tmp_path / "needle.jsonl"
    result = call(chat, out, "--policies", "full,lookback-int8", "--entries", "300")
    assert result.exit_code == 0, result.output
    rows: list[dict[str, Any]] = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["settings"]["decoding"] for row in rows] == ["words", "words"]
    assert "words" in result.stdout and "cold" in result.stdout.split()


@pytest.mark.parametrize("given", ["--entries", "--budget"])
def test_a_budget_that_does_not_hold_the_opening_is_refused_with_one_that_does(
    given: str, chat: Path, tmp_path: Path
) -> None:
    out = tmp_path / "needle.jsonl"
    arguments = ["--policies", "full,streaming", given]
    result = call(chat, out, *arguments, "20")
    said = " ".join(result.output.split())
    assert result.exit_code == 2 and not out.exists(), result.output
    found = re.search(rf"streaming: .* tokens, which are pinned, .* Give {given} (\d+)", said)
    assert found, said
    assert call(chat, out, *arguments, found[1]).exit_code == 0
