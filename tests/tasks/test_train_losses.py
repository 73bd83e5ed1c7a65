"""Losses of rows that read what they have in common once."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import log_softmax
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

from agentkv.models.load import load_model
from agentkv.models.local import LocalModel
from agentkv_tasks.train.losses import Losses, can_share, shared_opening
from agentkv_tasks.train.rows import IGNORED, EpisodeRow, Row, episode_rows, in_batches
from agentkv_tasks.train.settings import TrainSettings
from tests.agentkv.test_recordings import CLICK, EPISODE, STOP
from tests.tasks.tiny_folder import save_model

FULL = "full_attention"
SMALL: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
}
SETTINGS = TrainSettings(recordings=(Path("some.jsonl"),))


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> LocalModel:
    folder = save_model(tmp_path_factory.mktemp("model"), is_chat=True)
    local = load_model(folder, device="cpu")
    local.model.requires_grad_(True)
    return local


@pytest.fixture(scope="module")
def rows(local: LocalModel) -> list[EpisodeRow]:
    goals = ("Which model is the blue kayak?", "What is it?", "Open the last of the three pages.")
    steps = ((CLICK, STOP), (CLICK,), (CLICK, STOP))
    recordings = [
        replace(EPISODE, key=goal, goal=goal, steps=each)
        for goal, each in zip(goals, steps, strict=True)
    ]
    return [
        row
        for each in recordings
        for row in episode_rows(each, local.template, SETTINGS, most=4096).rows
    ]


def losses(
    local: LocalModel,
    opening: Sequence[int],
    untrained: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Losses:
    most = local.max_positions
    return Losses(local.model, opening, most=most, is_bfloat16=False, untrained=untrained)


@contextmanager
def doubled(weight: torch.Tensor) -> Iterator[None]:
    """Double weights for a while, which rounds nothing."""
    with torch.no_grad():
        weight.mul_(2)
    yield
    with torch.no_grad():
        weight.div_(2)


def gradients(local: LocalModel, rows: Sequence[Row], opening: Sequence[int]) -> Any:
    local.model.zero_grad(set_to_none=True)
    weight = local.model.base_model.layers[0].mlp.up_proj.weight
    num_labels = sum(row.num_counted for row in rows)
    # so text has a loss
    of_rows = losses(local, opening, lambda: doubled(weight))
    loss = of_rows.backward(rows, num_labels=num_labels)
    return loss, {name: each.grad for name, each in local.model.named_parameters()}


def widths(local: LocalModel, call: Callable[[], object]) -> list[int]:
    """Return how many ids each forward reads in a call."""
    seen: list[int] = []
    embeddings = local.model.get_input_embeddings()
    hook = embeddings.register_forward_hook(lambda _, __, output: seen.append(output.shape[1]))
    try:
        call()
    finally:
        hook.remove()
    return seen


@pytest.mark.parametrize("learned", ["", "layers.1", "lm_head"])
def test_rows_that_share_their_opening_have_the_gradients_of_whole_rows(
    local: LocalModel, rows: list[EpisodeRow], learned: str
) -> None:
    for name, each in local.model.named_parameters():
        each.requires_grad_(learned in name)
    text = Row(rows[0].ids[5:105], [IGNORED, *rows[0].ids[6:105]])
    opening = shared_opening(rows)
    assert len(opening) > 100
    alone, wanted = gradients(local, [*rows, text], ())
    shared, found = gradients(local, [*rows, text], opening)
    assert shared == pytest.approx(alone, rel=1e-5)
    given = {name for name, each in wanted.items() if each is not None}
    assert given == {name for name in wanted if learned in name}
    for name in given:
        assert wanted[name].abs().max() > 0
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-3, atol=1e-6)
    assert all(found[name] is None for name in wanted.keys() - given)


def test_the_opening_is_read_once_for_all_rows(local: LocalModel, rows: list[EpisodeRow]) -> None:
    opening = shared_opening(rows)
    read = widths(local, lambda: losses(local, opening).backward(rows, num_labels=1))
    assert read[0] == len(opening) and len(read) == 1 + len(rows)
    longest = max(len(row.ids) for row in rows)
    assert all(each < longest for each in read)
    one = widths(local, lambda: losses(local, opening).backward(rows[:1], num_labels=1))
    assert len(one) == 1 and one[0] >= len(rows[0].ids)  # nothing to share it with


def test_rows_are_measured_alike_with_and_without_their_opening(
    local: LocalModel, rows: list[EpisodeRow]
) -> None:
    wanted = {id(row): loss for row, loss in losses(local, ()).measured(rows)}
    found = losses(local, shared_opening(rows)).measured(rows)
    for row, loss in found:
        other = wanted.pop(id(row))
        assert float(loss.total) == pytest.approx(float(other.total), rel=1e-5)
        assert torch.equal(loss.columns, other.columns)
        assert torch.equal(loss.is_right, other.is_right)
        assert not loss.total.requires_grad
    assert not wanted


def test_text_holds_a_network_to_what_it_predicted_before_and_teaches_it_nothing(
    local: LocalModel, rows: list[EpisodeRow]
) -> None:
    local.model.requires_grad_(False)
    weight = local.model.base_model.layers[0].mlp.up_proj.weight
    before = weight.detach().clone()
    ids = rows[0].ids[5:105]
    text = Row(ids, [IGNORED, *ids[1:]])

    @contextmanager
    def untrained() -> Iterator[None]:
        now = weight.detach().clone()
        with torch.no_grad():
            weight.copy_(before)
        yield
        with torch.no_grad():
            weight.copy_(now)

    def predicted() -> torch.Tensor:
        logits = local.model(input_ids=torch.tensor([ids])).logits
        return log_softmax(logits[0, :-1].detach(), dim=-1)

    def moved() -> tuple[float, torch.Tensor]:
        weight.grad = None
        total = losses(local, (), untrained).backward([text], num_labels=text.num_counted)
        assert weight.grad is not None
        return total, weight.grad

    old = predicted()
    weight.requires_grad_(True)
    try:
        total, gradient = moved()
        assert total == pytest.approx(0, abs=1e-6) and gradient.abs().max() < 1e-6
        with torch.no_grad():
            weight += torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
        far, gradient = moved()
        by_hand = (old.exp() * (old - predicted())).sum(dim=-1).mean()
        assert far == pytest.approx(float(by_hand), rel=1e-3) and far > 1e-4
        with torch.no_grad():
            weight -= 0.1 * far * gradient / gradient.square().sum()
        assert moved()[0] < far
    finally:
        with torch.no_grad():
            weight.copy_(before)


@pytest.mark.parametrize("recompute", [True, False])
def test_a_training_reads_the_opening_of_a_step_once_if_it_keeps_what_layers_computed(
    tmp_path: Path, recompute: bool
) -> None:
    from agentkv_tasks.train.loop import Training

    folder = save_model(tmp_path / "model", is_chat=True)
    recordings = [
        replace(EPISODE, key=str(number), goal=f"Which model is number {number}?")
        for number in range(5)
    ]
    options: dict[str, Any] = {"rows": 2, "rank": 4, "held_out": 2, "recompute": recompute}
    given = TrainSettings(
        model=str(folder), recordings=(tmp_path / "x",), to=tmp_path / "to", steps=6, **options
    )
    local = load_model(folder, device="cpu", dtype="bfloat16")
    training = Training(given, local, recordings)
    checks: list[Any] = []
    read = widths(local, lambda: training.run(checks.append))
    assert len(set(read)) == (1 if recompute else 2)  # the opening, and what follows it
    assert min(read) > 100 and len(read) == (2 + 6) * (2 if recompute else 3)
    assert checks[-1].held_loss < checks[0].held_loss


def test_what_is_shared_ends_before_what_is_learned(rows: list[EpisodeRow]) -> None:
    opening = shared_opening([rows[0], rows[0]])
    first = rows[0].replies[0][0]
    assert len(opening) == first - 1 and opening == rows[0].ids[: first - 1]
    other = replace(rows[0], ids=[rows[0].ids[0] + 1, *rows[0].ids[1:]])
    assert shared_opening([rows[0], other]) == []


def test_only_layers_that_keep_all_keys_share_an_opening() -> None:
    assert can_share(LlamaForCausalLM(LlamaConfig(**SMALL)))
    assert not can_share(Gemma3ForCausalLM(Gemma3TextConfig(**SMALL, sliding_window=8)))
    assert not can_share(Lfm2ForCausalLM(Lfm2Config(**SMALL, layer_types=["conv"] * 2)))
    assert not can_share(Lfm2ForCausalLM(Lfm2Config(**SMALL, layer_types=["conv", FULL])))
    assert not can_share(torch.nn.Linear(2, 2))


def test_keys_that_depend_on_the_length_of_a_row_are_not_shared() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    assert not can_share(LlamaForCausalLM(LlamaConfig(**SMALL, rope_parameters=rope)))


def test_rows_are_forwarded_one_by_one_on_a_cpu_and_together_elsewhere() -> None:
    some = [Row([1], [1]), Row([2], [2])]
    assert list(in_batches(some, torch.device("cpu"))) == [[some[0]], [some[1]]]
    assert list(in_batches(some, torch.device("cuda"))) == [some]
    assert list(in_batches([], torch.device("cuda"))) == []


@pytest.mark.gpu
def test_rows_share_their_opening_on_a_device(tmp_path: Path, rows: list[EpisodeRow]) -> None:
    local = load_model(save_model(tmp_path, is_chat=True), device="cuda")
    local.model.requires_grad_(True)
    alone, wanted = gradients(local, rows, ())
    shared, found = gradients(local, rows, shared_opening(rows))
    assert shared == pytest.approx(alone, rel=1e-3)
    for name, each in wanted.items():
        torch.testing.assert_close(found[name], each, rtol=1e-2, atol=1e-5)
