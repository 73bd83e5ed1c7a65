"""Tests for training at toy size: learning, exact resumption, agreement with transformers."""

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

import agentkv
from agentkv.dialog.prompt import PlainTemplate
from agentkv_env.sites.names import FIRST_TRAINING_SEED
from train_nano.attention import attend, attend_and_select, attend_row_by_row
from train_nano.data import Recordings
from train_nano.drills import Drills
from train_nano.episode import TrainingRow, encode, save, stretch
from train_nano.loss import BatchSize, batches, losses, per_reply, per_token
from train_nano.model import configure, export, hidden_states, initialize
from train_nano.settings import TrainingSettings
from train_nano.tokenizer import save as save_tokenizer
from train_nano.tokenizer import train as make_tokenizer
from train_nano.train import RECORDINGS, Trainer

SHIPPED = Path(agentkv.__file__).parent / "models" / "nano" / "tokenizer.json"
TINY = TrainingSettings(
    width=32,
    layers=2,
    inner=64,
    tokens=60_000,
    warmup_steps=5,
    rate=1e-2,
    decay_tokens=1,
)

UNTIL = 40_000


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(SHIPPED))


@pytest.fixture
def recordings(tmp_path: Path) -> Recordings:
    folder = tmp_path / "recordings"
    folder.mkdir()
    drills = Drills(7)
    save([drills.walk(8) for _ in range(5)], folder / "vwa75-1000000.jsonl.xz")
    return Recordings(folder)


def make_trainer(tokenizer: Tokenizer, work: Path, recordings: Recordings) -> Trainer:
    trainer = Trainer(TINY, tokenizer, work, recordings)
    trainer.progress.stage, trainer.progress.level = "drill", 0
    trainer.optimizer = trainer.new_optimizer()
    return trainer


def test_a_few_steps_lower_the_loss(
    tokenizer: Tokenizer, tmp_path: Path, recordings: Recordings
) -> None:
    trainer = make_trainer(tokenizer, tmp_path, recordings)
    history = [trainer.step()["loss"] for _ in range(8)]
    assert history[-1] < history[0] - 0.3


@pytest.mark.slow
def test_an_interrupted_run_gives_the_same_weights_as_an_uninterrupted_one(
    tokenizer: Tokenizer, tmp_path: Path, recordings: Recordings
) -> None:
    uninterrupted = make_trainer(tokenizer, tmp_path / "uninterrupted", recordings)
    uninterrupted.run(until=UNTIL)
    first = make_trainer(tokenizer, tmp_path / "halved", recordings)
    first.run(until=UNTIL // 2)
    second = Trainer(TINY, tokenizer, tmp_path / "halved", recordings)
    second.resume()
    second.run(until=UNTIL)
    assert second.progress.step == uninterrupted.progress.step
    parameters = zip(uninterrupted.model.parameters(), second.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in parameters)


def test_a_checkpoint_of_another_shape_raises_an_error(
    tokenizer: Tokenizer, tmp_path: Path, recordings: Recordings
) -> None:
    make_trainer(tokenizer, tmp_path, recordings).save()
    wider = Trainer(replace(TINY, width=64), tokenizer, tmp_path, recordings)
    with pytest.raises(ValueError, match="another shape"):
        wider.resume()


def test_a_run_can_start_from_the_weights_of_a_model(
    tokenizer: Tokenizer, tmp_path: Path, recordings: Recordings
) -> None:
    first = make_trainer(tokenizer, tmp_path / "first", recordings)
    first.step()
    with pytest.raises(ValueError, match="no tokenizer"):
        first.start_from(tmp_path)
    save_tokenizer(tokenizer, tmp_path / "model")
    export(first.model, tmp_path / "model")
    second = Trainer(TINY, tokenizer, tmp_path / "second", recordings)
    second.start_from(tmp_path / "model")
    assert second.progress.stage == "episodes" and second.progress.step == 0
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        torch.testing.assert_close(other, one, rtol=0.01, atol=1e-3)  # stored in bfloat16
    assert second.step()["loss"] > 0


@pytest.mark.slow
def test_a_run_can_start_from_a_model_with_a_smaller_vocabulary(
    tokenizer: Tokenizer, recordings: Recordings, tmp_path: Path
) -> None:
    fewer = make_tokenizer(["the quick brown fox"], vocab_size=2000)
    assert "Ġquick" in fewer.get_vocab() and "Ġquick" not in tokenizer.get_vocab()
    before = make_trainer(fewer, tmp_path / "before", recordings).model
    save_tokenizer(fewer, tmp_path / "model")
    export(before, tmp_path / "model")
    trainer = make_trainer(tokenizer, tmp_path / "work", recordings)
    trainer.start_from(tmp_path / "model")
    both = fewer.get_vocab().keys() & tokenizer.get_vocab().keys()
    for name in ("model.embed_tokens", "lm_head"):
        old, new = before.get_submodule(name).weight, trainer.model.get_submodule(name).weight
        for token in both:
            expected = old[fewer.token_to_id(token)].to(torch.bfloat16).float()
            assert torch.equal(new[tokenizer.token_to_id(token)], expected), token
        assert len(new.unique(dim=0)) == len(new)


@pytest.mark.slow
def test_most_recordings_are_grounded_and_all_come_from_training_worlds() -> None:
    kept = Recordings(RECORDINGS)
    worlds = {int(episode.name.partition("/")[0]) for episode in kept.tasks}
    assert len(worlds) >= 9 and min(worlds) >= FIRST_TRAINING_SEED
    assert len(kept) >= 70 * len(worlds)


def test_the_training_forward_pass_equals_transformers(tokenizer: Tokenizer) -> None:
    model = initialize(configure(tokenizer, width=32, layers=2, inner=64), tokenizer, seed=1)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ids = torch.randint(0, 500, (2, 33), generator=torch.Generator().manual_seed(0))
    ours = hidden_states(model, ids, torch.arange(33).expand(2, -1))
    theirs = model.model(input_ids=ids).last_hidden_state
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_skipping_unweighted_tokens_in_the_last_layer_changes_nothing(tokenizer: Tokenizer) -> None:
    model = initialize(configure(tokenizer, width=32, layers=2, inner=64), tokenizer, seed=1)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 500, (3, 40), generator=generator)
    chosen = (torch.rand(3 * 40, generator=generator) < 0.2).nonzero().flatten()
    positions = torch.arange(40).expand(3, -1)
    expected = hidden_states(model, ids, positions).flatten(0, 1)[chosen]
    actual = hidden_states(model, ids, positions, chosen)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_both_ways_to_attend_from_some_tokens_give_the_same_values_and_gradients() -> None:
    generator = torch.Generator().manual_seed(0)
    chosen = torch.tensor([0, 3, 4, 19, 21, 39, 79])  # none in the third of four rows of 20 tokens
    q = torch.randn(len(chosen), 4, 16, generator=generator, dtype=torch.float64)
    k, v = (torch.randn(4, 20, 2, 16, generator=generator, dtype=torch.float64) for _ in range(2))
    grad = torch.randn(q.shape, generator=generator, dtype=torch.float64)
    results = []
    for attend_some in (attend_row_by_row, attend_and_select):
        inputs = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
        mixed = attend_some(*inputs, chosen)
        results.append([mixed, *torch.autograd.grad(mixed, inputs, grad)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("length", [1, 127, 128, 300])
def test_blocked_attention_equals_exact_attention(length: int) -> None:
    generator = torch.Generator().manual_seed(length)
    q, k, v, grad = (
        torch.randn(2, heads, length, 16, generator=generator, dtype=torch.float64)
        for heads in (4, 2, 2, 4)
    )

    def output_and_gradients(dtype: torch.dtype) -> list[torch.Tensor]:
        inputs = [tensor.to(dtype).requires_grad_() for tensor in (q, k, v)]
        mixed = attend(*inputs)
        return [mixed, *torch.autograd.grad(mixed, inputs, grad.to(dtype))]

    blocked, exact = output_and_gradients(torch.bfloat16), output_and_gradients(torch.float64)
    for actual, expected in zip(blocked, exact, strict=True):
        assert (actual - expected).norm() < 0.02 * expected.norm() + 1e-6


def test_padding_does_not_change_the_loss(tokenizer: Tokenizer) -> None:
    model = initialize(configure(tokenizer, width=32, layers=2, inner=64), tokenizer, seed=1)
    template, drills = PlainTemplate(tokenizer), Drills(1)
    rows = [encode(template, drills.walk(size)) for size in (3, 9, 5)]
    batched = losses(model, rows, torch.device("cpu"))[0].sum()
    separate = sum(losses(model, [row], torch.device("cpu"))[0].sum() for row in rows)
    torch.testing.assert_close(batched, torch.as_tensor(separate), rtol=2e-2, atol=0)  # bfloat16


def test_matrix_products_use_the_requested_data_type(tokenizer: Tokenizer) -> None:
    model = initialize(configure(tokenizer, width=32, layers=2, inner=64), tokenizer, seed=0)
    ids = list(range(40))
    rows = [TrainingRow(ids, [1.0] * len(ids), ids)]
    cpu = torch.device("cpu")
    exact, _, _ = losses(model, rows, cpu, torch.float32)
    rough, _, _ = losses(model, rows, cpu, torch.bfloat16)
    logits = model(input_ids=torch.tensor([ids])).logits[0, :-1]
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none")
    torch.testing.assert_close(exact, expected, rtol=1e-4, atol=1e-4)
    assert not torch.equal(exact, rough)
    torch.testing.assert_close(exact, rough, rtol=5e-2, atol=5e-2)


def test_batches_contain_every_row_once_and_stay_below_the_limit() -> None:
    rows = [
        TrainingRow([0] * length, [1.0] * length, list(range(length)))
        for length in range(1, 900, 7)
    ]
    grouped = list(batches(rows))
    assert sorted(len(row.ids) for batch in grouped for row in batch) == list(range(1, 900, 7))
    assert all(max(len(r.ids) for r in batch) * len(batch) <= 4096 for batch in grouped)


def test_a_few_short_rows_join_longer_ones_where_batches_are_dear() -> None:
    rows = [TrainingRow([0] * length, [], []) for length in (1, 2, 3, 100, 101)]
    assert [len(batch) for batch in batches(rows, BatchSize(4096, 0))] == [1, 1, 1, 2]
    assert [len(batch) for batch in batches(rows, BatchSize(4096, 300))] == [5]
    assert [len(batch) for batch in batches(rows, BatchSize(4096, 10))] == [3, 2]


def test_accuracy_counts_tokens_or_whole_replies() -> None:
    weights = [[0.0, 1.0, 1.0, 0.0, 0.5], [1.0, 0.0], [1.0, 1.0, 0.0, 0.0, 1.0, 1.0]]
    rows = [TrainingRow([0] * len(line), line, [], str(at)) for at, line in enumerate(weights)]
    correct = torch.tensor([True, False, True, True, True, True])
    tokens = [(row.kind, hit) for row, hit in per_token(rows, correct)]
    assert tokens == [("0", True), ("0", False), ("0", True), *[("2", True)] * 3]
    replies = [(row.kind, hit) for row, hit in per_reply(rows, correct)]
    assert replies == [("0", False), ("0", True), ("2", True), ("2", True)]


@pytest.mark.gpu
def test_losses_on_a_gpu_equal_those_on_a_cpu(tokenizer: Tokenizer) -> None:
    model = initialize(configure(tokenizer, width=64, layers=2, inner=64), tokenizer, seed=1)
    template, drills = PlainTemplate(tokenizer), Drills(1)
    rows = [encode(template, drills.walk(size)) for size in (3, 9, 5)]
    expected = losses(model, rows, torch.device("cpu"))
    device = torch.device("cuda")
    torch.nn.Module.to(model, device)
    actual = losses(model, rows, device)
    actual[0].sum().backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None for parameter in model.parameters())
    torch.testing.assert_close(actual[0].cpu(), expected[0], rtol=5e-2, atol=5e-2)
    assert torch.equal(actual[2].cpu(), expected[2])


def test_a_run_by_the_clock_ends_after_its_minutes(
    tokenizer: Tokenizer, tmp_path: Path, recordings: Recordings
) -> None:
    settings = replace(TINY, minutes=1000.0, decay_tokens=TINY.tokens // 2, warmup_steps=1)
    trainer = Trainer(settings, tokenizer, tmp_path, recordings)
    assert trainer.left() == 1.0 and trainer.rate() == TINY.rate
    trainer.started -= 800 * 60
    trainer.step()
    assert 0.1 < trainer.left() < 0.2 and trainer.rate() < 0.4 * TINY.rate
    trainer.started -= 200 * 60
    trainer.run()
    assert trainer.progress.step == 2 and trainer.progress.tokens < TINY.tokens
    check_saved(trainer, steps=2)


class Interrupted(Trainer):
    """A trainer whose process gets a signal in every step."""

    def step(self) -> dict[str, float]:
        signal.raise_signal(signal.SIGTERM)
        return super().step()


def test_a_signal_ends_a_run_after_its_step_with_checkpoint_and_log(
    tokenizer: Tokenizer, tmp_path: Path, recordings: Recordings
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    trainer = Interrupted(TINY, tokenizer, tmp_path, recordings)
    trainer.run()
    assert signal.getsignal(signal.SIGTERM) == before
    check_saved(trainer, steps=1)


def check_saved(trainer: Trainer, steps: int) -> None:
    """Check that checkpoint and log hold the first `steps` steps."""
    [*_, line] = (trainer.work / "log.jsonl").read_text().splitlines()
    assert json.loads(line)["step"] == steps
    work, recordings = trainer.work, trainer.source.recordings
    resumed = Trainer(trainer.settings, trainer.tokenizer, work, recordings)
    resumed.resume()
    assert resumed.progress == trainer.progress and resumed.progress.step == steps


def test_only_frequencies_below_one_turn_per_longest_row_are_slowed(tokenizer: Tokenizer) -> None:
    config = configure(tokenizer, width=256, layers=1, inner=64)
    model = initialize(config, tokenizer, seed=1)
    plain = 100_000.0 ** (-torch.arange(0, 64, 2) / 64)  # radians per token
    slowed = plain * 8192 < 2 * torch.pi
    assert 0 < slowed.sum() < 32
    expected = torch.where(slowed, plain / 4, plain)
    torch.testing.assert_close(model.model.rotary_emb.inv_freq, expected)


def test_stretching_adds_gaps_only_between_pages() -> None:
    row = TrainingRow([5, 9, 1, 2, 9, 3], [0.0] * 6, list(range(6)))
    assert stretch(row, 9, [10, 100]).positions == [0, 11, 12, 13, 114, 115]


def test_an_exported_model_gives_the_same_logits_in_transformers(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    model = initialize(configure(tokenizer, width=32, layers=2, inner=64), tokenizer, seed=1)
    save_tokenizer(tokenizer, tmp_path)
    export(model, tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = AutoTokenizer.from_pretrained(tmp_path)(
        "link Blue kayak [12]", return_tensors="pt"
    ).input_ids
    assert loaded.dtype == torch.float32
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "llama"
    # transformers 5 reads rope_parameters, transformers 4 rope_scaling and rope_theta.
    assert config["rope_parameters"] == config["rope_scaling"] | {
        "rope_theta": config["rope_theta"]
    }
    torch.testing.assert_close(loaded(ids).logits, model(ids).logits, rtol=0.05, atol=0.05)
