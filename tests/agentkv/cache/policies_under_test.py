"""Every named policy with settings for tiny models, and what is expected of each: a new policy gets
the whole suite of invariants for one row here.

Numbers are worked out by hand for four layers of two KV heads and `PROMPT` tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import agentkv
from agentkv.policies.entries import Entries
from agentkv.policies.gates import Confident
from agentkv.policies.policy import Policy

PROMPT = 110
CHUNKS = (PROMPT, 1, 1, 5, 1, 9, 1)
"""A prompt, a reply, an observation, ...; a forward each."""


@dataclass(frozen=True)
class Case:
    """A policy, its budget, and what it then does."""

    make: Callable[[], Policy]
    """Anew for every cache, as policies may learn."""
    budget: int | None = 24
    layers: tuple[int, ...] = (24,) * 4
    """Entries per head in each layer after a prompt, while the model is unsure."""
    sure: tuple[int, ...] | None = None
    """The same once the model is sure; None: it makes no difference."""
    grows_by: int = 0
    """Entries by which a layer may outgrow that before rows go again."""
    shrinks_by: int = 0
    """Entries by which it may fall below while decoding."""
    newest: int = 0
    """Entries that never go."""
    sinks: int = 0
    """First rows that never go."""
    heads: str = "alike"
    """One set of rows for all ("shared"), sets of one size ("alike"), or of any ("ragged")."""
    format: str | None = None
    """Format of the quantized entries."""
    tracked: int = 0
    """Bytes that each row of a lane carries besides its position."""
    norms: int = 0
    """Numbers in float32 that each row of a head carries."""
    window: int = 0
    """Queries that are remembered."""
    phases: int = 1
    """Windows of so many queries."""
    learns: bool = False
    """True if earlier contexts change the number of entries per layer, in the current one too."""
    is_published: bool = True
    """Under its own name with its own parts; False: a variant that only some tests need to see."""

    @property
    def is_bounded(self) -> bool:
        return self.budget is not None


def case(name: str, parameters: dict[str, object] | None = None, **expected: object) -> Case:
    return Case(lambda: agentkv.policy(name, **(parameters or {})), **expected)


def unpublished(name: str, parameters: dict[str, object], **expected: object) -> Case:
    return case(name, parameters, **expected, is_published=False)


def along_keys(rows: Entries):
    """A person's own score: rows whose keys point one way."""
    return rows.keys_values()[0].sum(dim=-1)


def ada_by_confidence() -> Policy:
    """The heads of one paper under the gate of another."""
    gate = Confident(threshold=0.5, weights=(0.4, 0.3, 0.3), tight=None, loose=None)
    return replace(agentkv.policy("ada-snapkv", **SMALL), name="ada-by-confidence", gate=gate)


SMALL = {"window": 6, "kernel": 3}
QUERIES = {"window": 6, "newest": 6}
RAGGED = {"heads": "ragged", **QUERIES}
# 18 rows beyond the window on average: 31.5, 22.5, 13.5 and 4.5 of them, the halves to the first
PYRAMID = {"layers": (38, 29, 19, 10), **QUERIES}
STEEP = SMALL | {"beta": 4}
SURE = {"threshold": 0.5, "protected": 4}
AGED = {"threshold": 0.5, "protected": 8, "recent": 8}
# a position each, and a moving mass
MOVING = {"heads": "shared", "tracked": 4}
INT8 = {"budget": 80, "layers": (80,) * 4, "sure": (40,) * 4, "newest": 8} | MOVING
# 1.25 to 0.75 of 80: 100, 86.67, 73.33, 60; and of 40: 50, 43.33, 36.67, 30
LINE = INT8 | {"layers": (100, 87, 73, 60), "sure": (50, 43, 37, 30)}
ALL = {"budget": None, "layers": (PROMPT,) * 4, "heads": "shared"}

CASES = {
    "full": case("full", **ALL),
    "window": case("window", heads="shared", newest=24),
    "streaming": case("streaming", {"sinks": 3}, heads="shared", sinks=3, newest=21),
    "window-by-span": case("window-by-span", heads="shared", newest=1),
    # it reads no cold entry here, so that what a layer holds alone decides; see `test_lookback.py`
    "lookback": case(
        "lookback", {"threshold": 0.0, "reads": "hot", "slack": 0, "sinks": 3, "short": 0},
        heads="shared", sinks=3, newest=21,
    ),
    "h2o": case("h2o", newest=12, tracked=4),
    "scissorhands": case(
        "scissorhands", {"history": 20, "protected": 4},
        layers=(12,) * 4, grows_by=12, newest=4, tracked=3,
    ),
    "lazy-eviction": case(
        "lazy-eviction", {"threshold": 0.02, "protected": 4, "slack": 0}, newest=4, tracked=8
    ),
    "keydiff": case("keydiff", {"protected": 3}, newest=3),
    "expected-attention": case(
        "expected-attention", {"queries": 9, "horizon": 20, "sinks": 2, "protected": 3},
        sinks=2, newest=3, window=9,
    ),
    "triattention": case(
        "triattention", {"queries": 9, "horizon": 20, "protected": 3, "slack": 0},
        newest=3, window=9,
    ),
    "tova": case("tova", heads="shared", newest=1, window=1),
    "snapkv": case("snapkv", SMALL, **QUERIES),
    "snapkv-by-phase": case("snapkv-by-phase", SMALL, phases=2, **QUERIES),
    "snapkv-by-span": case("snapkv-by-span", SMALL, **QUERIES),
    "pyramidkv": case("pyramidkv", STEEP, **PYRAMID),
    "ada-snapkv": case("ada-snapkv", SMALL, **RAGGED),
    "ada-pyramidkv": case("ada-pyramidkv", STEEP, heads="ragged", **PYRAMID),
    "critical-snapkv": case("critical-snapkv", SMALL, norms=1, **QUERIES),
    "critical-pyramidkv": case("critical-pyramidkv", STEEP, norms=1, **PYRAMID),
    "critical-ada-snapkv": case("critical-ada-snapkv", SMALL, norms=1, **RAGGED),
    "r-kv": case("r-kv", SMALL | {"slack": 0}, **QUERIES),
    # of 19 rows beyond the window 14 stay
    "arkv": case("arkv", SMALL, shrinks_by=4, format="fp8", **QUERIES),
    "edie": case("edie", SMALL, **QUERIES),
    "edie-tada": case("edie-tada", SMALL, learns=True, **RAGGED),
    "conf-kv": case("conf-kv", SURE, sure=(12,) * 4, newest=4, **MOVING),
    "conf-kv-int8": case("conf-kv-int8", AGED, format="int8", **INT8),
    "conf-kv-l": case("conf-kv-l", AGED, format="int8", **LINE),
    "streaming-int8": case(
        "streaming-int8", {"sinks": 3, "recent": 8}, budget=80, layers=(80,) * 4, heads="shared",
        sinks=3, newest=77, format="int8",
    ),
    "lookback-int8": case(
        "lookback-int8",
        {"threshold": 0.0, "reads": "hot", "slack": 0, "sinks": 3, "short": 0, "recent": 8},
        budget=80, layers=(80,) * 4, heads="shared", sinks=3, newest=77, format="int8",
    ),
    "lookback-int4": case(
        "lookback-int4",
        {
            **{"when": "unsure", "threshold": 0.0, "reads": "hot", "slack": 0, "sinks": 3},
            **{"short": 0, "recent": 8},
        },
        budget=80, layers=(80,) * 4, heads="shared", sinks=3, newest=77, format="int4",
    ),
    "int8": case("int8", {"recent": 8}, format="int8", **ALL),
    "int8-max": case("int8-max", {"recent": 8}, format="int8-max", **ALL),
    "fp8": case("fp8", {"recent": 8}, format="fp8", **ALL),
    "int4": case("int4", {"recent": 8}, format="int4", **ALL),
    "nf4": case("nf4", {"recent": 8}, format="nf4", **ALL),
    # ---- other parameters that take another path, parts put together, a person's own
    "h2o-per-query": unpublished("h2o", {"normalize": True}, newest=12, tracked=8),
    "scissorhands-sum": unpublished(
        "scissorhands", {"history": 20, "protected": 4, "variant": "sum"},
        layers=(12,) * 4, grows_by=12, newest=4, tracked=4,
    ),
    "snapkv-slack": unpublished("snapkv", SMALL | {"slack": 5}, grows_by=5, **QUERIES),
    "ada-guarantee": unpublished("ada-snapkv", SMALL | {"safeguard": "guarantee"}, **RAGGED),
    "critical-by-head": unpublished(
        "critical-ada-snapkv", SMALL | {"gqa": "product_then_mean"}, norms=2, **RAGGED
    ),
    "critical-raw": unpublished("critical-snapkv", SMALL | {"pooled": False}, norms=1, **QUERIES),
    "arkv-int8": unpublished(
        "arkv", SMALL | {"format": "int8"}, shrinks_by=4, format="int8", **QUERIES
    ),
    "arkv-int4": unpublished(
        "arkv", SMALL | {"format": "int4"}, shrinks_by=4, format="int4", **QUERIES
    ),
    "arkv-nf4": unpublished(
        "arkv", SMALL | {"format": "nf4"}, shrinks_by=4, format="nf4", **QUERIES
    ),
    "conf-kv-fp8": unpublished("conf-kv-int8", AGED | {"format": "fp8"}, format="fp8", **INT8),
    "conf-kv-int4": unpublished("conf-kv-int8", AGED | {"format": "int4"}, format="int4", **INT8),
    "conf-kv-nf4": unpublished("conf-kv-int8", AGED | {"format": "nf4"}, format="nf4", **INT8),
    "ada-by-confidence": Case(
        ada_by_confidence, sure=(12,) * 4, is_published=False, **RAGGED
    ),
    "along-keys": Case(
        lambda: agentkv.scored("along-keys", along_keys, sinks=2, protected=3),
        sinks=2, newest=3, is_published=False,
    ),
}  # fmt: skip

PUBLISHED = {name: case for name, case in CASES.items() if case.is_published}
BOUNDED = {name: case for name, case in CASES.items() if case.is_bounded}

TOLERANCE = {None: 0.0, "int8": 0.03, "int8-max": 0.03, "fp8": 2**-4, "int4": 0.21, "nf4": 0.25}
"""Largest deviation of a few entries, relative and in Frobenius norm: heads are 8 wide, and half
a step of the coarsest scale in every channel is that much."""
