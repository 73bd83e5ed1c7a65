"""Benchmarks on a CUDA device."""

import pytest
import torch

pytest.importorskip("pydantic", reason="measurements need pydantic, which is not installed")

from agentkv.config import read_settings  # noqa: E402
from agentkv_tasks.bench.memory.episode import Episode, measured  # noqa: E402
from agentkv_tasks.bench.speed.clock import Clock  # noqa: E402


@pytest.mark.gpu
def test_the_memory_of_a_device_is_measured_where_a_model_is_on_it() -> None:
    episode = Episode(
        settings=read_settings(policies=("window",), chunk=96, device="cuda"),
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
