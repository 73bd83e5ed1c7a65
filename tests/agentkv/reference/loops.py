"""Every named policy as plain loops over positions, written from the papers and not from the code.

A policy is an object with one method, `step`, called once after every chunk of tokens. It looks at
the layers of a dense model (`dense.py`) and shortens their `held` lists. Where a paper is silent or
its formula is lost, the docstring says "our choice"; the choice is the one that
`agentkv policies NAME` states. Symbols: T tokens held by a head, w window queries, b the budget of
a head in tokens.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from tests.agentkv.reference.dense import Dense, Layer
from tests.agentkv.reference.formats import SIZE, ByToken, Int4, Int8, fp8

Head = int
Position = int


class Policy:
    """Keeps everything: `full`."""

    def __init__(self, budget: int | None) -> None:
        self.budget = budget
        self.margins: list[float] = []
        """Per layer: how close the latest step's closest decision was, relative."""

    def before(self, num_new: int) -> None:
        """See that `num_new` tokens are about to be taken in."""

    def step(self, layers: Sequence[Layer], num_new: int, logits: np.ndarray | None) -> None:
        """Take in `num_new` tokens, the last of which has these logits; None: more of the same
        forward follows, and a gate waits for its end (our choice)."""
        self.margins = [math.inf] * len(layers)
        self.layers = [layer for layer in layers if layer.sliding is None]
        for layer in self.layers:
            self.notice(layer, num_new)
        self.evict(num_new, logits)

    def notice(self, layer: Layer, num_new: int) -> None:
        """Update what the policy remembers of the tokens of one layer."""

    def evict(self, num_new: int, logits: np.ndarray | None) -> None:
        """Let tokens go wherever more are held than may be."""

    def look_back(self, dense: Dense, id: int, logits: np.ndarray) -> np.ndarray:
        """The logits that count after a forward that ended with the token `id`."""
        return logits

    def read_ahead(self, dense: Dense, ids: Sequence[int]) -> None:
        """See an input of several tokens before the model reads it."""

    # ---- the only ways in which anything is ever chosen

    def best(self, layer: Layer, scores: dict, count: int) -> set:
        """The `count` keys with the largest scores; of equal ones the newer."""
        order = sorted(scores, key=lambda key: (scores[key], key), reverse=True)
        if 0 < count < len(order):
            self.close(layer, scores[order[count - 1]], scores[order[count]])
        return set(order[:count])

    def close(self, layer: Layer, a: float, b: float) -> None:
        """Note by how little one decision about a layer was made. Equal numbers are no near tie:
        what then happens is laid down."""
        if a != b:
            number = self.number(layer)
            self.margins[number] = min(self.margins[number], abs(a - b) / max(abs(a), abs(b)))

    def number(self, layer: Layer) -> int:
        return next(i for i, other in enumerate(self.layers) if other is layer)


def keep(held: list[Position], kept: Iterable[Position]) -> None:
    kept = set(kept)
    assert kept <= set(held)
    held[:] = [i for i in held if i in kept]


def whole(shares: Sequence[float], total: int) -> list[int]:
    """Whole numbers near `shares` that sum to `total`: the largest remainders are rounded up."""
    counts = [math.floor(share + 1e-9) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda i: (counts[i] - shares[i], i))
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts


def norm(x: np.ndarray) -> float:
    return math.sqrt(float(x @ x))


def frequencies(base: float, size: int) -> list[float]:
    """Rotary embedding turns channels i and i + D / 2 by this angle from one position to the next
    (RoFormer, arXiv 2104.09864)."""
    return [base ** (-2 * i / size) for i in range(size // 2)]


def pooled(scores: Sequence[float], kernel: int, how: str) -> list[float]:
    """Max over what is there, or a mean whose divisor is always the kernel."""
    half = kernel // 2
    out = []
    for i in range(len(scores)):
        near = scores[max(0, i - half) : i + half + 1]
        out.append(max(near) if how == "max" else sum(near) / kernel)
    return out


# ---------------------------------------------------------------------------- age


class Kinds:
    """Sorts tokens into pages and replies, and gives each token the factor of its kind.

    Several tokens at once are a page, one alone belongs to a reply. The latest page has 1."""

    def __init__(self, factors: dict[str, float]) -> None:
        self.factors = factors
        self.kinds: list[str] = []

    def read(self, num_new: int) -> None:
        self.kinds += ["reply" if num_new == 1 else "page"] * num_new

    def factor(self, position: Position) -> float:
        kinds, last = self.kinds, max(i for i, kind in enumerate(self.kinds) if kind == "page")
        first = next((i + 1 for i in range(last, -1, -1) if kinds[i] == "reply"), 0)
        return 1.0 if first <= position <= last else self.factors[kinds[position]]


class Window(Policy):
    """The newest tokens, and the first `sinks` (StreamingLLM, arXiv 2309.17453).

    Positions stay those seen (our choice).
    """

    def __init__(self, budget: int, sinks: int = 0) -> None:
        super().__init__(budget)
        self.sinks = sinks

    def evict(self, num_new: int, logits: np.ndarray | None) -> None:
        for layer in self.layers:
            for held in layer.held:
                if len(held) > self.budget:
                    newest = held[len(held) - (self.budget - self.sinks) :]
                    keep(held, [i for i in held if i < self.sinks] + newest)


class WindowBySpan(Policy):
    """The tokens with the most `factor / age`: `left` on pages that were left, `replies` on
    replies, else 1 (our choice)."""

    def __init__(self, budget: int, *, left: float, replies: float) -> None:
        super().__init__(budget)
        self.spans = Kinds({"page": left, "reply": replies})

    def step(self, layers: Sequence[Layer], num_new: int, logits: np.ndarray | None) -> None:
        self.spans.read(num_new)
        super().step(layers, num_new, logits)

    def evict(self, num_new: int, logits: np.ndarray | None) -> None:
        for layer in self.layers:
            for held in layer.held:
                if len(held) > self.budget:
                    worth = {i: self.spans.factor(i) / (layer.num_seen - i) for i in held}
                    keep(held, self.best(layer, worth, self.budget))


class Lookback(Window):
    """`Window`, from which tokens move to a cold tier.

    If the likeliest next token has a probability below `threshold`, the newest token is computed
    again, with the blocks of cold tokens that would get the largest share of attention from any of
    its heads. They stay, as the youngest. Several tokens at once attend to all cold tokens too, and
    none of them looks back (our choice).

    The tier holds `bound` tokens at most. A token that came back counts there too. Where more would
    come, cold tokens that left first are forgotten, until an eighth of the bound is free (our
    choice).
    """

    reads_all = True

    def __init__(
        self,
        budget: int,
        threshold: float,
        blocks: int,
        block: int,
        sinks: int,
        cold: int | None = None,
    ) -> None:
        super().__init__(budget, sinks)
        self.is_reading = False
        self.bound, self.num_forgotten = cold, 0
        self.tier: dict[Layer, list[Position]] = {}
        """Tokens in the order in which they left first, those that came back among them."""
        self.threshold, self.blocks, self.block, self.draw = threshold, blocks, block, 0.0
        self.cold: dict[Layer, set[Position]] = {}
        self.looked: list[bool] = []
        """Of every forward, whether its last token looked back."""

    def before(self, num_new: int) -> None:
        self.is_reading = self.reads_all and num_new > 1
        for layer, cold in self.cold.items() if self.is_reading else ():
            for held in layer.held:
                held.extend(cold)

    def evict(self, num_new: int, logits: np.ndarray | None) -> None:
        for layer, cold in self.cold.items():
            for held in layer.held:
                held[:] = [i for i in held if i not in cold]
        before = [list(layer.held[0]) for layer in self.layers]
        super().evict(num_new, logits)
        for layer, held in zip(self.layers, before, strict=True):
            tier, left = self.tier.setdefault(layer, []), set(held) - set(layer.held[0])
            tier.extend(i for i in held if i in left and i not in tier)
            cold = self.cold.setdefault(layer, set())
            cold.update(left)
            if self.bound is not None and len(tier) > self.bound:
                excess = len(tier) - self.bound + self.bound // 8
                for i in [i for i in tier if i in cold][:excess]:
                    tier.remove(i)
                    cold.remove(i)
                    self.num_forgotten += 1

    def look_back(self, dense: Dense, id: int, logits: np.ndarray) -> np.ndarray:
        odds = np.exp(logits - logits.max())
        is_unsure = odds.max() / odds.sum() < self.threshold and not self.is_reading
        self.looked.append(bool(is_unsure and any(self.cold.values())))
        if self.looked[-1]:
            logits = dense.again(id, self.fetch)
            self.evict(1, logits)
        return logits

    def fetch(self, layer: Layer) -> None:
        cold = self.cold.get(layer)
        if not cold:
            return
        shares = dict.fromkeys(cold, 0.0)
        for h, held in enumerate(layer.held):
            for query in layer.queries[h, :, -1]:
                logits = {i: layer.keys[h, i] @ query * layer.scaling for i in (*held, *cold)}
                most = max(logits.values())
                total = sum(math.exp(logit - most) for logit in logits.values())
                for i in cold:
                    shares[i] = max(shares[i], math.exp(logits[i] - most) / total)
        by_block: dict[int, float] = {}
        for i, share in shares.items():
            by_block[i // self.block] = max(by_block.get(i // self.block, 0.0), share)
        for share in by_block.values() if self.draw else ():
            self.close(layer, share, self.draw)
        by_block = {i: share for i, share in by_block.items() if share >= self.draw}
        chosen = self.best(layer, by_block, self.blocks)
        fetched = sorted(i for i in cold if i // self.block in chosen)
        cold.difference_update(fetched)
        for held in layer.held:
            held.extend(fetched)


# ---------------------------------------------------------------------------- history


class H2O(Policy):
    """The sum over all queries t >= i of A_{t,i} ranks token i; the newest half of the budget stays
    (H2O, arXiv 2306.14048, algorithm 1). The group's query heads are averaged (our choice)."""

    def __init__(self, budget: int) -> None:
        super().__init__(budget)
        self.sums: dict[tuple[Layer, Head, Position], float] = {}

    def notice(self, layer: Layer, num_new: int) -> None:
        for h, held in enumerate(layer.held):
            for i in held:
                drawn = layer.weights[h, :, :, i].sum() / layer.weights.shape[1]
                self.sums[layer, h, i] = self.sums.get((layer, h, i), 0.0) + drawn

    def evict(self, num_new: int, logits: np.ndarray | None) -> None:
        recent = self.budget // 2
        for layer in self.layers:
            for h, held in enumerate(layer.held):
                if len(held) > self.budget:
                    old, new = held[:-recent], held[-recent:]
                    scores = {i: self.sums[layer, h, i] for i in old}
                    keep(held, self.best(layer, scores, self.budget - recent) | set(new))


class Scissorhands(Policy):
    """A token is passed over by a query that gives it less than 1 / (tokens the query could see);
    of all but the newest, those go that most of the last `history` queries passed over
    (Scissorhands, arXiv 2305.17118, algorithm 2).

    Over budget, `drop` of the budget goes at once. The group is averaged first (our choice).
    """

    def __init__(self, budget: int, history: int, protected: int, drop: float) -> None:
        super().__init__(budget)
        self.history, self.protected, self.drop = history, protected, drop
        self.passed_over: dict[tuple[Layer, Head, Position], list[Position]] = {}
        """By whom: positions of queries."""

    def notice(self, layer: Layer, num_new: int) -> None:
        first = layer.num_seen - num_new
        for h, held in enumerate(layer.held):
            weights = layer.weights[h].mean(axis=0)
            for t in range(first, layer.num_seen):
                visible = [i for i in held if i <= t]
                for i in visible:
                    by = self.passed_over.setdefault((layer, h, i), [])
                    if weights[t - first, i] < 1 / len(visible):
                        by.append(t)

    def evict(self, num_new: int, logits: np.ndarray | None) -> None:
        for layer in self.layers:
            since = layer.num_seen - self.history
            for h, held in enumerate(layer.held):
                if len(held) > self.budget:
                    old, new = held[: -self.protected], held[-self.protected :]
                    scores = {
                        i: -sum(1 for t in self.passed_over[layer, h, i] if t >= since) for i in old
                    }
                    target = self.budget - int(self.drop * self.budget)
                    keep(held, self.best(layer, scores, target - self.protected) | set(new))


class LazyEviction(Policy):
    """A query activates the tokens to which it gives at least alpha. Of a token with its last
    activation at time l and the longest time m between two, at time t,
    2 / (1 + exp(1 + (t - l) / m)) + 2 / (1 + exp(m - 1)) is the importance (LazyEviction, arXiv
    2506.15969; both terms as in its code, with m + 0.00001 in the first and no second one if m is
    0).

    The w newest stay, and nothing goes before w more tokens are held than may be. A token begins
    with l one before its own position; the group is averaged first, and the tokens of a page count
    like decoded ones (our choice).
    """

    def __init__(self, budget: int, threshold: float, window: int) -> None:
        super().__init__(budget)
        self.threshold, self.window = threshold, window
        self.times: dict[tuple[Layer, Head, Position], list[Position]] = {}
        """When each token was activated, after the time at which it begins."""

    def notice(self, layer: Layer, num_new: int) -> None:
        first = layer.num_seen - num_new
        for h, held in enumerate(layer.held):
            weights = layer.weights[h].mean(axis=0)
            for i in held:
                times = self.times.setdefault((layer, h, i), [i - 1])
                times += [
                    t
                    for t in range(max(i, first), layer.num_seen)
                    if weights[t - first, i] >= self.threshold
                ]

    def longest(self, layer: Layer, head: Head, position: Position) -> int:
        times = self.times[layer, head, position]
        return max((b - a for a, b in pairwise(times)), default=0)

    def importance(self, layer: Layer, head: Head, position: Position) -> float:
        since = layer.num_seen - 1 - self.times[layer, head, position][-1]
        longest = self.longest(layer, head, position)
        first = 2 / (1 + math.exp(min(700, 1 + since / (longest + 1e-5))))
        second = 2 / (1 + math.exp(longest - 1)) if longest else 0.0
        return float(np.float32(first + second))  # as exactly as scores are

    def evict(self, num_new: int, logits: np.ndarray | None) -> None:
        for layer in self.layers:
            for h, held in enumerate(layer.held):
                if len(held) >= self.budget + self.window:
                    old, new = held[: -self.window], held[-self.window :]
                    scores = {i: self.importance(layer, h, i) for i in old}
                    keep(held, self.best(layer, scores, self.budget - self.window) | set(new))


# ---------------------------------------------------------------------------- a window of queries


class SnapKV(Policy):
    """Return the attention of the last w queries to each older token: mean over the queries and the
    group's heads, then a max pool along the older tokens (SnapKV, arXiv 2404.14469).

    The w newest tokens stay. The pool runs along the tokens held, and a layer is cut whenever it is
    over its budget, also while decoding (both our choice).
    """

    def __init__(self, budget: int, window: int, kernel: int, pool: str = "max") -> None:
        super().__init__(budget)
        self.window, self.kernel, self.pool = window, kernel, pool

    def scores(self, layer: Layer, head: Head) -> dict[Position, float]:
        weights = layer.window(head, self.window)
        past = weights.mean(axis=(0, 1))[: -self.window]
        return self.by_position(layer, head, pooled(list(past), self.kernel, self.pool))

    def by_position(self, layer: Layer, head: Head, scores: Iterable[float]) -> dict:
        old = layer.held[head][: -self.window]
        return dict(zip(old, scores, strict=True))

    def budgets(self) -> list[int]:
        """Tokens per head in each layer."""
        return [self.budget] * len(self.layers)

    def evict(self, num_new: int, logits: np.ndarray | None) -> None:
        for layer, budget in zip(self.layers, self.budgets(), strict=True):
            held = sum(len(of_head) for of_head in layer.held)
            if held > budget * len(layer.held):
                scores = [self.scores(layer, h) for h in range(len(layer.held))]
                counts = self.counts(layer, scores, budget - self.window)
                for h, count in enumerate(counts):
                    chosen = self.select(layer, h, scores[h], count)
                    keep(layer.held[h], chosen | set(layer.held[h][-self.window :]))

    def counts(self, layer: Layer, scores: list[dict], average: int) -> list[int]:
        """Return the number of older tokens that each head keeps."""
        return [average] * len(scores)

    def select(self, layer: Layer, head: Head, scores: dict, count: int) -> set:
        return self.best(layer, scores, count)


class SnapKVByPhase(SnapKV):
    """`SnapKV` by the last w queries read, which came several at a time, and the last w written,
    one at a time (our choice)."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.read: list[Position] = []
        self.written: list[Position] = []
        self.num_mixed = 0
        """Heads that were scored by both."""

    def step(self, layers: Sequence[Layer], num_new: int, logits: np.ndarray | None) -> None:
        last = layers[0].num_seen
        (self.written if num_new == 1 else self.read).extend(range(last - num_new, last))
        super().step(layers, num_new, logits)

    def scores(self, layer: Layer, head: Head) -> dict[Position, float]:
        queries = self.read[-self.window :] + self.written[-self.window :]
        self.num_mixed += bool(self.read and self.written)
        held, group = layer.held[head], layer.queries.shape[1]
        drawn = [layer.weights_of(head, g, t)[held] for g in range(group) for t in queries]
        past = (sum(drawn) / len(drawn))[: -self.window]
        return self.by_position(layer, head, pooled(list(past), self.kernel, self.pool))


class SnapKVBySpan(SnapKV):
    """`SnapKV` whose scores are multiplied by `left` on pages that were left and by `replies` on
    replies (our choice)."""

    def __init__(self, *args: object, left: float, replies: float, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.spans = Kinds({"page": left, "reply": replies})

    def step(self, layers: Sequence[Layer], num_new: int, logits: np.ndarray | None) -> None:
        self.spans.read(num_new)
        super().step(layers, num_new, logits)

    def scores(self, layer: Layer, head: Head) -> dict[Position, float]:
        scores = super().scores(layer, head)
        return {i: score * self.spans.factor(i) for i, score in scores.items()}


class Tova(Policy):
    """The tokens that the newest query attends to most, in the mean over all heads; the newest
    stays (TOVA, arXiv 2401.06104)."""

    def evict(self, num_new: int, logits: np.ndarray | None) -> None:
        for layer in self.layers:
            held = layer.held[0]
            if len(held) > self.budget:
                weights = [layer.window(h, 1).mean(axis=(0, 1)) for h in range(len(layer.held))]
                drawn = dict(zip(held[:-1], sum(weights) / len(weights), strict=False))
                kept = self.best(layer, drawn, self.budget - 1) | {held[-1]}
                for of_head in layer.held:
                    keep(of_head, kept)


class KeyDiff(Policy):
    """The tokens whose keys are least like the mean of all unit keys (KeyDiff, arXiv 2504.15364).

    Keys are rotated, as a cache holds them (kvpress).
    """

    def evict(self, num_new: int, logits: np.ndarray | None) -> None:
        for layer in self.layers:
            for h, held in enumerate(layer.held):
                if len(held) > self.budget:
                    units = {i: layer.keys[h, i] / norm(layer.keys[h, i]) for i in held}
                    mean = sum(units.values()) / len(units)
                    scores = {i: -float(unit @ mean) / norm(mean) for i, unit in units.items()}
                    keep(held, self.best(layer, scores, self.budget))


class ExpectedAttention(Policy):
    """The tokens to which coming queries would attend, times the length of their value (Expected
    Attention, arXiv 2510.00636, section 3).

    A query at position t has the mean R_t mu and the covariance R_t C R_t', mu and C being those of
    the last w queries before rotation. R is the mean of R_t over the next n positions, and the
    logit of key k is then distributed so that E exp = exp(k R mu s + k R C R' k s^2 / 2), with the
    scale s. The first tokens stay, and their queries do not count (kvpress).
    """

    def __init__(
        self, budget: int, queries: int, horizon: int, sinks: int, frequencies: Sequence[float]
    ) -> None:
        super().__init__(budget)
        self.queries, self.horizon, self.sinks = queries, horizon, sinks
        self.frequencies = frequencies
        """Angles per position of channels i and i + D / 2; empty without rotation."""

    def rotation(self, position: int) -> np.ndarray:
        """(D, D)."""
        half = len(self.frequencies)
        matrix = np.zeros((2 * half, 2 * half))
        for i, frequency in enumerate(self.frequencies):
            angle = position * frequency
            matrix[i, i] = matrix[i + half, i + half] = math.cos(angle)
            matrix[i + half, i], matrix[i, i + half] = math.sin(angle), -math.sin(angle)
        return matrix

    def before_rotation(self, layer: Layer, head: Head, member: int) -> list[np.ndarray]:
        """The last queries that count."""
        first = max(self.sinks, layer.num_seen - self.queries)
        queries = layer.queries[head, member]
        if not self.frequencies:
            return [queries[i] for i in range(first, layer.num_seen)]
        return [self.rotation(-i) @ queries[i] for i in range(first, layer.num_seen)]

    def evict(self, num_new: int, logits: np.ndarray | None) -> None:
        for layer in self.layers:
            for h, held in enumerate(layer.held):
                if len(held) > self.budget:
                    old = held[self.sinks :]
                    scores = dict(zip(old, self.expected(layer, h, old), strict=True))
                    kept = self.best(layer, scores, self.budget - self.sinks)
                    keep(held, kept | set(held[: self.sinks]))

    def expected(self, layer: Layer, head: Head, old: list[Position]) -> list[float]:
        coming = range(layer.num_seen, layer.num_seen + self.horizon)
        size, group = layer.keys.shape[2], layer.queries.shape[1]
        turn = np.eye(size)
        if self.frequencies:
            turn = sum(self.rotation(t) for t in coming) / self.horizon
        sums = [0.0] * len(old)
        for g in range(group):
            queries = np.array(self.before_rotation(layer, head, g))
            mean = turn @ queries.mean(axis=0)
            spread = turn @ np.cov(queries.T, bias=True) @ turn.T
            logits = []
            for i in old:
                key = layer.keys[head, i] * layer.scaling
                logits.append(float(key @ mean + key @ spread @ key / 2))
            odds = [math.exp(logit - max(logits)) for logit in logits]
            for place, odd in enumerate(odds):
                sums[place] += odd / sum(odds) / group
        return [total * norm(layer.values[head, i]) for total, i in zip(sums, old, strict=True)]


class TriAttention(ExpectedAttention):
    """The tokens whose keys the queries prefer at their distance (TriAttention, arXiv 2604.04921).

    Before rotation, the pair of channels of angle f is a complex number in queries and keys: q_f,
    k_f. With the mean E q_f over the last w queries, the token at position i gets, from a query at
    position t, the sum over f of |E q_f| |k_f| cos(f (t - i) + arg E q_f - arg k_f), and at all
    distances the sum of (E |q_f| - |E q_f|) |k_f|. That is averaged over t = 1, 2, 4, ... positions
    behind the newest token, standardized, and the group's largest counts (its code). The newest
    tokens stay. Which queries E is taken over is our choice.
    """

    def __init__(self, *args: object, protected: int, **kwargs: object) -> None:
        super().__init__(*args, sinks=0, **kwargs)
        self.protected = protected

    def evict(self, num_new: int, logits: np.ndarray | None) -> None:
        for layer in self.layers:
            for h, held in enumerate(layer.held):
                if len(held) > self.budget:
                    scores = dict(zip(held, self.preferred(layer, h), strict=True))
                    new = held[-self.protected :]
                    old = {i: scores[i] for i in held if i not in new}
                    keep(held, self.best(layer, old, self.budget - self.protected) | set(new))

    def pairs(self, x: np.ndarray) -> np.ndarray:
        half = len(self.frequencies)
        return x[:half] + 1j * x[half:]

    def preferred(self, layer: Layer, head: Head) -> list[float]:
        newest, f = layer.num_seen - 1, np.array(self.frequencies)
        steps = [2**n for n in range(20) if 2**n <= self.horizon]
        by_member = []
        for g in range(layer.queries.shape[1]):
            queries = np.array([self.pairs(q) for q in self.before_rotation(layer, head, g)])
            mean, size = queries.mean(axis=0), np.abs(queries).mean(axis=0)
            scores = []
            for i in layer.held[head]:
                k = self.pairs(self.rotation(-i) @ layer.keys[head, i])
                phase = np.angle(mean) - np.angle(k)
                series = [
                    float((np.abs(mean) * np.abs(k) * np.cos(f * (newest + s - i) + phase)).sum())
                    for s in steps
                ]
                rest = float(((size - np.abs(mean)) * np.abs(k)).sum())
                scores.append(sum(series) / len(series) + rest)
            by_member.append((np.array(scores) - np.mean(scores)) / np.std(scores))
        return [float(max(of_token)) for of_token in np.array(by_member).T]


class RKV(SnapKV):
    """Attention of the last w queries to older tokens, less how much their keys repeat others
    (R-KV, arXiv 2505.24133).

    Of a query the largest weight of the group's heads counts (our choice). Of the tokens that a key
    resembles the newest is passed over.
    """

    share, similarity = 0.1, 0.5
    num_alike = 0
    """Keys that resembled another when tokens were scored."""

    def scores(self, layer: Layer, head: Head) -> dict[Position, float]:
        weights = layer.window(head, self.window)
        drawn = np.zeros(len(layer.held[head]) - self.window)
        for query in range(weights.shape[1]):
            largest = [max(of_head) for of_head in weights[:, query].T][: -self.window]
            drawn += np.array(largest) / sum(largest) / weights.shape[1]
        importance = pooled(list(drawn), self.kernel, "max")
        odds = [math.exp(mean) for mean in self.repeats(layer, head)]
        total = sum(odds)
        both = zip(importance, odds[: -self.window], strict=True)
        blended = [self.share * a - (1 - self.share) * b / total for a, b in both]
        return self.by_position(layer, head, blended)

    def repeats(self, layer: Layer, head: Head) -> list[float]:
        """Per token held: mean cosine of its key and the others, whatever they pass over."""
        held = layer.held[head]
        units = [layer.keys[head, i] / norm(layer.keys[head, i]) for i in held]
        sums = [0.0] * len(held)
        for i, unit in enumerate(units):
            cosines = [0.0 if i == j else float(unit @ other) for j, other in enumerate(units)]
            alike = [j for j, cosine in enumerate(cosines) if cosine > self.similarity]
            self.num_alike += bool(alike)
            for j, cosine in enumerate(cosines):
                sums[j] += 0.0 if alike and j == alike[-1] else cosine
        return [total / len(held) for total in sums]


class Pyramid(SnapKV):
    """`SnapKV` with layers along a line (PyramidKV, arXiv 2406.02069).

    With e = b - w tokens of the budget that may go, the last layer gets n_min = e / beta of them
    and the first n_max = 2e - n_min, or all there are, and the last then more. Layers are equal
    while no more than b or fewer than 2e tokens were seen (its code's branches). They sum to the
    budget exactly (our choice).
    """

    def __init__(self, budget: int, window: int, kernel: int, beta: float) -> None:
        super().__init__(budget, window, kernel)
        self.beta = beta

    def budgets(self) -> list[int]:
        seen, num_layers = self.layers[0].num_seen, len(self.layers)
        average = self.budget - self.window
        if seen <= self.budget or seen < 2 * average:
            return [self.budget] * num_layers
        least = average / self.beta
        most = 2 * average - least
        if most >= seen - self.window:
            most = seen - self.window
            least = 2 * average - most
        line = [most - n * (most - least) / (num_layers - 1) for n in range(num_layers)]
        return [self.window + count for count in whole(line, average * num_layers)]


class Ada:
    """Heads of a layer compete (Ada-KV, algorithms 2 and 3).

    The best H * (b - w) older tokens of all heads say how many each head wins. It keeps 1 - floor
    of that and floor of an equal share.
    """

    floor: float

    def counts(self, layer: Layer, scores: list[dict], average: int) -> list[int]:
        num_heads = len(scores)
        every = {(h, i): s for h, of_head in enumerate(scores) for i, s in of_head.items()}
        won = self.best(layer, every, num_heads * average)
        shares = [
            (1 - self.floor) * sum(1 for head, _ in won if head == h) + self.floor * average
            for h in range(num_heads)
        ]
        counts = whole(shares, num_heads * average)
        # no head keeps more than it has: what it cannot use goes to the others
        while any(n > len(s) for n, s in zip(counts, scores, strict=True)):
            for h in range(num_heads):
                if counts[h] > len(scores[h]):
                    counts[h] -= 1
                    counts[(h + 1) % num_heads] += 1
        return counts


class AdaSnapKV(Ada, SnapKV):
    def __init__(self, budget: int, window: int, kernel: int, floor: float) -> None:
        SnapKV.__init__(self, budget, window, kernel)
        self.floor = floor


class AdaPyramid(Ada, Pyramid):
    def __init__(self, budget: int, window: int, kernel: int, beta: float, floor: float) -> None:
        Pyramid.__init__(self, budget, window, kernel, beta)
        self.floor = floor


class Critical:
    """A quarter of what a head keeps goes by attention, the rest by attention times the L1 norm of
    the value after the output projection (CriticalKV, algorithms 1 and 2).

    Both stages take the pooled score, the second one plus epsilon, and norms are averaged over the
    group (our choice, as kvpress).
    """

    first_stage = 0.25
    epsilon = 1e-4

    def select(self, layer: Layer, head: Head, scores: dict, count: int) -> set:
        first = self.best(layer, scores, math.floor(self.first_stage * count))
        products = {
            i: (score + self.epsilon) * self.norm(layer, head, i)
            for i, score in scores.items()
            if i not in first
        }
        return first | self.best(layer, products, count - len(first))

    def norm(self, layer: Layer, head: Head, position: Position) -> float:
        value, group = layer.values[head, position], layer.queries.shape[1]
        norms = [np.abs(value @ layer.projection(head, g)).sum() for g in range(group)]
        return sum(norms) / group


class CriticalSnapKV(Critical, SnapKV):
    pass


class CriticalPyramid(Critical, Pyramid):
    pass


class CriticalAdaSnapKV(Critical, AdaSnapKV):
    pass


# ---------------------------------------------------------------------------- ARKV


class Arkv(SnapKV):
    """Tokens are original, quantized or gone (ARKV, equations 3 to 10, algorithm 1).

    S = mean + gamma * variance of what the group's heads and the window's queries give a token
    (equation 9, with the variance of algorithm 1), smoothed over 5 (its code). Over budget
    floor(alpha * (T - W)) older tokens stay (equation 10), B - W at most. The best rho * (B - W) of
    them stay original and the others are in fp8, for good.
    """

    def __init__(self, budget: int, window: int, kernel: int, alpha: float = 0.75) -> None:
        super().__init__(budget, window, kernel, "avg")
        self.gamma, self.alpha = 263.81, alpha
        self.temperatures = (7.774, 5.407, 5.528)
        self.ratios: list[float] = []
        self.prefilling = True
        self.quantized: set[tuple[Layer, Head, Position]] = set()

    def scores(self, layer: Layer, head: Head) -> dict[Position, float]:
        weights = layer.window(head, self.window)[..., : -self.window]
        scores = weights.mean(axis=(0, 1)) + self.gamma * weights.var(axis=(0, 1))
        return self.by_position(layer, head, pooled(list(scores), self.kernel, "avg"))

    def quality(self, layer: Layer) -> float:
        """Equations 3 to 6: entropy, variance and kurtosis of the mass p_k over key positions."""
        mass = np.zeros(layer.num_seen)
        for h, held in enumerate(layer.held):
            mass[held] += layer.window(h, self.window).sum(axis=(0, 1))
        p = mass[: layer.num_seen - self.window]
        p = p / p.sum()
        entropy = -sum(x * math.log(x) for x in p if x > 0)
        variance = ((p - p.mean()) ** 2).mean()
        kurtosis = ((p - p.mean()) ** 4).mean() / variance**2
        features = (entropy, variance, kurtosis)
        return math.prod(f ** (1 / t) for f, t in zip(features, self.temperatures, strict=True))

    def evict(self, num_new: int, logits: np.ndarray | None) -> None:
        seen = self.layers[0].num_seen
        if num_new == 1:
            self.prefilling = False
        if self.prefilling:
            qualities = [self.quality(layer) for layer in self.layers]
            self.ratios = [q / max(qualities) for q in qualities]  # equation 7
        self.prefilling &= seen <= self.budget
        for number, layer in enumerate(self.layers):
            for h, held in enumerate(layer.held):
                if len(held) > self.budget:
                    scores = self.scores(layer, h)
                    most = self.budget - self.window
                    count = min(math.floor(self.alpha * len(scores)), most)
                    kept = self.best(layer, scores, count)
                    exact = round(self.ratio(number) * most)  # rounded as in its code
                    original = self.best(layer, {i: scores[i] for i in kept}, exact)
                    self.quantize(layer, h, kept - original)
                    keep(held, kept | set(held[-self.window :]))

    def ratio(self, layer: int) -> float:
        """Original tokens among those that the budget allows beyond the window."""
        return self.ratios[layer]

    def quantize(self, layer: Layer, head: Head, positions: set[Position]) -> None:
        for i in positions:
            if (layer, head, i) not in self.quantized:
                self.quantized.add((layer, head, i))
                layer.keys[head, i] = fp8(layer.keys[head, i])
                layer.values[head, i] = fp8(layer.values[head, i])


# ---------------------------------------------------------------------------- EDIE and TADA


class Edie(SnapKV):
    """A bound on how far the output moves if a token goes, weighted by c_j and summed over window
    queries and the group's heads (EDIE, equations 9 to 11), then a mean pool (its appendix A)."""

    alpha = 0.1

    def __init__(self, budget: int, window: int, kernel: int) -> None:
        super().__init__(budget, window, kernel, "avg")

    def importance(self, layer: Layer, head: Head) -> list[float]:
        """I_i of every older token, before the pool."""
        w, held = self.window, layer.held[head]
        values = layer.values[head, held]
        value_norms = np.abs(values).sum(axis=1)
        total = np.zeros(len(held))
        for of_member in layer.window(head, w):
            for a in of_member:
                output_norm = np.abs(a @ values).sum()
                bound = a / (1 + self.alpha - a) * (value_norms + output_norm)  # equation 9
                middle = a[w : len(held) - 2 * w]
                weight = middle.max() if len(middle) else 1.0  # equation 10; 1 is our choice
                total += weight * bound  # equation 11
        return list(total[:-w])

    def scores(self, layer: Layer, head: Head) -> dict[Position, float]:
        importance = self.importance(layer, head)
        return self.by_position(layer, head, pooled(importance, self.kernel, "avg"))


class EdieTada(Edie):
    """Layers share the capacity out by their mean error over earlier contexts; in a layer the best
    pairs of head and token stay (TADA, equations 12 to 18).

    A context is a forward of several tokens, and what is decoded after it goes by the same earlier
    ones. The first context is shared out equally. No layer gets less than its window or more than
    was seen (all our choice).
    """

    def __init__(self, budget: int, window: int, kernel: int) -> None:
        super().__init__(budget, window, kernel)
        self.errors: list[list[float]] = []
        """Per context, the present one included: E of each layer."""
        self.num_earlier = 0

    def error(self, layer: Layer) -> float:
        """Equations 12 and 13."""
        internal = sum(sum(self.importance(layer, h)) for h in range(len(layer.held)))
        turns = []
        window = min(self.window, len(layer.before))
        for r, o in zip(layer.before[-window:], layer.added[-window:], strict=True):
            cosine = r @ (o + r) / (np.linalg.norm(r) * np.linalg.norm(o + r))
            turns.append(1 - cosine)
        return sum(turns) / len(turns) * internal

    def budgets(self) -> list[int]:
        capacity = self.budget * len(self.layers)
        if not self.num_earlier:
            return [self.budget] * len(self.layers)
        means = np.mean(self.errors[: self.num_earlier], axis=0)  # equations 15 and 16
        least, most = self.window, self.layers[0].num_seen
        if most * len(self.layers) <= capacity:
            return [most] * len(self.layers)
        # equation 17 within bounds: one factor for all layers, such that the sum is the capacity
        low, high = 0.0, capacity / means.min()
        for _ in range(200):
            factor = (low + high) / 2
            shares = np.clip(factor * means, least, most)
            low, high = (factor, high) if shares.sum() < capacity else (low, factor)
        return whole(list(shares), capacity)

    def evict(self, num_new: int, logits: np.ndarray | None) -> None:
        if num_new > 1:
            self.num_earlier = len(self.errors)
            self.errors.append([self.error(layer) for layer in self.layers])
        super().evict(num_new, logits)

    def counts(self, layer: Layer, scores: list[dict], average: int) -> list[int]:
        every = {(h, i): s for h, of_head in enumerate(scores) for i, s in of_head.items()}
        won = self.best(layer, every, len(scores) * average)
        return [sum(1 for head, _ in won if head == h) for h in range(len(scores))]


# ---------------------------------------------------------------------------- CONF-KV


class ConfKV(Policy):
    """Confidence picks one of two budgets; a moving average of attention, and recency, pick what
    stays of each layer, for all heads alike (CONF-KV, "Confidence estimator", "Budget and ranker").

    The paper's formulas are lost, and those of the confidence and the average are our choice. So is
    that a forward goes back to the loose budget before its logits are there, and that a sure step
    then ranks anew what is left (the paper ranks once)."""

    decay = 0.9

    def __init__(
        self, budget: int, tight: int, protected: int, threshold: float, mass_weight: float = 0.5
    ) -> None:
        super().__init__(budget)
        self.tight, self.protected, self.threshold = tight, protected, threshold
        self.mass_weight = mass_weight
        self.mass: dict[tuple[Layer, Position], float] = {}
        self.was_sure: list[bool] = []

    def confidence(self, logits: np.ndarray) -> float:
        """Normalised entropy, gap of log-probabilities and top probability (weights are ours)."""
        p = np.exp(logits - logits.max())
        p /= p.sum()
        entropy = -sum(x * math.log(x) for x in p if x > 0)
        second, first = sorted(p)[-2:]
        gap = math.log(first) - math.log(second)
        return 0.4 * (1 - entropy / math.log(len(p))) + 0.3 / (1 + math.exp(-gap)) + 0.3 * first

    def notice(self, layer: Layer, num_new: int) -> None:
        """With m the mean over heads and the last q queries, q <= 32:
        e <- decay^q * e + (1 - decay^q) * m. A new token starts at the mean it was first given."""
        num_queries = min(num_new, 32)
        kept = self.decay**num_queries
        for i in layer.held[0]:
            drawn = layer.weights[:, :, num_new - num_queries :, i].mean()
            old = self.mass.get((layer, i), drawn)
            self.mass[layer, i] = kept * old + (1 - kept) * drawn

    def budgets(self, budget: int) -> list[int]:
        return [budget] * len(self.layers)

    def evict(self, num_new: int, logits: np.ndarray | None) -> None:
        self.cut(self.budget)
        if logits is None:
            return
        confidence = self.confidence(logits)
        self.was_sure.append(confidence >= self.threshold)
        for layer in self.layers:
            self.close(layer, confidence, self.threshold)
        if self.was_sure[-1]:
            self.cut(self.tight)

    def cut(self, budget: int) -> None:
        for layer, of_layer in zip(self.layers, self.budgets(budget), strict=True):
            if len(layer.held[0]) > of_layer:
                old, new = layer.held[0][: -self.protected], layer.held[0][-self.protected :]
                mass = stretched({i: self.mass[layer, i] for i in old})
                recency = stretched({i: float(i) for i in old})
                scores = {
                    i: self.mass_weight * mass[i] + (1 - self.mass_weight) * recency[i] for i in old
                }
                kept = self.best(layer, scores, of_layer - self.protected) | set(new)
                for held in layer.held:
                    keep(held, kept)


def stretched(scores: dict[Position, float]) -> dict[Position, float]:
    """Min-max normalised; all equal: 0."""
    low, high = min(scores.values()), max(scores.values())
    return {i: (s - low) / (high - low) if high > low else 0.0 for i, s in scores.items()}


class Quantised(Policy):
    """Nothing goes, and what is old is stored in another format: `int8`, `fp8`, `int4`, `nf4`."""

    def __init__(self, recent: int, store: type[Int8] | type[ByToken]) -> None:
        super().__init__(None)
        self.storage = Storage(recent, store)

    def evict(self, num_new: int, logits: np.ndarray | None) -> None:
        self.storage.apply_gate(self.layers)


class Storage:
    """When 64 tokens are older than the newest `recent` ones, they are quantized, once (our choice
    of the block). For policies whose heads hold the same tokens."""

    def __init__(self, recent: int, store: type[Int8] | type[ByToken]) -> None:
        self.recent, self.store = recent, store
        self.stored: dict[Layer, Int8 | ByToken] = {}

    def drop(self, layers: Sequence[Layer]) -> None:
        """After an eviction."""
        for layer in layers:
            self.stored.setdefault(layer, self.store(layer)).drop(layer.held[0])

    def apply_gate(self, layers: Sequence[Layer]) -> None:
        """At the end of a forward."""
        self.drop(layers)
        for layer in layers:
            held, stored = layer.held[0], self.stored[layer]
            while len(held) - len(stored) - self.recent >= SIZE:
                stored.add(held[len(stored) : len(stored) + SIZE])


class ConfKVInt8(ConfKV):
    """`ConfKV` with the newest `recent` tokens as they are and older ones in INT8 (CONF-KV, "Tiled
    attention and mixed precision")."""

    def __init__(self, *args: object, recent: int, **parameters: object) -> None:
        super().__init__(*args, **parameters)
        self.storage = Storage(recent, Int8)

    def cut(self, budget: int) -> None:
        super().cut(budget)
        if budget == self.budget:
            self.storage.apply_gate(self.layers)
        else:
            self.storage.drop(self.layers)


class WindowInt8(Window):
    """`Window` with the newest `recent` tokens as they are and older ones in INT8."""

    def __init__(self, budget: int, sinks: int, recent: int) -> None:
        super().__init__(budget, sinks)
        self.storage = Storage(recent, Int8)

    def evict(self, num_new: int, logits: np.ndarray | None) -> None:
        super().evict(num_new, logits)
        self.storage.apply_gate(self.layers)


class LookbackInt8(Lookback):
    """`Lookback` with the newest `recent` hot tokens as they are and older ones in INT8.

    A token stays cold as it was when it first left: that comes back every time (our choice).
    """

    def __init__(self, budget: int, *, recent: int, **parameters: object) -> None:
        super().__init__(budget, **parameters)
        self.storage = Storage(recent, Int8)
        self.left: dict[tuple[Layer, Position], tuple[np.ndarray, np.ndarray]] = {}
        """Keys and values (H, D) of tokens when they first left."""

    def evict(self, num_new: int, logits: np.ndarray | None) -> None:
        super().evict(num_new, logits)
        for layer, cold in self.cold.items():
            for i in cold:
                both = layer.keys[:, i].copy(), layer.values[:, i].copy()
                self.left.setdefault((layer, i), both)
        self.storage.apply_gate(self.layers)

    def before(self, num_new: int) -> None:
        for layer in self.cold:
            self.restore(layer)
        super().before(num_new)

    def restore(self, layer: Layer) -> None:
        for i in self.cold.get(layer, ()):
            layer.keys[:, i], layer.values[:, i] = self.left[layer, i]

    def fetch(self, layer: Layer) -> None:
        self.restore(layer)
        super().fetch(layer)


class LookbackInt4(LookbackInt8):
    """`LookbackInt8` in INT4, of which every token looks back: it fetches blocks of which a token
    would get at least `draw` of the attention. A single new token does so before anything leaves,
    and what it would be without a look never counts (our choice)."""

    def __init__(self, budget: int, *, recent: int, draw: float, **parameters: object) -> None:
        super().__init__(budget, recent=recent, threshold=2.0, **parameters)
        self.storage, self.draw = Storage(recent, Int4), draw
        self.looks_first = False

    def evict(self, num_new: int, logits: np.ndarray | None) -> None:
        self.looks_first = num_new == 1
        if not self.looks_first:
            super().evict(num_new, logits)

    def look_back(self, dense: Dense, id: int, logits: np.ndarray) -> np.ndarray:
        self.looked.append(not self.is_reading and any(self.cold.values()))
        if self.looked[-1]:
            logits = dense.again(id, self.fetch)
        if self.looked[-1] or self.looks_first:
            super().evict(1, logits)
        return logits


class ConfKVL(ConfKVInt8):
    """`ConfKVInt8` with layers on a line from 1.25 to 0.75 of the budget (CONF-KV, "Pyramidal layer
    budgets", whose formula is lost: our choice), which sums to the whole."""

    def budgets(self, budget: int) -> list[int]:
        num_layers = len(self.layers)
        line = [budget * (1.25 - 0.5 * n / (num_layers - 1)) for n in range(num_layers)]
        return whole(line, budget * num_layers)
