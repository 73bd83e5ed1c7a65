"""Benchmarks and episodes on a CUDA device."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("pydantic", reason="measurements need pydantic, which is not installed")

from agentkv.models.memory import release_memory  # noqa: E402
from agentkv.models.model import OutOfMemory  # noqa: E402
from agentkv_env.page import Box, Node, Page  # noqa: E402
from agentkv_tasks.bench.memory.episode import MemoryEpisode, measured  # noqa: E402
from agentkv_tasks.bench.speed.clock import Clock  # noqa: E402
from agentkv_tasks.settings import RunSettings  # noqa: E402

BOX = Box(1, 2, 3, 4)


@pytest.mark.gpu
def test_the_memory_of_a_device_is_measured_where_a_model_is_on_it() -> None:
    episode = MemoryEpisode(
        settings=RunSettings.read(policies=("window",), chunk=96, device="cuda"),
        shape="tiny",
        num_layers=None,
        num_positions=400,
        label="transformers",
        chosen=None,
        against=(),
        seen=200,
        num_decoded=5,
        threads=None,
    )
    taken = measured(episode)
    assert taken.measured == "device" and taken.resident_bytes > taken.peak_bytes
    assert taken.peak_bytes - taken.loaded_bytes >= taken.live_bytes > 0


@pytest.mark.gpu
def test_the_clock_waits_for_what_the_device_does() -> None:
    # the last one, which is not the current one where there are several
    device = torch.device("cuda", torch.cuda.device_count() - 1)
    clock, x = Clock(device), torch.ones(2048, 2048, device=device)

    def work(count: int) -> float:
        def multiply() -> None:
            for _ in range(count):
                torch.mm(x, x)

        return clock.seconds(multiply)

    work(2)
    # launched in no time, and done one after another
    assert work(200) > 10 * work(2)


def _acting(policy: str) -> Any:
    pytest.importorskip("llguidance", reason="a model that acts needs llguidance")
    from agentkv.build import load_run_model, make_acting

    settings = RunSettings.read(policies=(policy,), budget=256, model="nano", device="cuda")
    model = load_run_model(settings)
    assert model is not None
    return make_acting(settings, policy=settings.policies[0], model=model)


def _page(number: int) -> Page:
    nodes = tuple(Node("element", "link", f"Kayak {id}", BOX, id=id) for id in range(20))
    return Page(f"http://shop.localhost/{number}", f"Page {number}", nodes)


@pytest.mark.gpu
def test_an_episode_that_fills_the_device_ends_and_the_next_one_has_its_memory() -> None:
    acting = _acting("full")
    acting.begin("Buy a kayak").reply(_page(0))  # builds the kernels
    release_memory()
    before = torch.cuda.memory_allocated()
    total = torch.cuda.get_device_properties().total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 48 * 2**20) / total)
    try:
        conversation = acting.begin("Buy a kayak")
        with pytest.raises(OutOfMemory, match=r"no memory was left.*a smaller budget"):
            conversation.reply(_page(0), note="long " * 15_000)
        release_memory()
        assert torch.cuda.memory_allocated() <= before + 2**20
        assert acting.begin("Buy a kayak").reply(_page(1)).text
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.gpu
@pytest.mark.parametrize("policy", ["conf-kv-int8", "lookback-int8"])
def test_a_conversation_that_was_saved_goes_on_at_the_same_place(
    policy: str, tmp_path: Path
) -> None:
    acting = _acting(policy)
    conversation = acting.begin("Buy a kayak")
    for number in range(3):
        conversation.reply(_page(number))
    conversation.save(tmp_path)
    later = acting.load(tmp_path)
    for number in (3, 4):
        replies = [each.reply(_page(number)) for each in (conversation, later)]
        assert replies[0].text == replies[1].text
        assert replies[0].confidences == replies[1].confidences
        assert replies[0].held == replies[1].held
