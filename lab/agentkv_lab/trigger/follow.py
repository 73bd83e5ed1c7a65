"""Decode with looks at the tokens that a signal of `trigger` ranks first, and keep these looks.

    python -m agentkv_lab.trigger.follow --model smollm2 --text FILE --out follow.jsonl

prints a row for every continuation. The continuations and the bytes are those of `agentkv bench
ppl` with equal options, so that its rows give the gap between a window and the full cache.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from agentkv.build import load_run_model, make_policy
from agentkv.cache.cache import Cache
from agentkv.cache.look_back import LookRecord
from agentkv_lab.trigger.read import draws, trial_policy
from agentkv_tasks.bench.matched import window_bytes
from agentkv_tasks.bench.stream import of_file
from agentkv_tasks.provenance import commit, processor, versions
from agentkv_tasks.settings import RunSettings

Followed = Literal["confidence", "drawn", "drawn and open"]
FOLLOWED: tuple[Followed, ...] = ("confidence", "drawn", "drawn and open")
"""Lowest confidence; largest share of attention that a cold entry draws, mean over the layers; and
this share times the entropy of the next token."""


@dataclass(frozen=True, slots=True)
class FollowRow:
    """One continuation with looks at a share of its tokens."""

    signal: Followed
    share: float
    sample: int
    nll: tuple[float, ...]
    """Of each token, in nats."""
    num_looks: int


@torch.inference_mode()
def follow(
    model: Any, cache: Cache, ids: Sequence[int], seen: int, signal: Followed, share: float
) -> tuple[tuple[float, ...], int]:
    """Read the first `seen` tokens, then the others one by one, and look back where the signal
    ranks among the highest `share` of the latest tokens.

    Args:
        cache: an empty cache under a `trial_policy`; mutated.

    Returns:
        The negative log-likelihood of each of the other tokens, and the number of looks.
    """
    tokens, record, found = torch.tensor([ids], device=model.device), LookRecord(), []
    cache.may_look_back = False
    cache.feed(model, tokens[:, : seen - 1])
    for place in range(seen - 1, len(ids) - 1):
        logits = cache.feed(model, tokens[:, place : place + 1])
        odds = logits[0].double().log_softmax(-1)
        value = -float(odds.max().exp())
        if signal != "confidence":
            value = float(draws(cache)["drawn_entry"].mean())
        if signal == "drawn and open":
            value *= -float((odds.exp() * odds).sum())
        [rank] = record.ranks([-value], [place])
        if rank < share:
            cache.may_look_back = True
            looked = cache.look_back(model, logits)
            cache.may_look_back = False
            assert looked is not None, "something is cold"
            odds = looked[0].double().log_softmax(-1)
        found.append(-float(odds[ids[place + 1]]))
    return tuple(found), cache.num_looks


def rows(
    settings: RunSettings,
    text: Path,
    *,
    signals: Sequence[Followed],
    share: float,
    seen: int,
    num_tokens: int,
    num_samples: int,
    entries: int,
) -> Iterator[FollowRow]:
    """Decode every continuation under each signal."""
    local = load_run_model(settings)
    assert local is not None, "a language model"
    length = seen + num_tokens
    stream = of_file(text, local.template, num_samples, length)
    policy = trial_policy(make_policy(settings.policies[0]))
    budget = f"{window_bytes(entries, settings, local)}B"
    for signal in signals:
        for number in range(num_samples):
            cache = Cache.for_model(
                local.model,
                policy=policy,
                budget=budget,
                chunk=settings.chunk,
                dtype=local.dtype_of(settings),
            )
            ids = stream.ids[number * length : (number + 1) * length]
            nll, looks = follow(local.model, cache, ids, seen, signal, share)
            yield FollowRow(signal, share, number, nll, looks)


def main() -> None:
    """Measure, and write a row in JSON for every continuation."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="nano")
    parser.add_argument("--policy", default="lookback-int8")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--signals", nargs="+", choices=FOLLOWED, default=FOLLOWED)
    parser.add_argument("--share", type=float, default=0.15)
    parser.add_argument("--seen", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--entries", type=int, default=512)
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    settings = RunSettings.read(model=given.model, policies=(given.policy,), chunk=given.chunk)
    options = {name: value for name, value in vars(given).items() if name not in ("text", "out")}
    made = {"commit": commit(), "processor": processor(), "versions": versions()}
    with given.out.open("w", encoding="utf-8") as file:
        file.write(json.dumps({**options, "text": given.text.name, **made}) + "\n")
        for row in rows(
            settings,
            given.text,
            signals=given.signals,
            share=given.share,
            seen=given.seen,
            num_tokens=given.tokens,
            num_samples=given.samples,
            entries=given.entries,
        ):
            file.write(json.dumps(asdict(row)) + "\n")
            file.flush()
            nll = sum(row.nll) / len(row.nll)
            print(f"{row.signal:16} {row.sample:3} {nll:.4f} {row.num_looks:4}", flush=True)


if __name__ == "__main__":
    main()
