"""Settings and progress of a training run."""

from dataclasses import dataclass, field

from train_nano.loss import Accuracy
from train_nano.mixture import ORDER

_EMA_DECAY = 0.8
"""Weight of the previous average in a task's error rate, per step in which the task occurs."""


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """Settings of a run. Equal settings, recordings and process counts give equal runs, unless
    `minutes` is set."""

    seed: int = 0
    width: int = 256
    layers: int = 6
    inner: int = 704
    rate: float = 1e-3
    warmup_steps: int = 200
    tokens: int = 40_000_000
    """Number of training tokens in the whole run."""
    decay_tokens: int = 18_000_000
    """Number of final tokens over which the learning rate falls linearly to a twentieth."""
    minutes: float | None = None
    """Minutes of the whole run, which then replace `tokens` in the schedule: the run ends after
    them, and the rate falls over their final part, whose share is `decay_tokens` of `tokens`."""
    step_factor: int = 1
    """Multiple of each stage's `step_tokens`. Large steps suit a GPU."""
    dtype: str = "bfloat16"
    """Data type of matrix products. The faster one depends on the processor: bfloat16 takes twice
    the time of float32 on some and half on others."""
    max_tokens: int = 5120
    """Maximum tokens of a recorded row that is not kept whole. Longer episodes lose pages that no
    later reply needs."""


@dataclass(slots=True)
class TrainingProgress:
    """State of a run that a checkpoint stores beside weights, optimizer and tokenizer."""

    step: int = 0
    tokens: int = 0
    stage: str = ORDER[0]
    level: int = 0
    """Index of the current difficulty level in the stage's `levels`."""
    level_tokens: int = 0
    seconds: float = 0.0
    recent: list[float] = field(default_factory=list)
    """Accuracy of the latest steps at this level."""
    spent: dict[str, int] = field(default_factory=dict)
    """Tokens used in this stage, by kind of row."""
    wrong: dict[str, float] = field(default_factory=dict)
    """Moving average of the share of wrong replies, by recorded task."""

    def update_errors(self, tasks: Accuracy) -> None:
        """Update `wrong` with the accuracy of one step's replies, by recorded task."""
        for task in sorted(tasks.total):
            share = 1.0 - tasks.share({task})
            average = self.wrong.get(task, share)
            self.wrong[task] = _EMA_DECAY * average + (1 - _EMA_DECAY) * share
