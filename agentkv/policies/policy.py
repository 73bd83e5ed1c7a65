"""The five slots of a policy, and the little that passes between a policy and the cache.

    Gate        how many rows a layer may hold now
    Allocator   how that is shared out over layers
    Scorer      what each row is worth
    Selector    which rows that keeps
    Precision   how kept rows are stored

A policy never touches keys or values: it is shown positions and attention masses and answers with
row numbers; gathering, quantising and freeing is the cache's job.

Errors: PolicyError (ValueError) for a name, parameter or budget that cannot be used.

Shapes: T rows stored by one layer for one sequence, oldest first.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

from torch import Tensor


class PolicyError(ValueError):
    """A policy's name, parameters or budget cannot be used; the message says what can."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What a policy may know of the rows one layer holds for one sequence."""

    num_rows: int
    positions: Tensor
    """(T,) integers, ascending: the place of each row in the sequence. It is also the generation
    step that recency goes by (our choice: each token of an observation is a step of its own)."""
    mass: Tensor | None
    """(T,) float32: moving average of the attention each row drew; None if nobody asked."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Rows start..stop - 1 go, the others stay."""

    start: int
    stop: int


Verdict = Drop | Tensor
"""A selector's answer: one run of rows to drop, or the ascending numbers (n,) to keep."""


class Gate(Protocol):
    """How many rows a layer may hold on average, given how sure the model is."""

    @property
    def needs_logits(self) -> bool: ...

    @property
    def slack(self) -> int:
        """Rows over the budget that are let be before eviction goes back to it."""
        ...

    @property
    def ceiling(self) -> int | None:
        """The most the gate ever allows; None if it has no bound or was not fitted to a budget."""
        ...

    def fitted(self, budget: int | None) -> Self:
        """This gate with everything that depends on the budget filled in. Raises PolicyError."""
        ...

    def confidence(self, logits: Tensor) -> Tensor:
        """(B,) how sure the model is, from raw logits (B, V)."""
        ...

    def budget(self, confidence: float) -> int | None:
        """Rows allowed now; None for any number."""
        ...


class Allocator(Protocol):
    """Shares a budget out over the layers."""

    def shares(self, budget: int, num_layers: int) -> tuple[int, ...]:
        """Rows per layer; they sum to budget * num_layers."""
        ...


class Scorer(Protocol):
    """What each row is worth."""

    @property
    def decay(self) -> float | None:
        """Of the moving average of attention masses it reads; None if it reads none."""
        ...

    @property
    def by_age(self) -> bool:
        """Whether newer always means better, so that nothing needs to be scored."""
        ...

    def scores(self, rows: Rows, start: int, stop: int) -> Tensor:
        """(stop - start,) float32 for rows start..stop - 1, larger is better."""
        ...


class Selector(Protocol):
    """Which rows a budget keeps."""

    def fitted(self, budget: int, tight: int) -> Self: ...

    def select(self, rows: Rows, budget: int, scorer: Scorer) -> Verdict:
        """Which of the rows stay; called only with more rows than the budget."""
        ...


class Precision(Protocol):
    """How kept rows are stored."""

    @property
    def recent(self) -> int | None:
        """Newest rows that stay in the model's dtype, older ones go to 8 bits; None: all stay."""
        ...

    def fitted(self, budget: int | None) -> Self: ...


@dataclass(frozen=True, slots=True)
class Policy:
    """A value of five parts. Equal parts behave equally, whatever the name."""

    name: str
    gate: Gate
    allocator: Allocator
    scorer: Scorer
    selector: Selector
    precision: Precision
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """What it was built with, defaults included; for result rows."""

    def fitted(self, budget: int | None) -> "Policy":
        """This policy for a budget of rows per layer and KV head.

        Raises:
            PolicyError: it needs a budget and got none, or its parts do not fit into it.
        """
        gate = self.gate.fitted(budget)
        precision = self.precision.fitted(gate.ceiling)
        selector = self.selector
        if gate.ceiling is not None:
            selector = selector.fitted(gate.ceiling, gate.budget(1.0) or gate.ceiling)
        return replace(self, gate=gate, selector=selector, precision=precision)
