"""Compare cache policies on recorded episodes with teacher forcing.

python -m train_nano.teacher_forcing RECORDING --config candidates.toml

RECORDING is a file such as `vwa75-1000040.jsonl.xz`, and the configuration file is one for
`agentkv run`. Acted episodes diverge after a wrong reply and yield one bit per task. With teacher
forcing all policies read the same tokens, and every reply shows the cost of eviction, so a tenth of
the episodes is enough to choose parameters.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from agentkv.build import load_run_model, make_acting, make_policy
from agentkv.cache.cache import Cache
from agentkv_tasks.provenance import commit, processor, versions
from agentkv_tasks.settings import RunSettings
from train_nano.annotate import annotate
from train_nano.episode import TrainingRow, encode, load


@dataclass(frozen=True, slots=True)
class ForcedReply:
    """Score of one recorded reply under a policy."""

    seen: int
    """Number of tokens that the cache had read before the reply."""
    is_correct: bool
    """Whether every token of the reply was the most likely one."""
    nll: float
    """Negative log-likelihood of the whole reply, in nats."""
    nbytes: float
    """Bytes of the cache, averaged over the reply's beginning and end."""


def score_replies(model: Any, cache: Cache, row: TrainingRow) -> Iterator[ForcedReply]:
    """Feed `row` through `cache` and score each reply.

    A reply is a run of tokens with a positive weight. It is fed token by token, everything else in
    chunks. Pages and replies get the labels that an agent gives them.

    Args:
        cache: a cache that was fed nothing, with a label on the goal; mutated.
    """
    ids = torch.tensor([row.ids])
    is_reply = [weight > 0 for weight in row.weights]
    logits: torch.Tensor | None = None
    start = turn = 0
    while start < len(row.ids):
        stop = start + 1
        while stop < len(row.ids) and is_reply[stop] == is_reply[start]:
            stop += 1
        known = max((span.stop or 0 for span in cache.spans()), default=0)
        kind = "reply" if is_reply[start] else "page"
        if stop > (first := max(start, known)):
            cache.label(f"{kind} {turn}", stop - first, start=first)
        turn += is_reply[start]
        if not is_reply[start]:
            logits = cache.feed(model, ids[:, start:stop])
            start = stop
            continue
        assert logits is not None, "a row starts with its goal"
        seen, is_correct, nll, nbytes = cache.seen, True, 0.0, cache.nbytes
        for at in range(start, stop):
            is_correct = is_correct and int(logits[0].argmax()) == row.ids[at]
            nll -= float(F.log_softmax(logits[0].to(torch.float32), -1)[row.ids[at]])
            logits = cache.feed(model, ids[:, at : at + 1])
        yield ForcedReply(seen, is_correct, nll, (nbytes + cache.nbytes) / 2)
        start = stop


def summarize(replies: list[ForcedReply], *, far: int) -> dict[str, Any]:
    """Aggregate the replies before and after `far` tokens of context separately."""
    parts = {
        "near": [reply for reply in replies if reply.seen < far],
        "far": [reply for reply in replies if reply.seen >= far],
    }
    return {
        name: {
            "replies": len(part),
            "right": sum(reply.is_correct for reply in part),
            "nll": round(sum(reply.nll for reply in part), 2),
        }
        for name, part in parts.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare cache policies on recorded episodes.")
    parser.add_argument("recording", type=Path)
    parser.add_argument(
        "--config", type=Path, required=True, help="configuration file for `agentkv run`"
    )
    parser.add_argument(
        "--far", type=int, default=3008, help="skip episodes with fewer tokens (default: 3008)"
    )
    parser.add_argument(
        "--every", type=int, default=1, help="use every n-th episode, sorted by length (default: 1)"
    )
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    settings = RunSettings.read(options.config)
    local = load_run_model(settings)
    if local is None:
        parser.error(
            f"model '{settings.model}' is scripted and has no cache; name a language model"
        )
    episodes = map(annotate, load(options.recording))
    encoded = [(encode(local.template, episode), episode.goal) for episode in episodes]
    encoded = sorted(
        (each for each in encoded if len(each[0].ids) >= options.far), key=lambda e: len(e[0].ids)
    )[:: options.every]
    for chosen in settings.policies:
        policy = make_policy(chosen)
        acting = make_acting(settings, policy=chosen, model=local)
        began, replies = time.perf_counter(), []
        peak = looks = moved = cold = 0
        for row, goal in encoded:
            cache = acting.new_cache()
            cache.label("goal", len(local.template.opening(goal)), pinned=settings.pins)
            replies += score_replies(local.model, cache, row)
            peak += cache.peak_nbytes
            looks += cache.num_looks
            moved += cache.look_nbytes
            cold += cache.cold_nbytes
        line = {
            "policy": chosen.row_name,
            "parameters": dict(policy.parameters),
            "recording": options.recording.name,
            "episodes": len(encoded),
            "every": options.every,
            "chunk": settings.chunk,
            "pins": settings.pins,
            "cache_dtype": local.dtype_of(settings),
            **summarize(replies, far=options.far),
            "tokens": sum(len(row.ids) for row, _ in encoded),
            "reply_tokens": sum(weight > 0 for row, _ in encoded for weight in row.weights),
            "mean_bytes": round(sum(reply.nbytes for reply in replies) / len(replies)),
            "looks": looks,
            "look_bytes": moved,
            "peak_bytes": peak,
            "cold_bytes": cold,
            "seconds": round(time.perf_counter() - began, 1),
            "model": settings.model,
            "versions": versions(),
            "commit": commit(),
            "device": processor(),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
