"""One episode of llama.cpp with its memory, in a process that reads the model from a GGUF file and
imports neither torch nor transformers.
"""

import gc
import importlib
from array import array
from dataclasses import dataclass
from pathlib import Path

from agentkv_tasks.bench.contenders.llama_context import Context, GgufWeights, Sizes
from agentkv_tasks.bench.memory.process import MemoryUse
from agentkv_tasks.peak_memory import peak_rss_bytes, reset_peaks, rss_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaEpisode:
    """The task of a process."""

    label: str
    """One of the variants of `llama_context`."""
    path: Path
    """File of the model."""
    sizes: Sizes
    prompt: "array[int]"
    chunk: int
    """Tokens of the prompt read at once."""
    num_decoded: int
    num_threads: int

    @property
    def seen(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt)


def measured(episode: LlamaEpisode) -> MemoryUse:
    """Run an episode in this process, which must not have done anything before."""
    importlib.import_module("llama_cpp")
    reset_peaks()
    before = peak_rss_bytes()
    weights = GgufWeights(episode.path)
    load_bytes = max(0, peak_rss_bytes() - before)
    context = Context(episode.label, weights, episode.sizes, episode.num_threads)
    # as the other caches' models, it has read one token before
    context.begin(1)
    context.feed(episode.prompt[:1])
    context.end()
    gc.collect()
    reset_peaks()
    loaded_bytes = peak_rss_bytes()
    context.begin(episode.seen + episode.num_decoded)
    for start in range(0, episode.seen, episode.chunk):
        context.feed(episode.prompt[start : start + episode.chunk])
    for _ in range(episode.num_decoded):
        logits = context.logits()[:]
        context.feed([logits.index(max(logits))])
    return MemoryUse(
        measured="process",
        loaded_bytes=loaded_bytes,
        # the kernel counts the pages of a process with a delay
        peak_bytes=max(loaded_bytes, peak_rss_bytes()),
        live_bytes=context.live_bytes,
        cold_bytes=0,
        cache_peak_bytes=None,
        resident_bytes=peak_rss_bytes(),
        kept_rows=float(context.num_fed),
        end_bytes=rss_bytes(),
        load_bytes=load_bytes,
        file_bytes=episode.path.stat().st_size,
    )
