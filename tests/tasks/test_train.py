"""`agentkv train` and `--adapter`, with tiny random models."""

import json
import math
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from agentkv.cache.cache import Cache
from agentkv.models.adapter import adapter_digest
from agentkv.models.find import ModelError
from agentkv.models.load import load_model
from agentkv.models.local import LocalModel
from agentkv.recordings import RecordedStep, Recording, RecordingFile, read_recordings
from agentkv_kernels.processor import multiplies
from agentkv_tasks.cli.app import cli
from agentkv_tasks.train.rows import (
    IGNORED,
    EpisodeRow,
    Order,
    Row,
    batch,
    episode_rows,
    padded_length,
    split_held_out,
)
from agentkv_tasks.train.settings import TrainSettings
from tests.agentkv.test_recordings import CLICK, EPISODE, STOP
from tests.tasks.tiny_folder import save_model

FREE = (
    RecordedStep(CLICK.page, "'Blue Kayak' link\n```click [3]```"),
    RecordedStep(STOP.page, "MODEL RN-563\n```stop [RN-563]```", STOP.note),
)


@pytest.fixture(scope="module", params=["chat", "plain"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(
        tmp_path_factory.mktemp("model") / request.param, is_chat=request.param == "chat"
    )


@pytest.fixture(scope="module")
def local(folder: Path) -> LocalModel:
    return load_model(folder, device="cpu")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model") / "plain", is_chat=False)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recordings") / "some.jsonl"
    with RecordingFile(path) as file:
        for number in range(4):
            goal = f"Which model is number {number}?"
            file.append(replace(EPISODE, key=str(number), goal=goal, steps=(CLICK, STOP)))
    return path


def call(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["train", *map(str, arguments)])
    assert isinstance(result.exception, SystemExit | None), result.exception
    return result.exit_code, " ".join(result.output.split())


def trained(model: Path, recordings: Path, to: Path, *more: object) -> str:
    given = ("--device", "cpu", "--steps", 4, "--check-every", 2, "--rows", 2, "--rank", 4)
    code, said = call("--model", model, "--recordings", recordings, "--to", to, *given, *more)
    assert code == 0, said
    return said


@pytest.fixture(scope="module")
def adapter(plain: Path, recordings: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("adapter")
    trained(plain, recordings, to, "--rate", 0.05)
    return to


def changed(folder: Path, name: str, factor: float) -> Path:
    """Multiply one weight of a saved model."""
    weights = load_file(folder / "model.safetensors")
    scaled = {**weights, name: factor * weights[name]}
    save_file(scaled, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def logged(to: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (to / "log.jsonl").read_text().splitlines()]


def settings(**given: Any) -> TrainSettings:
    return TrainSettings(recordings=(Path("some.jsonl"),), **given)


def only_row(recording: Recording, local: LocalModel) -> EpisodeRow:
    (row,) = episode_rows(recording, local.template, settings(), most=4096).rows
    return row


@pytest.mark.parametrize("steps", [(CLICK, STOP), FREE])
def test_a_row_is_what_an_agent_feeds(steps: tuple[RecordedStep, ...], local: LocalModel) -> None:
    is_free = local.template.thoughts == "free"
    recording = replace(EPISODE, steps=steps, thoughts="free" if steps is FREE else "named")
    row = only_row(recording, local)
    conversation = local.with_cache("full", max_new_tokens=8).begin(recording.goal)
    stream = conversation._stream
    for step, free, named in zip(steps, FREE, (CLICK, STOP), strict=True):
        conversation.start_reply(step.page, step.note)
        reply = free.reply if is_free else named.reply
        stream.end_reply(local.template.encode(reply), ())
        stream.turns[-1].reply = local.template.reply(reply)
    fed = [*stream.opening]
    for turn in stream.turns:
        fed += [*turn.shown, *turn.reply]
    assert row.ids == fed


def test_only_replies_and_their_ends_are_learned(local: LocalModel) -> None:
    steps = (replace(CLICK, counts=False), STOP)
    row = only_row(replace(EPISODE, steps=steps), local)
    ((start, stop),) = row.replies
    learned = [label for label in row.labels if label != IGNORED]
    assert learned == row.labels[start:stop] and row.num_counted == len(learned)
    assert learned[-1] in local.template.end_ids
    reply = FREE[1].reply if local.template.thoughts == "free" else STOP.reply
    assert local.template.decode(learned[:-1]) == reply
    assert row.labels[start : stop - 1] == row.ids[start : stop - 1]


def learned(row: EpisodeRow, local: LocalModel) -> list[str]:
    """Return the replies that a row teaches."""
    return [local.template.decode(row.labels[start : stop - 1]) for start, stop in row.replies]


def test_a_long_episode_becomes_rows_with_every_reply_learned_once(local: LocalModel) -> None:
    pages = [replace(CLICK.page, title=f"Page number {number}") for number in range(6)]
    recording = replace(EPISODE, steps=tuple(replace(CLICK, page=page) for page in pages))
    whole = only_row(recording, local)
    most = len(whole.ids) * 2 // 3
    rows = episode_rows(recording, local.template, settings(), most=most).rows
    assert len(rows) > 1 and all(len(row.ids) <= most for row in rows)
    found = [reply for row in rows for reply in learned(row, local)]
    assert found == learned(whole, local) and len(found) == 6
    shown = [local.template.decode(row.ids) for row in rows]
    seen = [[f"Page number {n}" in text for n in range(6)] for text in shown]
    assert [sum(column) for column in zip(*seen, strict=True)] == [1] * 6
    assert shown[-1].count("```click [3]```") == 6  # earlier replies stay without their pages
    assert all("Which model?" in text for text in shown)


def test_a_page_stays_if_a_later_reply_takes_its_text_from_there(local: LocalModel) -> None:
    empty = replace(STOP.page, nodes=(STOP.page.nodes[0],), title="Another page")
    steps = (CLICK, *(replace(CLICK, page=empty) for _ in range(5)), replace(STOP, page=empty))
    recording = replace(EPISODE, steps=steps)
    most = len(only_row(recording, local).ids) * 3 // 4
    rows = episode_rows(recording, local.template, settings(), most=most).rows
    assert len(rows) > 1
    texts = [local.template.decode(row.ids) for row in rows]
    holds = ["MODEL RN-563" in text.partition("Another page")[0] for text in texts]
    assert holds == [True, *[False] * (len(rows) - 2), True]
    rows = episode_rows(
        replace(recording, goal="Which model? RN-563?"), local.template, settings(), most=most
    ).rows
    assert "MODEL RN-563" not in local.template.decode(rows[-1].ids).partition("Another page")[0]


def test_a_reply_that_does_not_fit_into_a_row_is_left_out_and_counted(local: LocalModel) -> None:
    recording = replace(EPISODE, steps=(CLICK, STOP))
    found = episode_rows(recording, local.template, settings(), most=64)
    assert found.rows == () and found.num_lost == 2
    size = len(only_row(replace(EPISODE, steps=(CLICK,)), local).ids)
    found = episode_rows(recording, local.template, settings(), most=size)
    assert [len(row.replies) for row in found.rows] == [1] and found.num_lost == 1


def test_the_first_page_of_a_later_row_is_whole_where_others_show_changes(
    local: LocalModel,
) -> None:
    recording = replace(EPISODE, steps=(CLICK,) * 6)
    given = settings(observations="changes")
    (whole,) = episode_rows(recording, local.template, given, most=4096).rows
    assert local.template.decode(whole.ids).count("MODEL RN-563") == 1
    most = len(whole.ids) * 3 // 4
    rows = episode_rows(recording, local.template, given, most=most).rows
    assert len(rows) > 1
    assert all(local.template.decode(row.ids).count("MODEL RN-563") == 1 for row in rows)


def test_rows_have_few_lengths() -> None:
    lengths = {padded_length(length) for length in range(1, 4097)}
    wanted = [*range(64, 512, 64), *range(512, 1024, 128), *range(1024, 4097, 256)]
    assert sorted(lengths) == wanted
    for length in range(1, 5000):
        assert 0 <= padded_length(length) - length < min(max(64, length / 4), 256)


def test_every_row_is_learned_once_in_each_pass_beside_its_share_of_text() -> None:
    episodes, texts = [Row([n], [n]) for n in range(6)], [Row([-1], [-1]), Row([-2], [-2])]
    order = Order(episodes, texts, num_rows=4, text_share=0.25, seed=3)
    ids = [[row.ids[0] for row in order.step(number)] for number in range(4)]
    assert all(sum(each < 0 for each in step) == 1 for step in ids)
    flat = [each for step in ids for each in step]
    learned, text = [n for n in flat if n >= 0], [n for n in flat if n < 0]
    assert sorted(learned[:6]) == sorted(learned[6:]) == list(range(6))
    assert sorted(text) == [-2, -2, -1, -1] and order.step(2) == order.step(2)


def test_a_training_that_was_stopped_goes_on_as_if_it_had_not_been(
    plain: Path, recordings: Path, tmp_path: Path
) -> None:
    said = trained(plain, recordings, tmp_path / "one")
    assert "step 0 of 4, held out: loss" in said and "of 2 replies exact" in said
    assert "3 recordings to learn are soon known by heart; --variants 30" in said
    code, said = call(
        *("--model", plain, "--recordings", recordings, "--to", tmp_path / "two"),
        *("--device", "cpu", "--steps", 2, "--check-every", 2, "--rows", 2, "--rank", 4),
    )
    assert code == 0
    said = trained(plain, recordings, tmp_path / "two")
    assert "2 steps are done; continuing" in said and "step 2 of 4" not in said
    log = logged(tmp_path / "two")
    assert [line["step"] for line in log] == [0, 2, 4]
    config = json.loads((tmp_path / "two" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(plain)
    page = (tmp_path / "two" / "curve.html").read_text()
    assert page.count("<polyline") >= 3 and f"held-out replies: {log[-1]['held_loss']:.3f}" in page
    assert log[-1]["held_loss"] < log[0]["held_loss"]
    size = (tmp_path / "two" / "log.jsonl").stat().st_size
    assert "4 steps are done" in trained(plain, recordings, tmp_path / "two")
    assert (tmp_path / "two" / "log.jsonl").stat().st_size == size


def test_the_base_that_an_adapter_names_is_not_looked_up(
    plain: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(adapter, tmp_path / "adapter"))
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "somebody/some-model"
    (folder / "adapter_config.json").write_text(json.dumps(config))
    # peft warns where it could not look
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_model(plain, device="cpu", adapter=folder)


def test_the_rate_is_constant_until_the_last_three_tenths(
    plain: Path, recordings: Path, tmp_path: Path
) -> None:
    more = ("--check-every", 1, "--rate", 0.01)
    trained(plain, recordings, tmp_path, *more, "--steps", 5)
    trained(plain, recordings, tmp_path, *more, "--steps", 10)  # goes on
    rates = [line["rate"] for line in logged(tmp_path)]
    assert rates[1:4] == [0.01] * 3 and rates[5] == 0
    assert rates[6:8] == [0.01] * 2 and rates[10] == 0 < rates[9] < rates[8] < 0.01


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize(
    "dtype, computes", [("bfloat16", "bfloat16"), ("float16", "float32"), ("float32", "float32")]
)
def test_an_adapter_learns_in_32_bits_and_computes_in_the_bfloat16_of_its_model(
    plain: Path, recordings: Path, tmp_path: Path, dtype: str, computes: str, recompute: bool
) -> None:
    from agentkv_tasks.train.loop import Training

    options: Any = {"rows": 2, "rank": 4, "device": "cpu", "recompute": recompute}
    given = settings(model=str(plain), to=tmp_path, steps=2, **options)
    local = load_model(plain, device="cpu", dtype=dtype)
    training = Training(given, local, list(read_recordings(recordings)))
    emulates = not multiplies(local.model.dtype)
    assert any("no products of" in note for note in training.notes) == emulates
    seen: set[torch.dtype] = set()
    for name, module in training.model.named_modules():
        if name.endswith("lora_A.default"):
            module.register_forward_hook(lambda _, __, output: seen.add(output.dtype))
    training.run(lambda check: None)
    assert seen == {getattr(torch, computes)}
    learned = [each for each in training.model.parameters() if each.requires_grad]
    assert {each.dtype for each in learned} == {torch.float32}
    log = logged(tmp_path)
    assert log[-1]["held_loss"] < log[0]["held_loss"]


def test_rows_are_padded_to_no_more_than_the_positions_of_the_model() -> None:
    row, device = Row([1] * 300, [1] * 300), torch.device("cpu")
    assert batch([row], device, most=None)[0].shape == (1, 320)
    assert batch([row], device, most=310)[0].shape == (1, 310)


_STOPPED = """
import sys, time
from agentkv_tasks.train.clock import RunningClock
with RunningClock(period=0.02) as clock:
    print("ready", flush=True)
    sys.stdin.readline()
    print(clock.seconds, flush=True)
"""


def test_the_time_that_a_process_is_stopped_is_no_time_of_training() -> None:
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-c", _STOPPED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        started = time.monotonic()
        child.send_signal(signal.SIGSTOP)
        time.sleep(1)
        child.send_signal(signal.SIGCONT)
        child.stdin.write("\n")
        child.stdin.flush()
        seconds = float(child.stdout.readline())
        ended = time.monotonic()
    assert 0 <= seconds <= ended - began - 0.8
    assert ended - started >= 1


def test_a_training_by_the_clock_ends(plain: Path, recordings: Path, tmp_path: Path) -> None:
    arguments = ("--model", plain, "--recordings", recordings, "--to", tmp_path, "--device", "cpu")
    code, said = call(*arguments, "--minutes", 0.01, "--rows", 1, "--rank", 4)
    steps = [line["step"] for line in logged(tmp_path)]
    assert code == 0 and "step 0, held out" in said and steps[0] == 0 < steps[-1]
    assert logged(tmp_path)[0]["rate"] == pytest.approx(2e-5)  # it rises from there
    assert "adapter: " in said and logged(tmp_path)[-1]["rate"] == 0
    code, said = call(*arguments, "--minutes", 0.03, "--rows", 1, "--rank", 4)
    log = logged(tmp_path)
    assert code == 0 and f"{steps[-1]} steps are done; continuing" in said
    assert (
        log[-1]["step"] > steps[-1] and log[-1]["seconds"] >= 1.8 > log[len(steps) - 1]["seconds"]
    )


def test_an_interrupted_training_equals_one_in_a_go(
    plain: Path, recordings: Path, tmp_path: Path
) -> None:
    from agentkv_tasks.train.loop import Check, Training

    def run(to: Path, on_check: Callable[[Check], None]) -> None:
        given = settings(
            model=str(plain), to=to, steps=4, check_every=2, rows=2, rank=4, device="cpu"
        )
        local = load_model(plain, device="cpu")
        Training(given, local, list(read_recordings(recordings))).run(on_check)

    def interrupt(check: Check) -> None:
        if check.step == 2:
            raise KeyboardInterrupt

    run(tmp_path / "one", lambda check: None)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "two", interrupt)
    run(tmp_path / "two", lambda check: None)
    one, two = (load_file(tmp_path / to / "adapter_model.safetensors") for to in ("one", "two"))
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-6)


def test_a_training_that_diverges_keeps_its_last_good_state(tmp_path: Path) -> None:
    model = changed(save_model(tmp_path / "model", is_chat=False), "lm_head.weight", 50)
    clicks = [replace(EPISODE, key=str(number), steps=(CLICK,)) for number in range(4)]
    learned, (held,) = split_held_out(clicks, None)
    other = RecordedStep(CLICK.page, "done\n```stop [quite another answer 0123456789]```")
    with RecordingFile(tmp_path / "some.jsonl") as file:
        for each in (*learned, replace(held, steps=(other,))):
            file.append(each)
    arguments = ("--model", model, "--recordings", tmp_path / "some.jsonl", "--device", "cpu")
    more = ("--steps", 40, "--check-every", 1, "--rows", 1, "--rate", 1.0)
    code, said = call(*arguments, "--to", tmp_path, *more)
    assert code == 1 and "agentkv: the training diverged at step" in said
    assert "lower --rate (now 1)" in said
    log = logged(tmp_path)
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert state["progress"]["step"] == log[-1]["step"] < 40
    assert all(math.isfinite(line["held_loss"]) for line in log)


def test_replayed_text_holds_down_what_is_forgotten_which_is_measured(
    plain: Path, recordings: Path, tmp_path: Path
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The harbour opens at nine and closes at five. " * 600)
    rest = ("--replay", text, "--rate", 0.02)
    said = trained(plain, recordings, tmp_path / "to", *rest, "--replay-share", 0.5)
    assert "forgetting: perplexity of the text" in said
    log = logged(tmp_path / "to")
    trained(plain, recordings, tmp_path / "less", *rest, "--replay-share", 0.01)

    def change(checks: list[dict[str, Any]]) -> float:
        return abs(checks[-1]["text_loss"] - checks[0]["text_loss"])

    assert 0 < change(log) < change(logged(tmp_path / "less"))


def test_what_cannot_be_trained_is_refused_in_a_line(
    plain: Path, recordings: Path, adapter: Path, tmp_path: Path
) -> None:
    def refused(*more: object, using: Path = recordings, model: object = plain) -> str:
        code, said = call(
            *("--model", model, "--recordings", using, "--to", tmp_path / "to"), *more
        )
        assert code == 2 and said.startswith("agentkv: "), said
        return said

    bad = tmp_path / "bad.jsonl"
    values = EPISODE.to_json()
    bad.write_text(json.dumps({**values, "version": 7}) + "\n")
    assert "line 1: a recording of version 7" in refused(using=bad)
    bad.write_text(json.dumps({**values, "world_seed": 75}) + "\n")
    assert "evaluate models" in refused(using=bad)
    bad.write_text(json.dumps({**values, "steps": values["steps"][:1]}) + "\n")
    assert "none of its 1 replies counts" in refused(using=bad)
    with RecordingFile(tmp_path / "one.jsonl") as file:
        file.append(EPISODE)
    said = refused("--device", "cpu", using=tmp_path / "one.jsonl")
    assert "1 recordings, and 1 of them are measured" in said
    said = refused("--device", "cpu", "--row-tokens", 64)
    assert "has a turn within 64 tokens" in said
    assert "give one of them" in refused("--steps", 2, "--minutes", 2)
    assert "unknown model" in refused(model="smolm2")
    assert "is a script" in refused(model="solution")
    assert "--replay" in refused("--device", "cpu", "--replay", tmp_path / "none.txt")
    assert "is recorded twice" in refused("--recordings", recordings)
    said = refused("--device", "cpu", "--rank", 8, "--rows", 2, "--to", adapter)
    assert "holds another training (" in said and "rank was 4, now 8" in said


def test_a_training_begins_with_another_adapter(
    plain: Path, recordings: Path, adapter: Path, tmp_path: Path
) -> None:
    before = logged(adapter)
    said = trained(plain, recordings, tmp_path / "more", "--start", adapter)
    first = logged(tmp_path / "more")[0]
    assert first["step"] == 0 and "continuing" not in said
    assert first["held_loss"] == pytest.approx(before[-1]["held_loss"], abs=1e-4)
    assert first["held_loss"] < before[0]["held_loss"] - 0.1
    assert "4 steps are done" in trained(plain, recordings, tmp_path / "more", "--start", adapter)
    given = ("--model", plain, "--recordings", recordings, "--to", tmp_path / "more")
    code, said = call(*given, "--device", "cpu", "--steps", 6, "--rows", 2, "--rank", 4)
    assert code == 2 and "start was '" in said and "now None" in said


def test_an_adapter_to_begin_with_has_to_fit(
    plain: Path, recordings: Path, adapter: Path, tmp_path: Path
) -> None:
    def refused(model: Path, start: Path, *more: object, to: Path = tmp_path / "to") -> str:
        given = ("--model", model, "--recordings", recordings, "--to", to, "--device", "cpu")
        code, said = call(*given, "--start", start, *more)
        assert code == 2 and said.startswith("agentkv: "), said
        return said

    assert "has rank 4; give --rank 4" in refused(plain, adapter)
    assert "adapter_config.json and" in refused(plain, tmp_path)
    assert "start and to are both" in refused(plain, adapter, to=adapter)
    other = changed(save_model(tmp_path / "other", is_chat=False), "lm_head.weight", 2)
    assert "give the model that it was trained on" in refused(other, adapter)
    trained(plain, recordings, tmp_path / "new")
    said = refused(plain, adapter, *("--rank", 4, "--rows", 2), to=tmp_path / "new")
    assert "holds another training (" in said and "start was None" in said


def logits(local: LocalModel, policy: str, **options: Any) -> torch.Tensor:
    ids = torch.randint(5, 3000, (1, 90), generator=torch.Generator().manual_seed(1))
    cache = Cache.for_model(local.model, policy=policy, dtype="float32", **options)
    return cache.feed(local.model, ids)


def test_an_adapter_acts_alike_merged_and_apart(plain: Path, adapter: Path) -> None:
    base, merged = load_model(plain, device="cpu"), load_model(plain, device="cpu", adapter=adapter)
    apart = load_model(plain, device="cpu", adapter=adapter, merge_adapter=False)
    for policy, options in (("full", {}), ("critical-snapkv", {"budget": 48})):
        found = [logits(each, policy, **options) for each in (base, merged, apart)]
        torch.testing.assert_close(found[1], found[2], rtol=1e-3, atol=1e-4)
        assert (found[0] - found[1]).abs().max() > 1e-2


def test_an_adapter_names_elements_if_all_that_it_learned_does(
    folder: Path, recordings: Path, tmp_path: Path
) -> None:
    is_chat = folder.name == "chat"
    named = tmp_path / "named"
    trained(folder, recordings, named, "--steps", 1)  # replies are rewritten for a chat model
    assert load_model(folder, device="cpu", adapter=named).names_elements == is_chat
    assert not load_model(folder, device="cpu").names_elements
    words = replace(FREE[0], reply="The blue one.\n```click [3]```")
    for number, (steps, names) in enumerate(
        [(FREE, True), ((words, FREE[1]), False), ((replace(words, counts=False), FREE[1]), True)]
    ):
        path = tmp_path / f"{number}.jsonl"
        with RecordingFile(path) as file:
            for key in "abcd":
                file.append(replace(EPISODE, key=key, steps=steps, thoughts="free"))
        trained(folder, path, tmp_path / str(number), "--steps", 1)
        loaded = load_model(folder, device="cpu", adapter=tmp_path / str(number))
        assert loaded.names_elements == (is_chat and names)
    # what was learned first is not forgotten at once
    more = tmp_path / "more"
    trained(folder, recordings, more, "--steps", 1, "--start", tmp_path / "1")
    assert not load_model(folder, device="cpu", adapter=more).names_elements
    about = json.loads((named / "agentkv.json").read_text())
    before = adapter_digest(named)
    (named / "agentkv.json").write_text(json.dumps({**about, "names_elements": not is_chat}))
    assert adapter_digest(named) != before


def test_an_adapter_that_does_not_belong_to_the_model_is_refused(
    plain: Path, adapter: Path, tmp_path: Path
) -> None:
    other = changed(save_model(tmp_path / "other", is_chat=False), "lm_head.weight", 2)
    with pytest.raises(ModelError, match="was trained on .*plain .weights .*, and the model is"):
        load_model(other, adapter=adapter)
    with pytest.raises(ModelError, match="adapter_config.json and .* missing"):
        load_model(plain, adapter=tmp_path)
    with pytest.raises(ModelError, match="leave merge_adapter on"):
        load_model(plain, device="cpu", weights="int8", adapter=adapter, merge_adapter=False)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (foreign / name).write_bytes((adapter / name).read_bytes())
    load_model(plain, device="cpu", adapter=foreign)  # by another program, and fits
    about = json.loads((foreign / "adapter_config.json").read_text())
    (foreign / "adapter_config.json").write_text(json.dumps({**about, "r": 8}))
    with pytest.raises(ModelError, match="does not fit the model's layers"):
        load_model(plain, device="cpu", adapter=foreign)
    result = CliRunner().invoke(cli, ["run", "--model", str(other), "--adapter", str(adapter)])
    assert result.exit_code == 2 and "give the model that it was trained on" in result.output


def test_variants_are_learned_too_and_all_recordings_if_none_is_held_out(
    plain: Path, tmp_path: Path
) -> None:
    file = tmp_path / "some.jsonl"
    with RecordingFile(file) as recordings:
        recordings.append(
            replace(EPISODE, goal="Which model is the Blue Kayak?", steps=(CLICK, STOP))
        )
    command = (
        *("--model", plain, "--recordings", file, "--to", tmp_path / "to", "--device", "cpu"),
        *("--check-every", 1, "--rows", 2, "--rank", 4, "--held-out", 0),
    )
    code, said = call(*command, "--variants", 3, "--steps", 2)
    assert code == 0 and "3 variants of 1 recordings are learned too" in said, said
    assert "by heart" not in said
    assert "step 2 of 2, loss" in said and "held out" not in said
    _, line = logged(tmp_path / "to")
    assert line["held_loss"] is line["held_exact"] is None and line["loss"] > 0
    page = (tmp_path / "to" / "curve.html").read_text()
    assert "<polyline" in page and "held-out" not in page and "exact" not in page
    code, said = call(*command, "--variants", 3, "--steps", 3)
    assert code == 0 and "2 steps are done; continuing" in said
    code, said = call(*command, "--variants", 4, "--steps", 3)
    assert code == 2 and "variants was 3, now 4" in said


def test_a_training_that_measures_nothing_can_go_back_to_its_beginning(tmp_path: Path) -> None:
    model = changed(save_model(tmp_path / "model", is_chat=False), "lm_head.weight", math.inf)
    with RecordingFile(tmp_path / "some.jsonl") as file:
        file.append(replace(EPISODE, steps=(CLICK,)))
    code, said = call(
        *("--model", model, "--recordings", tmp_path / "some.jsonl", "--device", "cpu"),
        *("--to", tmp_path / "to", "--steps", 4, "--held-out", 0),
    )
    assert code == 1 and "agentkv: the training diverged at step 0: the loss is nan" in said, said
    state = torch.load(tmp_path / "to" / "checkpoint.pt", weights_only=True)
    assert state["progress"]["step"] == 0 and (tmp_path / "to" / "adapter_config.json").exists()


def test_text_is_measured_although_no_recording_is_held_out(
    plain: Path, recordings: Path, tmp_path: Path
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The harbour opens at nine and closes at five. " * 600)
    more = ("--replay", text, "--replay-share", 0.5, "--held-out", 0)
    assert "forgetting: perplexity of the text" in trained(
        plain, recordings, tmp_path / "to", *more
    )
    log = logged(tmp_path / "to")
    assert log[0]["step"] == 0 and log[0]["text_loss"] > log[-1]["text_loss"]
    assert all(line["held_loss"] is None for line in log)
