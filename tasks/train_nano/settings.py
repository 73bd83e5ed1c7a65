"""What a run of training is made of, and where it stands."""

from dataclasses import dataclass, field

from train_nano.loss import Right
from train_nano.mixture import ORDER

_KEPT = 0.8
"""Of what is known of a task, when it is seen once more."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run is made of. Two runs with equal settings and recordings are the same run."""

    seed: int = 0
    width: int = 256
    layers: int = 6
    inner: int = 704
    rate: float = 1e-3
    warmup_steps: int = 200
    tokens: int = 40_000_000
    """Of the whole run."""
    decay_tokens: int = 18_000_000
    """The learning rate falls linearly to a twentieth over the last so many."""
    dtype: str = "bfloat16"
    """Of products. Which is faster depends on the processor: some take bfloat16 in twice the time
    of float32, others in half."""
    max_tokens: int = 5120
    """Of one recorded row; longer episodes lose pages that nothing later needs."""


@dataclass(slots=True)
class Progress:
    """Where a run stands; all that a checkpoint holds beside weights and optimizer."""

    step: int = 0
    tokens: int = 0
    stage: str = ORDER[0]
    level: int = 0
    """Which of the stage's levels."""
    level_tokens: int = 0
    seconds: float = 0.0
    recent: list[float] = field(default_factory=list)
    """Share of right answers in the last steps at this level."""
    spent: dict[str, int] = field(default_factory=dict)
    """Tokens of this stage by kind of row."""
    wrong: dict[str, float] = field(default_factory=dict)
    """By recorded task, the share of its replies that came out wrong lately."""

    def learn(self, tasks: Right) -> None:
        """Take note of the replies of one step, by recorded task; mutates `wrong`."""
        for task in sorted(tasks.total):
            share = 1.0 - tasks.share({task})
            self.wrong[task] = _KEPT * self.wrong.get(task, share) + (1 - _KEPT) * share
