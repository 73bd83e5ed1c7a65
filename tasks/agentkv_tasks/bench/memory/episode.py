"""One episode of a cache in torch, with its memory."""

import gc
from dataclasses import dataclass
from pathlib import Path

import torch

from agentkv_kernels.device import choice_here
from agentkv_tasks.bench.contenders.contender import Contender, cold_bytes
from agentkv_tasks.bench.contenders.others import other
from agentkv_tasks.bench.contenders.prepare import ContenderBenchSettings, make_ours, random_ids
from agentkv_tasks.bench.host import threads_of_torch
from agentkv_tasks.bench.memory.process import MemoryUse
from agentkv_tasks.peak_memory import (
    peak_allocator_bytes,
    peak_rss_bytes,
    reset_peaks,
    rss_bytes,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEpisode:
    """The task of a process."""

    bench: ContenderBenchSettings
    num_positions: int
    label: str
    """Row name of a policy of the settings, or the label of another contender."""
    seen: int
    num_decoded: int


def measured(episode: MemoryEpisode) -> MemoryUse:
    """Run an episode in this process, which must not have done anything before."""
    with threads_of_torch(episode.bench.threads), torch.inference_mode():
        choice_here()
        gc.collect()
        reset_peaks()
        before = peak_rss_bytes()
        contender, file = _contender(episode)
        load_bytes = max(0, peak_rss_bytes() - before)
        prompt = random_ids(contender.model, 1, episode.seen)
        # weights in a mapped file are resident once they have been used
        contender.model(input_ids=prompt[:, :1], use_cache=False, logits_to_keep=1)
        gc.collect()
        device = contender.model.device
        reset_peaks(device)
        loaded_bytes = _peak_bytes(device)
        contender.begin(episode.seen + episode.num_decoded)
        logits = contender.feed(prompt)
        for _ in range(episode.num_decoded):
            logits = contender.feed(logits.argmax(dim=-1, keepdim=True))
        return MemoryUse(
            measured="device" if device.type == "cuda" else "process",
            loaded_bytes=loaded_bytes,
            # the kernel counts the pages of a process with a delay
            peak_bytes=max(loaded_bytes, _peak_bytes(device)),
            live_bytes=contender.live_bytes,
            cold_bytes=cold_bytes(contender),
            cache_peak_bytes=contender.peak_bytes,
            resident_bytes=peak_rss_bytes(),
            kept_rows=contender.num_rows,
            end_bytes=rss_bytes(),
            load_bytes=load_bytes,
            file_bytes=None if file is None else file.stat().st_size,
        )


def _peak_bytes(device: torch.device) -> int:
    """Return the peak of tensors on a CUDA device, or else of the process."""
    on_device = peak_allocator_bytes(device)
    return peak_rss_bytes() if on_device is None else on_device


def _contender(episode: MemoryEpisode) -> tuple[Contender, Path | None]:
    """Make the contender, with no other form of the weights in memory than its own; and return the
    GGUF file of the model, if it is from one."""
    bench, settings = episode.bench, episode.bench.settings
    for chosen in settings.policies:
        if chosen.row_name == episode.label:
            served, file = bench.load_served(episode.num_positions)
            return make_ours(settings, [chosen], served)[0], file
    loaded = bench.load(episode.num_positions)
    chunk, budget = settings.chunk, settings.budget
    made = other(episode.label, bench.against, loaded.model, chunk=chunk, budget=budget)
    return made, loaded.file
