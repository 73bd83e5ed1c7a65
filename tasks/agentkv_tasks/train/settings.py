"""Settings of a training."""

from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from agentkv.models.adapter import adapter_digest
from agentkv.settings import LARGEST, ActingSettings

DEFAULT_STEPS = 200
"""Steps of a training that is given neither steps nor minutes (our choice)."""


class TrainSettings(ActingSettings):
    """One training: the model, the recordings, and how it learns from them.

    Of the settings of agents, those of observations count: pages are read as an agent with the
    same settings reads them.
    """

    MAY_CHANGE: ClassVar = (
        *("steps", "minutes", "to", "recordings", "replay", "threads", "recompute"),
    )
    """Settings with which a training can be continued although they differ. What recordings hold is
    compared otherwise."""

    recordings: tuple[Path, ...] = ()
    """Files of recordings, as `agentkv tasks record` writes them."""
    to: Path = Path("adapter")
    """Folder of the adapter, its checkpoint and its log. A training that was stopped there goes
    on."""
    start: Path | None = None
    """Adapter of the same model whose weights the training begins with, in place of random ones."""
    steps: int | None = Field(default=None, ge=1, le=LARGEST)
    """Number of steps. The default is 200 unless `minutes` is given."""
    minutes: float | None = Field(default=None, gt=0, le=1e6)
    """Minutes of training, those before an interruption included, in place of `steps`."""
    rows: int = Field(default=4, ge=1, le=LARGEST)
    """Rows of a step; a row is an episode, or a part of a long one."""
    row_tokens: int = Field(default=2048, ge=64, le=LARGEST)
    """Maximum tokens of a row. A longer episode becomes several rows; memory grows with it."""
    rate: float = Field(default=1e-3, gt=0, le=1)
    """Learning rate, reached after a twentieth of the training; it falls to 0 in the last three
    tenths."""
    rank: int = Field(default=32, ge=1, le=4096)
    """Rank of the adapter's matrices, which are added to all linear layers but the last."""
    variants: int = Field(default=0, ge=0, le=LARGEST)
    """Maximum number of variants of each recording, which are learned beside it. A variant has
    other texts where replies take theirs from."""
    held_out: int | None = Field(default=None, ge=0, le=LARGEST)
    """Number of recordings that are measured and not learned. The default is a tenth, and at least
    one."""
    check_every: int = Field(default=20, ge=1, le=LARGEST)
    """Steps between two measurements, each followed by a checkpoint."""
    replay: Path | None = None
    """Text file on which predictions are held to those of the model without the adapter, against
    forgetting. Its last tenth is only measured."""
    replay_share: float = Field(default=0.25, gt=0, lt=1)
    """Share of the rows that are text of `replay`."""
    shuffle_seed: int = Field(default=0, ge=0, le=LARGEST)
    """Seed of the first weights and of the order of the rows."""
    recompute: bool = True
    """Compute layers once more in the backward pass: slower, with a fraction of the memory. Rows of
    a step do not share their instructions then."""
    threads: int | None = Field(default=None, ge=1, le=LARGEST)
    """Threads of torch."""

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if self.steps is not None and self.minutes is not None:
            raise ValueError("a training ends by steps or by minutes; give one of them")
        if not self.recordings:
            raise ValueError(
                "recordings: expected at least one file; `agentkv tasks record FILE` writes one"
            )
        return self

    @model_validator(mode="after")
    def _start_stays(self) -> Self:
        folders = (self.start, self.to)
        start, to = (None if each is None else each.expanduser().resolve() for each in folders)
        if start == to:
            raise ValueError(
                f"start and to are both {self.to}; a training that begins with an adapter needs a "
                "folder of its own"
            )
        return self

    @property
    def num_steps(self) -> int | None:
        """Number of steps; None for a training by the clock."""
        return self.steps or (None if self.minutes is not None else DEFAULT_STEPS)

    @property
    def deciding(self) -> dict[str, Any]:
        """The settings that must not change when a training goes on."""
        names = {"model", "device", "dtype", "observation_tokens", "observations"}
        own = {name for name in TrainSettings.__annotations__ if name in TrainSettings.model_fields}
        found = self.model_dump(mode="json", include=(own | names) - {*self.MAY_CHANGE})
        return found | {"start": None if self.start is None else adapter_digest(self.start)}
