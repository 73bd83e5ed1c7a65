"""What forks of a cache take, and how fast a fork decodes.

    python -m agentkv_lab.forked --model smollm2 --policies full,int8,int4,lookback-int8

feeds a number of random tokens to a cache, forks it, and lets each fork decode further ones. Each
`bytes` row is one policy: what the caches say that they take together, and by how much the memory
of the process grew. Each `speed` row is one round of one policy: milliseconds of a token on a cache
that was never forked, on a copy and on a fork, in turns.
"""

import argparse
import copy
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from agentkv.cache.cache import Cache
from agentkv.cache.forks import group_nbytes
from agentkv.models.load import load_model
from agentkv_tasks.provenance import commit, processor, versions

BUDGET = 512
"""Entries of policies that evict."""

KINDS = ("unforked", "copy", "fork")


@dataclass(frozen=True, slots=True)
class BytesRow:
    """The forks of one policy."""

    policy: str
    tokens: int
    forks: int
    alone: int
    """Bytes of the cache before it was forked, its cold tier included."""
    forked: int
    """Bytes of the cache and its forks together."""
    process: int | None
    """Bytes by which the process grew when the forks were made; None where it cannot be read."""
    decoded: int
    """Tokens that each fork decoded then."""
    after: int
    """Bytes together after that."""
    process_after: int | None
    """Bytes by which the process had grown after that."""


@dataclass(frozen=True, slots=True)
class SpeedRow:
    """One round of one policy."""

    policy: str
    tokens: int
    round: int
    unforked_ms: float
    """Median of a token."""
    copy_ms: float
    fork_ms: float


def bytes_row(model: Any, policy: str, tokens: int, forks: int, decoded: int) -> BytesRow:
    """Measure the bytes of forks, of which each decodes some tokens."""
    cache = _filled(model, policy, tokens)
    warm = copy.deepcopy(cache)
    _decode(model, warm, 2)  # compiled code and work space are there before anything is measured
    del warm
    alone, before = cache.nbytes + cache.cold_nbytes, _process_nbytes()
    made = [cache.fork() for _ in range(forks)]
    forked, grown = group_nbytes([cache, *made]), _grown(before)
    for each in made:
        _decode(model, each, decoded)
    return BytesRow(
        policy=policy,
        tokens=tokens,
        forks=forks,
        alone=alone,
        forked=forked,
        process=grown,
        decoded=decoded,
        after=group_nbytes([cache, *made]),
        process_after=_grown(before),
    )


def speed_rows(
    model: Any, policy: str, tokens: int, rounds: int, decoded: int
) -> Iterator[SpeedRow]:
    """Measure tokens of three caches that hold the same, one after the other in every round."""
    cache = _filled(model, policy, tokens)
    other = copy.deepcopy(cache)
    caches = {"unforked": cache, "copy": copy.deepcopy(cache), "fork": other.fork()}
    for each in caches.values():
        _decode(model, each, 2)
    for number in range(rounds):
        order = KINDS[number % 3 :] + KINDS[: number % 3]
        times = {kind: statistics.median(_decode(model, caches[kind], decoded)) for kind in order}
        yield SpeedRow(policy, tokens, number, times["unforked"], times["copy"], times["fork"])


def _filled(model: Any, policy: str, tokens: int) -> Cache:
    budget = None if policy in ("full", "int8", "int4") else BUDGET
    cache = Cache.for_model(model, policy=policy, budget=budget)
    generator = torch.Generator().manual_seed(0)
    vocabulary = model.get_input_embeddings().num_embeddings
    cache.feed(model, torch.randint(0, vocabulary, (1, tokens), generator=generator))
    return cache


@torch.no_grad()
def _decode(model: Any, cache: Cache, count: int) -> list[float]:
    """Feed some tokens and return the milliseconds of each."""
    times = []
    for token in range(count):
        began = time.perf_counter()
        cache.feed(model, torch.tensor([[token + 1]]))
        times.append((time.perf_counter() - began) * 1000)
    return times


def _process_nbytes() -> int | None:
    """Return the memory of this process, in which a page that is mapped several times counts
    once."""
    path = Path("/proc/self/smaps_rollup")
    if not path.exists():
        return None
    [line] = [each for each in path.read_text().splitlines() if each.startswith("Pss:")]
    return int(line.split()[1]) * 1024


def _grown(before: int | None) -> int | None:
    now = _process_nbytes()
    return None if before is None or now is None else now - before


def _table(found: Sequence[BytesRow | SpeedRow]) -> Iterator[str]:
    for row in found:
        if isinstance(row, BytesRow):
            yield (
                f"{row.policy:16} {row.alone / 2**20:8.1f} MiB alone; with {row.forks} forks "
                f"{row.forked / row.alone:.2f} times; after {row.decoded} tokens of each "
                f"{row.after / row.alone:.2f}"
            )
    for policy in dict.fromkeys(row.policy for row in found):
        own = [row for row in found if isinstance(row, SpeedRow) and row.policy == policy]
        if own:
            base = statistics.median(row.unforked_ms for row in own)
            ratios = {
                "copy": statistics.median(row.copy_ms / row.unforked_ms for row in own),
                "fork": statistics.median(row.fork_ms / row.unforked_ms for row in own),
            }
            told = ", ".join(f"{kind} {ratio:.2f}" for kind, ratio in ratios.items())
            yield f"{policy:16} {base:8.2f} ms a token unforked; times that: {told}"


def main() -> None:
    """Measure, print a table and write rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--policies", default="full,int8,int4,lookback-int8")
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--forks", type=int, default=8)
    parser.add_argument("--decoded", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = load_model(options.model).model
    made = {"commit": commit(), "processor": processor(), "versions": versions()}
    given = {"model": options.model, "threads": options.threads}
    lines, found = [json.dumps({**given, **made})], list[BytesRow | SpeedRow]()
    for policy in options.policies.split(","):
        found.append(bytes_row(model, policy, options.tokens, options.forks, options.decoded))
        found += speed_rows(model, policy, options.tokens, options.rounds, options.decoded)
    for row in found:
        lines.append(json.dumps({"row": type(row).__name__[:-3].lower(), **asdict(row)}))
        print(lines[-1], flush=True)
    print(*_table(found), sep="\n")
    if options.out is not None:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
