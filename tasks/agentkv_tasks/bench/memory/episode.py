"""One episode in its own process, with its memory."""

import gc
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Literal

import torch

from agentkv.config import PolicySettings, RunSettings
from agentkv_tasks.bench.contenders.contender import Contender
from agentkv_tasks.bench.contenders.others import others
from agentkv_tasks.bench.contenders.prepare import load_model, make_ours, random_ids
from agentkv_tasks.bench.host import threads_of_torch
from agentkv_tasks.peak_memory import peak_allocator_bytes, peak_rss_bytes, reset_peaks


class EpisodeError(RuntimeError):
    """A process was killed before it could report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """The task of a process."""

    settings: RunSettings
    shape: str | None
    num_layers: int | None
    num_positions: int
    label: str
    chosen: PolicySettings | None
    """Policy; None: the contender `label` among `against`."""
    against: tuple[str, ...]
    seen: int
    num_decoded: int
    threads: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Memory of an episode, with the field names of `MemoryRow`."""

    measured: Literal["process", "device"]
    loaded_bytes: int
    peak_bytes: int
    live_bytes: int
    cache_peak_bytes: int | None
    resident_bytes: int
    kept_rows: float


def in_a_process(episode: Episode) -> MemoryUse:
    """Run an episode in a new process that does nothing else.

    Raises:
        EpisodeError: the process was killed, for example because memory ran out.
    """
    spawn = multiprocessing.get_context("spawn")  # a fork would inherit memory
    with ProcessPoolExecutor(max_workers=1, mp_context=spawn) as pool:
        try:
            return pool.submit(measured, episode).result()
        except BrokenProcessPool:
            raise EpisodeError(
                f"{episode.label}, {episode.seen} tokens: the process was killed, probably because "
                "memory ran out; lower --seen or --layers"
            ) from None


def measured(episode: Episode) -> MemoryUse:
    """Run an episode in this process, which must not have done anything before."""
    with threads_of_torch(episode.threads), torch.inference_mode():
        loaded = load_model(
            episode.settings,
            shape=episode.shape,
            num_layers=episode.num_layers,
            num_positions=episode.num_positions,
        )
        contender = _contender(episode, loaded.model)
        prompt = random_ids(loaded.model, 1, episode.seen)
        # weights in a mapped file are resident once they have been used
        contender.model(input_ids=prompt[:, :1], use_cache=False, logits_to_keep=1)
        gc.collect()
        device = loaded.model.device
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
            cache_peak_bytes=contender.peak_bytes,
            resident_bytes=peak_rss_bytes(),
            kept_rows=contender.num_rows,
        )


def _peak_bytes(device: torch.device) -> int:
    """Return the peak of tensors on a CUDA device, or else of the process."""
    on_device = peak_allocator_bytes(device)
    return peak_rss_bytes() if on_device is None else on_device


def _contender(episode: Episode, plain: object) -> Contender:
    settings = episode.settings
    if episode.chosen is not None:
        return make_ours(settings, [episode.chosen], plain)[0]
    found, _ = others(episode.against, plain, chunk=settings.chunk, budget=settings.budget)
    return next(each for each in found if each.label == episode.label)
