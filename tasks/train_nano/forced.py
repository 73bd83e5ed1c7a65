"""Say what policies do to recorded episodes: each reply, given that all before it were right.

PYTHONPATH=tasks python -m nano.forced FOLDER/world-1000040.jsonl.xz --config candidates.toml

The file is one of `agentkv run`. Acted episodes part ways after a wrong reply, and a task says yes
or no; here all policies read the same tokens, and what eviction costs shows in every reply. So
parameters are chosen with a tenth of the episodes.
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

from agentkv.build import budget_for, load_run_model, make_policy
from agentkv.cache.cache import Cache
from agentkv.config import read_settings
from agentkv_tasks.provenance import commit, processor, versions
from train_nano.annotate import annotated
from train_nano.episode import Row, encode, load


@dataclass(frozen=True, slots=True)
class Forced:
    """One recorded reply under a policy."""

    seen: int
    """Tokens that the cache had read when it began."""
    is_right: bool
    """Whether each of its tokens was the likeliest."""
    nll: float
    """Of all its tokens together, in nats."""


def forced(model: Any, cache: Cache, row: Row) -> Iterator[Forced]:
    """The replies of `row`, token by token, its pages in chunks of `cache`, which is filled.

    A reply is a run of tokens that count (`row.weights`). Its last token is fed with what follows.
    """
    ids = torch.tensor([row.ids])
    is_said = [weight > 0 for weight in row.weights]
    logits: torch.Tensor | None = None
    start = 0
    while start < len(row.ids):
        stop = start + 1
        while stop < len(row.ids) and is_said[stop] == is_said[start]:
            stop += 1
        if not is_said[start]:
            logits = cache.feed(model, ids[:, start:stop])
            start = stop
            continue
        assert logits is not None, "a row begins with its goal"
        seen, is_right, nll = cache.seen, True, 0.0
        for at in range(start, stop):
            is_right = is_right and int(logits[0].argmax()) == row.ids[at]
            nll -= float(F.log_softmax(logits[0].to(torch.float32), -1)[row.ids[at]])
            logits = cache.feed(model, ids[:, at : at + 1])
        yield Forced(seen, is_right, nll)
        start = stop


def summary(replies: list[Forced], *, far: int) -> dict[str, Any]:
    """Counts and sums of those that began after less than `far` tokens, and of the others."""
    parts = {
        "near": [reply for reply in replies if reply.seen < far],
        "far": [reply for reply in replies if reply.seen >= far],
    }
    return {
        name: {
            "replies": len(part),
            "right": sum(reply.is_right for reply in part),
            "nll": round(sum(reply.nll for reply in part), 2),
        }
        for name, part in parts.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Check policies on recorded episodes.")
    parser.add_argument("recording", type=Path)
    parser.add_argument("--config", type=Path, required=True, help="as of agentkv run")
    parser.add_argument("--far", type=int, default=3008, help="episodes shorter are left out")
    parser.add_argument("--every", type=int, default=1, help="only each so many-th by length")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    settings = read_settings(options.config)
    local = load_run_model(settings)
    if local is None:
        parser.error(f"{settings.model} is a script; a language model has a cache")
    episodes = map(annotated, load(options.recording))
    rows = [encode(local.template, episode) for episode in episodes]
    rows = sorted((row for row in rows if len(row.ids) >= options.far), key=lambda r: len(r.ids))
    rows = rows[:: options.every]
    for chosen in settings.policies:
        policy = make_policy(chosen)
        began, replies, peak = time.perf_counter(), [], 0
        for row in rows:
            cache = Cache.for_model(
                local.model,
                policy=policy,
                budget=budget_for(settings, policy),
                prefill=settings.prefill,
                chunk=settings.chunk,
            )
            replies += forced(local.model, cache, row)
            peak += cache.peak_nbytes
        line = {
            "policy": chosen.row_name,
            "parameters": dict(policy.parameters),
            "recording": options.recording.name,
            "episodes": len(rows),
            "every": options.every,
            "chunk": settings.chunk,
            **summary(replies, far=options.far),
            "peak_bytes": peak,
            "seconds": round(time.perf_counter() - began, 1),
            "model": settings.model,
            "versions": versions(),
            "commit": commit(),
            "device": processor(),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
