"""`agentkv bench ruler`: the cases against loops over their contexts, and replies of tiny random
weights against plain greedy decoding."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from click.testing import Result
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from agentkv.dialog.prompt import PlainTemplate
from agentkv.models.find import NANO
from agentkv.models.load import load_model
from agentkv.models.local import LocalModel
from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.bench.ruler.ask import Reader
from agentkv_tasks.bench.ruler.prompts import Prompt, Prompts, Spot, sentences_of
from agentkv_tasks.bench.ruler.rows import RulerRow
from agentkv_tasks.bench.ruler.table import deciding, mean_scores
from agentkv_tasks.bench.ruler.tasks import TASKS, Case, Draw, Question
from agentkv_tasks.cli.app import cli
from tests.tasks.tiny_folder import save_model


def drawn(task: str, *, size: int = 200, number: int = 0, is_long: bool = False) -> Case:
    sentences = [f"Sentence {i} of a text." for i in range(size)]
    draw = Draw(
        rng=Random(number),
        size=size,
        num_questions=3,
        is_long=is_long,
        sentences=sentences if TASKS[task].in_text else None,
    )
    return TASKS[task].draw(draw)


def secrets(context: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for part in context.split("The secret number of ")[1:]:
        key, value = part.split(".")[0].split(" is ")
        found.setdefault(key, []).append(value)
    return found


def named_in(question: Question, names: dict[str, Any]) -> list[str]:
    return [name for name in names if name in question.asks]


def by_needles(case: Case) -> Iterator[list[str]]:
    found = secrets(case.context)
    for question in case.questions:
        yield [value for key in named_in(question, found) for value in found[key]]


def by_assignments(case: Case) -> Iterator[list[str]]:
    values: dict[str, str] = {}
    for part in case.context.split("VAR ")[1:]:
        name, sign, rest = part.partition(" = ")
        if sign and rest.strip():
            values[name] = rest.split(".")[0]
        elif sign:
            pending = name
        else:  # the variable that another one copies, which has its value already
            values[pending] = values[part.split(".")[0]]
    for question in case.questions:
        yield [name for name, value in values.items() if value in question.asks]


def by_counts(case: Case) -> Iterator[list[str]]:
    words = [word for word in case.context.split() if not word.rstrip(".").isdigit()]
    ranked = Counter(word for word in words if word != "...").most_common()
    count = int(case.questions[0].asks.split()[1])
    assert ranked[count - 1][1] > ranked[count][1], "no word shares the last place"
    yield [word for word, _ in ranked[:count]]


def by_key(case: Case) -> Iterator[list[str]]:
    pairs = json.loads(case.context)
    for question in case.questions:
        yield [pairs[key] for key in named_in(question, pairs)]


def by_ends(case: Case) -> Iterator[list[str]]:
    listed = case.context.splitlines()
    for question in case.questions:
        _, prefix, _, suffix, _ = question.asks.split('"')
        assert sum(each.startswith(prefix) for each in listed) > 1
        assert sum(each.endswith(suffix) for each in listed) > 1
        yield [each for each in listed if each.startswith(prefix) and each.endswith(suffix)]


def by_order(case: Case) -> Iterator[list[str]]:
    listed = sorted(map(int, case.context.split(", ")))
    asked = {"the largest": -1, "the smallest": 0, "the second largest": -2}
    for question in case.questions:
        [place] = [place for name, place in asked.items() if f"is {name} number" in question.asks]
        yield [str(listed[place])]


ANSWERS: dict[str, Callable[[Case], Iterator[list[str]]]] = {
    "variables": by_assignments,
    "multi-hop": by_assignments,
    "common-words": by_counts,
    "frequent-words": by_counts,
    "key-value": by_key,
    "prefix-suffix": by_ends,
    "find": by_order,
}


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("task", TASKS)
def test_what_is_expected_can_be_read_in_the_context(task: str, number: int) -> None:
    case = drawn(task, number=number)
    assert len(case.questions) == (3 if TASKS[task].has_several else 1)
    found = list(ANSWERS.get(task, by_needles)(case))
    assert [sorted(each) for each in found] == [sorted(q.expected) for q in case.questions]
    for question in case.questions:
        assert question.score(question.asks + question.starts) == 0, "no question tells its answer"
        assert question.score(" ".join(question.expected).upper()) == 1
    assert drawn(task, number=number) == case != drawn(task, number=number + 1)


def test_a_score_is_the_share_of_what_is_expected_in_any_letter_case() -> None:
    question = Question("?", "", ("AMBER", "coin", "lake", "yard"))
    assert question.score("Amber, and a COIN.") == 0.5
    assert question.score("") == 0 and question.score("yard lake coin amber") == 1


def test_needles_stand_among_the_sentences_of_a_text() -> None:
    case, plain = drawn("multi-value-text"), drawn("multi-value")
    assert "Sentence 0 of a text." in case.context and "Sentence 199 of a text." in case.context
    assert "Sentence" not in plain.context and secrets(plain.context) == secrets(case.context)


def test_common_words_of_a_long_context_occur_as_often_as_in_ruler() -> None:
    for is_long, most, least in ((False, 10, 1), (True, 30, 3)):
        words = drawn("common-words", is_long=is_long).context.split()[1::2]
        assert set(Counter(words).values()) == {most, least}


@pytest.fixture(scope="module")
def template() -> PlainTemplate:
    return PlainTemplate(AutoTokenizer.from_pretrained(NANO).backend_tokenizer)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "bees.txt"
    lines = [f"Bee {i} flew {i * i % 97} miles . Was it tired ? Bee {i} was ." for i in range(300)]
    path.write_text(" = Bees = \n\n" + "\n \n".join(lines), encoding="utf-8")
    return path


def spot(task: str, **changes: Any) -> Spot:
    values: dict[str, Any] = {"length": 700, "seed": 0, "number": 0, "num_questions": 2}
    return Spot(task=task, **values | changes)


def num_tokens(prompt: Prompt, template: PlainTemplate) -> int:
    asked = sum(len(q.ids) + q.num_reply + len(template.separator) for q in prompt.questions)
    return len(prompt.opening) + len(prompt.context) + asked


@pytest.mark.parametrize("task", TASKS)
def test_a_context_takes_what_questions_and_replies_leave_of_the_length(
    task: str, template: PlainTemplate, text: Path
) -> None:
    length = 1300 if task == "common-words" else 700
    prompt = Prompts(template, text=text, num_samples=2).make(spot(task, length=length))
    assert length - 30 < num_tokens(prompt, template) <= length
    shown = template.decode(prompt.context)
    for asked in prompt.questions:
        assert asked.question.asks not in shown, "the question is no part of the context"
        assert template.decode(asked.ids).startswith(asked.question.asks)
        assert asked.num_reply > sum(map(template.count, asked.question.expected))


def test_every_sample_has_its_own_part_of_a_text(template: PlainTemplate, text: Path) -> None:
    every = sentences_of(text)
    assert every[:3] == ["Bee 0 flew 0 miles .", "Was it tired ?", "Bee 0 was ."]
    prompts, seen = Prompts(template, text=text, num_samples=3), set[str]()
    for number in range(3):
        shown = template.decode(prompts.make(spot("single-text", number=number)).context)
        own = {each for each in every if "flew" in each and each in shown}
        assert own and not own & seen
        seen |= own
    prompts.require_text(700)
    with pytest.raises(BenchError, match="too short for 3 samples of 9000 tokens .* about 0 fit"):
        prompts.require_text(9000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "tiny", is_chat=False)


@pytest.fixture(scope="module")
def local(folder: Path) -> LocalModel:
    return load_model(folder, device="cpu")


def greedy(plain: Any, template: Any, ids: list[int], most: int) -> tuple[list[int], bool]:
    """The reply of a model that never heard of our cache, and whether an end token ended it."""
    written: list[int] = []
    while len(written) < most:
        with torch.no_grad():
            chosen = int(plain(torch.tensor([ids + written])).logits[0, -1].argmax())
        if chosen in template.end_ids:
            return written, True
        written.append(chosen)
    return written, False


def test_replies_are_those_of_plain_decoding_with_and_without_earlier_turns(
    local: LocalModel, folder: Path
) -> None:
    template = local.template
    prompt = Prompts(template, text=None, num_samples=1).make(spot("multi-key", length=400))
    cache = local.with_cache("full", cache_dtype="float32").new_cache()
    reader = Reader(local.model, template, cache, prompt)
    assert cache.seen == len(prompt.opening) + len(prompt.context), "no question was fed yet"
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    context, alone, turns = [*prompt.opening, *prompt.context], [], []
    stream = list(context)
    for asked in prompt.questions:
        written, _ = greedy(plain, template, [*context, *asked.ids], asked.num_reply)
        alone.append(template.decode(written))
        stream += asked.ids
        written, _ = greedy(plain, template, stream, asked.num_reply)
        turns.append(template.decode(written))
        stream += [*written, *template.separator]
    for _ in range(2):  # in any order, any number of times
        assert reader.ask(in_turns=True).replies == turns
        assert reader.ask(in_turns=False).replies == alone
    assert [span.label for span in cache.spans()][:3] == ["goal", "page 0", "goal 1"]


def bench(folder: Path, out: Path, *flags: str, **changes: object) -> Result:
    values: dict[str, object] = {
        "model": folder,
        "out": out,
        "policies": "full,window,lookback-int8",
        "tasks": "single,multi-key",
        "lengths": 600,
        "samples": 2,
        "questions": 2,
        "entries": 160,
        "device": "cpu",
        **changes,
    }
    given = {name: value for name, value in values.items() if value is not None}
    arguments = [part for name, value in given.items() for part in (f"--{name}", str(value))]
    return CliRunner().invoke(cli, ["bench", "ruler", *flags, *arguments])


def rows_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()]


@pytest.fixture(scope="module")
def measurement(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, str]:
    out = tmp_path_factory.mktemp("rows") / "ruler.jsonl"
    return bench(folder, out), out.read_text()


@pytest.fixture
def out(measurement: tuple[Result, str], tmp_path: Path) -> Path:
    """A file with the rows of `measurement`."""
    path = tmp_path / "ruler.jsonl"
    path.write_text(measurement[1])
    return path


def test_a_row_says_what_was_asked_and_which_bytes_that_took(
    measurement: tuple[Result, str], out: Path
) -> None:
    result = measurement[0]
    assert result.exit_code == 0, result.output
    rows = {(row["task"], row["mode"], row["label"]): row for row in rows_of(out)}
    policies = ("full", "window", "lookback-int8")
    modes = [("single", "one"), ("multi-key", "requests"), ("multi-key", "turns")]
    assert sorted(rows) == sorted((*mode, label) for mode in modes for label in policies)
    for (task, _, label), row in rows.items():
        assert row["score"] == 0, "random weights know nothing"
        assert len(row["replies"]) == len(row["expected"]) == 2
        assert {len(each) for each in row["scores"]} == {1 if task == "single" else 2}
        assert row["commit"] and row["device"] and row["weights"] and row["command"]
        assert row["settings"]["questions"] == 2 and row["seed"] == 0
        same = rows[task, row["mode"], "full"]
        assert row["prompts_sha256"] == same["prompts_sha256"]
        parts = row["mean_bytes"] + row["cold_bytes"] + row["index_bytes"]
        assert (
            row["all_bytes"] == pytest.approx(parts) and row["all_bytes"] <= row["all_peak_bytes"]
        )
        assert row["mean_bytes"] <= row["peak_bytes"]
        looks = label == "lookback-int8"
        assert (row["cold_peak_bytes"] >= row["cold_bytes"] > 0) == looks
        assert (0 < row["look_share"] <= 1) == looks
        assert looks or row["look_share"] == 0
    one, full = rows["single", "one", "window"], rows["single", "one", "full"]
    assert one["mean_bytes"] < full["mean_bytes"] / 2
    looking = rows["single", "one", "lookback-int8"]
    assert looking["parameters"]["budget"] == one["parameters"]["budget"]
    lines = result.output.rstrip().splitlines()
    assert all(len(line) <= 80 for line in lines[:-3]) and "…" not in result.output
    assert "(0)" in result.output and len(json.loads(lines[-1])["rows"]) == 9


def test_what_is_there_is_not_measured_again(folder: Path, out: Path) -> None:
    before = rows_of(out)
    # as if the run had been killed before its last row
    out.write_text("".join(out.read_text().splitlines(keepends=True)[:-1]))
    assert bench(folder, out).exit_code == 0
    after = rows_of(out)
    assert after[:-1] == before[:-1]
    times = ("read_seconds", "reply_seconds", "finished_at")
    assert {**after[-1], **dict.fromkeys(times)} == {**before[-1], **dict.fromkeys(times)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "seed were 0, now 1"),
        ({"questions": 3}, "settings were"),
        ({"entries": 200}, "give another --out, or --fresh to overwrite it"),
    ],
)
def test_rows_of_another_measurement_are_refused(
    changes: dict[str, object], message: str, folder: Path, out: Path
) -> None:
    result = bench(folder, out, **changes)
    assert result.exit_code == 2 and message in " ".join(result.output.split())


def test_rows_of_another_text_are_refused(folder: Path, text: Path, tmp_path: Path) -> None:
    own, out = tmp_path / "bees.txt", tmp_path / "ruler.jsonl"
    own.write_text(text.read_text())
    given = {"tasks": "single-text", "samples": 1, "text": own}
    assert bench(folder, out, **given, policies="full").exit_code == 0
    own.write_text(text.read_text().replace("flew", "crept"))
    result = bench(folder, out, **given, policies="full", lengths=700)
    assert result.exit_code == 2
    assert "contexts of single-text at 600 tokens have changed" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policies": "window"}, "lacks full, whose score says which tasks the model can do"),
        (
            {"tasks": "singel"},
            "--tasks singel: no such task; did you mean 'single'? known: single,",
        ),
        ({"tasks": "single-text"}, "--tasks single-text hides needles in a --text; give one"),
        ({"text": "nowhere.txt"}, "--text nowhere.txt is not a file"),
        ({"questions": 9}, "--questions 9: expected 2 to 8"),
        ({"lengths": "2000"}, "1200 positions; give at most that"),
        (
            {"lengths": "90"},
            "--lengths 90: single with its questions and replies takes at least",
        ),
        ({"lengths": "0"}, "--lengths must be 1 or more"),
        ({"budget": 64}, "give --entries or --budget"),
        ({"policies": "full,snapkv", "entries": 8}, "too small"),
        ({"model": "stop"}, "is a script"),
    ],
)
def test_a_mistake_is_answered_before_anything_is_measured(
    changes: dict[str, object], message: str, folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "ruler.jsonl"
    result = bench(folder, out, **changes)
    assert result.exit_code == 2 and not out.exists(), result.output
    assert message in " ".join(result.output.split()) and "Traceback" not in result.output


def test_a_short_text_is_refused_with_what_fits(folder: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "ruler.jsonl"
    result = bench(folder, out, tasks="single-text", text=text, samples=60)
    assert result.exit_code == 2 and "about" in result.output and not out.exists()
    assert "too short for 60 samples of 600 tokens" in " ".join(result.output.split())


def row(task: str, label: str, *scores: float) -> RulerRow:
    values: dict[str, Any] = {field.name: 0 for field in fields(RulerRow)}
    values |= {"task": task, "label": label, "mode": "one", "length": 512}
    each = [[score] for score in scores]
    return RulerRow(**values | {"scores": each, "score": sum(scores) / len(scores)})


def test_a_task_that_the_full_cache_cannot_do_decides_nothing() -> None:
    rows = [
        row("single", "full", 1, 0.25),
        row("find", "full", 1, 0),
        row("variables", "full", 1, 1),
    ]
    rows += [row("single", "ours", 0, 0), row("find", "ours", 1, 1), row("variables", "ours", 1, 0)]
    assert deciding(rows) == {(512, "single", "one"), (512, "variables", "one")}
    found = mean_scores(rows, "ours", 512)
    assert found == {
        ("single", 0): 0,
        ("single", 1): 0,
        ("variables", 0): 1,
        ("variables", 1): 0,
    }
