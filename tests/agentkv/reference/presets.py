"""The papers' own schedules and constants as loops, where `loops.py` has our defaults.

Equations are quoted by their numbers in the papers. Symbols are those of `loops.py`.
"""

import math
from collections.abc import Sequence

import numpy as np

from tests.agentkv.reference import loops
from tests.agentkv.reference.dense import Dense, Layer
from tests.agentkv.reference.formats import Int8Max


class OncePerPrompt:
    """Several tokens at once are a prompt, after which the cache is compressed; then it grows."""

    def evict(self, num_new: int, logits: np.ndarray | None) -> None:
        if num_new > 1:
            super().evict(num_new, logits)


class SnapKV(OncePerPrompt, loops.SnapKV):
    pass


class Pyramid(OncePerPrompt, loops.Pyramid):
    pass


class AdaSnapKV(OncePerPrompt, loops.AdaSnapKV):
    pass


class AdaPyramid(OncePerPrompt, loops.AdaPyramid):
    pass


class AsWritten(loops.Critical):
    """CriticalKV's algorithm 2: of the b tokens of a head, b / 4 by the pooled weights, line 8, and
    the rest by weights that are not pooled, times the L1 norm of the projected value, lines 9 and
    10.

    Every query head has its own weights and projection, and the products of a group are averaged
    (our choice).
    """

    def select(self, layer: Layer, head: int, scores: dict, count: int) -> set:
        first = self.best(layer, scores, math.floor(count / 4))
        weights = layer.window(head, self.window).mean(axis=1)  # (G, T)
        products = {}
        for place, i in enumerate(layer.held[head]):
            if i in scores and i not in first:
                value = layer.values[head, i]
                products[i] = sum(
                    a[place] * np.abs(value @ layer.projection(head, g)).sum()
                    for g, a in enumerate(weights)
                ) / len(weights)
        return first | self.best(layer, products, count - len(first))


class CriticalSnapKV(AsWritten, SnapKV):
    pass


class CriticalPyramid(AsWritten, Pyramid):
    pass


class CriticalAdaSnapKV(AsWritten, AdaSnapKV):
    pass


class Edie(OncePerPrompt, loops.Edie):
    """EDIE with the measures and weights of its tables 2 and 3.

    Args:
        measure: of a token to a query: equation 3 ("aas"), 4 ("paasvn") or 9 ("error").
        start, end: c_j is the largest weight of the tokens from place `start` on that are not among
            the last `end` (table 3); None: c_j = 1.
    """

    def __init__(
        self,
        budget: int,
        window: int,
        kernel: int,
        *,
        measure: str = "error",
        start: int | None,
        end: int = 0,
    ) -> None:
        super().__init__(budget, window, kernel)
        self.measure, self.start, self.end = measure, start, end

    def importance(self, layer: Layer, head: int) -> list[float]:
        held = layer.held[head]
        norms = [float(np.abs(layer.values[head, i]).sum()) for i in held]
        total = [0.0] * len(held)
        for of_member in layer.window(head, self.window):
            for a in of_member:
                output = sum(a[n] * layer.values[head, i] for n, i in enumerate(held))
                c = 1.0
                if self.start is not None:
                    c = max(a[self.start : len(held) - self.end], default=1.0)
                for n in range(len(held)):
                    total[n] += c * self.of(a[n], norms[n], float(np.abs(output).sum()))
        return total[: -self.window]

    def of(self, a: float, norm: float, output_norm: float) -> float:
        if self.measure == "aas":
            return a
        if self.measure == "paasvn":
            return a * norm
        return a / (1 + self.alpha - a) * (norm + output_norm)


class EdieTada(OncePerPrompt, loops.EdieTada):
    """TADA by contexts that are whole prompts.

    Args:
        turns: whether equation 13 multiplies by the cosine dissimilarity (table 4).
    """

    def __init__(self, budget: int, window: int, kernel: int, *, turns: bool = True) -> None:
        super().__init__(budget, window, kernel)
        self.turns = turns

    def error(self, layer: Layer) -> float:
        if self.turns:
            return super().error(layer)
        return sum(sum(self.importance(layer, h)) for h in range(len(layer.held)))


class BaseOrigin(loops.Arkv):
    """ARKV's baseline that keeps the same tokens, all of them as they are."""

    def ratio(self, layer: int) -> float:
        return 1.0


class BaseQuant(loops.Arkv):
    """ARKV's baseline that keeps the same tokens, in fp8 but for the window."""

    def ratio(self, layer: int) -> float:
        return 0.0


class ConfKVInt8(loops.ConfKVInt8):
    """CONF-KV with the scale max / 127."""

    def __init__(self, *args: object, **parameters: object) -> None:
        super().__init__(*args, **parameters)
        self.storage.store = Int8Max


class ConfKVL(ConfKVInt8, loops.ConfKVL):
    pass


class RepairKV(loops.Lookback):
    """Before an input is read, its tokens score every cold token: the share of attention over hot
    and cold ones, the largest of all queries, the mean over query heads and layers. The `count`
    best come back with their neighbors, 2 before and 20 after (RepairKV and its code). They take
    the places of the oldest, half of them at most (our choice)."""

    reads_all = False

    def __init__(self, budget: int, count: int) -> None:
        super().__init__(budget, threshold=0.0, blocks=1, block=1, sinks=4)
        self.count = count
        self.repaired: list[int] = []

    def read_ahead(self, dense: Dense, ids: Sequence[int]) -> None:
        if not any(self.cold.values()):
            return
        dense.forward(ids)
        scores: dict[int, float] = {}
        for layer in self.layers:
            for i, score in self.scores(layer, len(ids)).items():
                scores[i] = scores.get(i, 0.0) + score / len(self.layers)
        dense.rewind(len(ids))
        count = min(self.count, *(len(held) // 2 for layer in self.layers for held in layer.held))
        chosen: set[int] = set()
        order = sorted(scores, key=lambda i: (-scores[i], i))
        for i, after in zip(order, [*order[1:], order[-1]], strict=True):
            if len(chosen) >= count:
                break
            for layer in self.layers:
                self.close(layer, scores[i], scores[after])
            for near in range(i - 2, i + 21):
                if near in scores and len(chosen) < count:
                    chosen.add(near)
        for layer in self.layers:
            fetched = sorted(chosen & self.cold[layer])
            self.cold[layer].difference_update(fetched)
            for held in layer.held:
                held.extend(fetched)
            self.repaired.append(len(fetched))
        self.evict(1, None)

    def scores(self, layer: Layer, num_new: int) -> dict[int, float]:
        first, cold = layer.num_seen - num_new, sorted(self.cold[layer])
        heads, group = layer.queries.shape[:2]
        best = dict.fromkeys(cold, 0.0)
        for h in range(heads):
            seen = [i for i in layer.held[h] if i < first] + cold
            for g in range(group):
                shares = []
                for j in range(first, layer.num_seen):
                    odds = np.exp(layer.keys[h, seen] @ layer.queries[h, g, j] * layer.scaling)
                    shares.append(odds[-len(cold) :] / odds.sum())
                for i, share in zip(cold, np.max(shares, axis=0), strict=True):
                    best[i] += float(share) / (heads * group)
        return best


class InfLLM(loops.Lookback):
    """Every token that is alone also reads cold blocks, which do not stay (InfLLM, section 3).

    Of each block, `count` tokens stand for it: those to which the queries after them are closest on
    average, the latest 32 of all when they leave (our choice). A block is as relevant as the mean
    product of the token's queries with their keys. Each head has its own, and queries of its group
    are averaged (our choice).
    """

    num_queries, reads_all = 32, False

    def __init__(self, budget: int, *, blocks: int, block: int, count: int, sinks: int) -> None:
        super().__init__(budget, threshold=2.0, blocks=blocks, block=block, sinks=sinks)
        self.count = count
        self.is_alone = False
        self.asked: dict[Layer, list[np.ndarray]] = {}
        """Queries (H, G, D) of all tokens, without what a second pass of a page's last token made
        of them."""
        self.closeness: dict[tuple[Layer, int, int], float] = {}
        self.not_last = 0
        """Blocks that were chosen without being the newest of the cold ones."""

    def evict(self, num_new: int, logits: np.ndarray | None) -> None:
        self.is_alone = num_new == 1
        if not self.is_alone:
            self.leave(num_new)

    def leave(self, num_new: int) -> None:
        before = [set(layer.held[0]) for layer in self.layers]
        super().evict(num_new, None)
        for layer, held in zip(self.layers, before, strict=True):
            asked = self.asked.setdefault(layer, [])
            asked.extend(np.moveaxis(layer.queries[:, :, -num_new:], 2, 0))
            latest = range(max(0, len(asked) - self.num_queries), len(asked))
            for i in held - set(layer.held[0]):
                for h, keys in enumerate(layer.keys):
                    near = [asked[t][h] @ keys[i] for t in latest if t > i]
                    self.closeness[layer, h, i] = float(np.mean(near)) if near else 0.0

    def look_back(self, dense: Dense, id: int, logits: np.ndarray) -> np.ndarray:
        self.looked.append(any(self.cold.values()))
        if self.looked[-1]:
            logits = dense.again(id, self.fetch)
            for layer in self.layers:
                for held in layer.held:
                    held[:] = [i for i in held if i not in self.cold[layer]]
        if self.is_alone:
            self.leave(1)
        return logits

    def fetch(self, layer: Layer) -> None:
        cold = self.cold.get(layer)
        if not cold:
            return
        by_block: dict[int, list[int]] = {}
        for i in sorted(cold):
            by_block.setdefault(i // self.block, []).append(i)
        relevance = dict.fromkeys(by_block, 0.0)
        for number, members in by_block.items():
            for h, queries in enumerate(layer.queries[:, :, -1]):
                scores = {i: self.closeness[layer, h, i] for i in members}
                chosen = self.best(layer, scores, self.count)
                relevance[number] += float(
                    np.mean([query @ layer.keys[h, i] for query in queries for i in chosen])
                )
        blocks = self.best(layer, relevance, self.blocks)
        self.not_last += max(by_block) not in blocks
        for held in layer.held:
            held.extend(i for i in sorted(cold) if i // self.block in blocks)


class LouisKV(loops.Lookback):
    """A token looks back where the mean cosine of its queries and those of the token before is low
    (LouisKV: a boundary). What it fetches stays (our choice)."""

    def __init__(self, budget: int, *, similarity: float, blocks: int, block: int) -> None:
        super().__init__(budget, threshold=0.0, blocks=blocks, block=block, sinks=4)
        self.similarity = similarity
        self.newest: dict[Layer, np.ndarray] = {}
        """Queries (H, G, D) of the newest token, those of its first pass."""

    def evict(self, num_new: int, logits: np.ndarray | None) -> None:
        self.num_new = num_new
        super().evict(num_new, logits)

    def look_back(self, dense: Dense, id: int, logits: np.ndarray) -> np.ndarray:
        cosines = []
        for layer in self.layers:
            new = layer.queries[:, :, -1].copy()
            if self.num_new > 1:
                self.newest[layer] = layer.queries[:, :, -2]
            for a, b in zip(np.concatenate(new), np.concatenate(self.newest[layer]), strict=True):
                cosines.append(a @ b / (loops.norm(a) * loops.norm(b)))
            self.newest[layer] = new
        turned = float(np.mean(cosines)) < self.similarity and not self.is_reading
        self.looked.append(bool(turned and any(self.cold.values())))
        if self.looked[-1]:
            logits = dense.again(id, self.fetch)
            self.evict(1, logits)
        return logits
