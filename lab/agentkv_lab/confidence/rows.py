"""Rows of `agentkv_lab confidence`: one for every policy and length."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from agentkv_tasks.bench.samples.rows import SampleRow


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceRow(SampleRow):
    """One policy beside a full cache, token by token: the tokens of all samples in their order."""

    BENCH: ClassVar[str] = "confidence"
    PROGRAM: ClassVar[str] = "python -m agentkv_lab"
    SUMMARY: ClassVar[tuple[str, ...]] = (
        "label", "seen", "mean_divergence", "changed_share", "mean_bytes", "seconds",
    )  # fmt: skip

    features: Sequence[Sequence[float]]
    """CONF-KV's three features for each token, under the policy and before any look: one minus the
    normalized entropy, the sigmoid of the gap between the two largest logits, and the probability
    of the likeliest token."""
    full_features: Sequence[Sequence[float]]
    """The same features under a full cache."""
    divergence: Sequence[float]
    """KL(full || policy) in nats of each token, before any look."""
    changed: Sequence[bool]
    """True where another token is the likeliest than with a full cache, before any look."""
    changed_by_look: Sequence[bool | None]
    """True where a look changes the likeliest token; None where no look was made."""
    look_divergence: Sequence[float | None]
    """KL(full || policy) after the look; None where no look was made."""
    mean_divergence: float
    changed_share: float
    schema: int = 1

    @property
    def looks(self) -> bool:
        """True if tokens looked back."""
        return any(each is not None for each in self.changed_by_look)

    @property
    def missed(self) -> list[bool]:
        """The tokens that an alarm should catch: those that the look changes, or, for a policy that
        does not look back, those that differ from a full cache."""
        return [bool(x) for x in (self.changed_by_look if self.looks else self.changed)]

    @property
    def samples(self) -> list[range]:
        """Numbers of the tokens of each sample."""
        found, begin = [], 0
        for count in self.sample_tokens:
            found.append(range(begin, begin + count))
            begin += count
        return found
