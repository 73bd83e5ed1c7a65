"""Training an adapter: steps, measurements on what is held out, checkpoints."""

import contextlib
import hashlib
import math
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.helpers import disable_input_dtype_casting

from agentkv.dialog.prompt import Template
from agentkv.dialog.reply import names_element
from agentkv.models.adapter import base_file, names_elements, quiet_peft, wrapped_in
from agentkv.models.local import LocalModel
from agentkv.recordings import Recording
from agentkv_kernels.processor import multiplies
from agentkv_tasks.train.clock import RunningClock
from agentkv_tasks.train.curve import write_curve
from agentkv_tasks.train.folder import LOG, TrainingFolder, log_line
from agentkv_tasks.train.losses import Losses, can_share, shared_opening
from agentkv_tasks.train.rows import (
    EpisodeRow,
    Order,
    Row,
    TrainError,
    episode_rows,
    split_held_out,
    text_rows,
)
from agentkv_tasks.train.settings import TrainSettings
from agentkv_tasks.train.variants import variants

WARM_UP = 0.05
"""Share of a training in which the rate rises (our choice)."""
DECAY = 0.3
"""Share of a training, its last part, in which the rate falls to 0 (our choice). Until then it is
constant, so that a training that is given more time goes on at the same rate."""
MOST_WORSE = 1.0
"""Nats by which the loss on held-out replies may rise above the lowest one so far (our choice); a
training that does worse has diverged."""
FEW = 20
"""Recordings below which a note recommends variants (our choice)."""
_MOST_TEXTS = 8
"""Rows of held-out text that are measured (our choice)."""
_TEXT_LENGTH = 1024
"""Maximum tokens of a row of text: a page or two, within which words are looked up (our choice)."""


class Diverged(RuntimeError):
    """The loss is no number any more, or far above the lowest one so far."""


@dataclass(slots=True)
class TrainProgress:
    """How far a training is."""

    step: int = 0
    tokens: int = 0
    """Ids of all rows so far, padding apart."""
    seconds: float = 0.0
    """Time of all steps and measurements, without stops of the process."""
    seconds_before: float = 0.0
    """Part of it before the first step."""
    best_loss: float = math.inf
    """Lowest loss on held-out replies so far."""
    digest: str = ""
    """Of the rows that are learned and measured."""


@dataclass(frozen=True, slots=True)
class Check:
    """A measurement."""

    step: int
    tokens: int
    seconds: float
    loss: float | None
    """Mean loss of the steps since the last one, in nats per label; None before the first step."""
    held_loss: float | None
    """Loss on held-out replies, in nats per id; None if nothing is held out."""
    held_exact: float | None
    """Share of the held-out replies that greedy decoding writes exactly; None likewise."""
    held_replies: int
    text_loss: float | None
    """Loss on held-out text, in nats per id; None without text."""


class Training:
    """A model with an adapter that learns.

    Args:
        local: in floating point; its layers get an adapter.
        recordings: to learn and to measure.

    Raises:
        TrainError: a ValueError; there is nothing to learn or no space, or the folder holds another
            training.
    """

    def __init__(
        self, settings: TrainSettings, local: LocalModel, recordings: Sequence[Recording]
    ) -> None:
        self.settings = settings
        self.device: torch.device = local.model.device
        most = min(settings.row_tokens, local.max_positions or settings.row_tokens)
        learned, held = split_held_out(recordings, settings.held_out)
        self.notes: list[str] = []
        """Lines that warn a user about the recordings or the machine."""
        if self.device.type == "cpu" and not multiplies(local.model.dtype):
            dtype = str(local.model.dtype).removeprefix("torch.")
            self.notes.append(
                f"this processor has no products of {dtype}, and emulating them takes several "
                "times as long as float32; give --dtype float32 and another --to"
            )
        if settings.variants:
            seed, count = settings.shuffle_seed, settings.variants
            made = [other for each in learned for other in variants(each, count, seed=seed)]
            self.notes.append(f"{len(made)} variants of {len(learned)} recordings are learned too")
            learned = [*learned, *made]
        elif len(learned) < FEW:
            self.notes.append(
                f"{len(learned)} recordings to learn are soon known by heart; --variants 30 adds "
                "variants of them"
            )
        episodes = self._rows(learned, local, most, "learn")
        self._held = self._rows(held, local, most, "measure") if held else []
        texts: list[Row] = []
        self._held_texts: list[Row] = []
        if settings.replay is not None:
            texts, measured = text_rows(
                settings.replay, local.template, length=min(_TEXT_LENGTH, most)
            )
            self._held_texts = measured[:_MOST_TEXTS]
        self._order = Order(
            episodes, texts, settings.rows, settings.replay_share, settings.shuffle_seed
        )
        about_base = base_file(local.name)
        self.folder = TrainingFolder(
            settings.to,
            about_base=about_base,
            names_elements=_names_elements(learned, local.template, settings.start),
            deciding=settings.deciding,
        )
        torch.manual_seed(settings.shuffle_seed)
        self.model: PeftModel = _with_adapter(local, settings.rank, settings.start)
        self._network: Any = local.model
        self._is_bfloat16 = local.model.dtype is torch.bfloat16
        """Whether the adapter, whose weights are float32, computes in its model's bfloat16. Copies
        of what the layers read take an eighth of a step otherwise (by hand, on two cores).
        Gradients in float16 would need a scale."""
        if settings.recompute:
            _checkpoint_activations(self._network)
        # layers that are computed once more keep no keys for other rows
        opening = (
            shared_opening(episodes) if not settings.recompute and can_share(local.model) else ()
        )
        self._losses_of = Losses(
            local.model,
            opening,
            most=local.max_positions,
            is_bfloat16=self._is_bfloat16,
            untrained=self.model.disable_adapter,
        )
        self._optimizer = torch.optim.AdamW(
            self._learning(),
            lr=settings.rate,
            weight_decay=0.0,
        )
        self.folder.require_space(self.model)
        digest = _digest([*episodes, *self._held, *texts, *self._held_texts])
        stored = self.folder.load(self.model, self._optimizer, digest)
        self.progress = TrainProgress(digest=digest) if stored is None else TrainProgress(**stored)
        self._losses: list[float] = []
        self._clock = RunningClock()

    def _rows(
        self, recordings: Sequence[Recording], local: LocalModel, most: int, what: str
    ) -> list[EpisodeRow]:
        found = [
            episode_rows(each, local.template, self.settings, most=most) for each in recordings
        ]
        num_parted = sum(len(each.rows) > 1 for each in found)
        num_lost = sum(each.num_lost for each in found)
        if num_parted:
            self.notes.append(
                f"{num_parted} of {len(found)} recordings to {what} are longer than {most} tokens "
                "and become several rows"
            )
        if num_lost:
            self.notes.append(
                f"{num_lost} replies to {what} are left out, because they and what they need do "
                f"not fit into {most} tokens"
            )
        rows = [row for each in found for row in each.rows]
        if not rows:
            raise TrainError(
                f"none of the {len(found)} recordings to {what} has a turn within {most} tokens; "
                "raise --row-tokens if the model has more positions, or lower --observation-tokens"
            )
        return rows

    @property
    def done(self) -> float:
        """Share of the training that is done, by steps or by the clock."""
        steps = self.settings.num_steps
        if steps is not None:
            return self.progress.step / steps
        assert self.settings.minutes is not None
        return self.progress.seconds / (60 * self.settings.minutes)

    def run(self, on_check: Callable[[Check], None]) -> None:
        """Learn to the end.

        The folder then holds the adapter. After Ctrl-C, it holds that of the step in progress.

        Raises:
            TrainError: the untrained model has no loss.
            Diverged: the folder holds the last state that was measured well.
            KeyboardInterrupt: once the step in progress is saved.
            WriteError: the adapter could not be written; the one before is intact.
        """
        log = self.folder.begin_log(after=self.progress.step)
        try:
            # not around the forwards alone: the backward pass may compute layers once more
            uncast = disable_input_dtype_casting(self.model, self._is_bfloat16)
            with self._clock, _stop_on_interrupt() as is_stopped, uncast:
                if self.progress.step == 0 and (self._held or self._held_texts):
                    self._check(log, on_check)
                elif self.progress.step == 0:  # a state to go back to
                    self._save()
                while self.done < 1:
                    self._step()
                    is_due = self.progress.step % self.settings.check_every == 0
                    if is_due or is_stopped() or self.done >= 1:
                        self._check(log, on_check)
                    if is_stopped():
                        raise KeyboardInterrupt(
                            f"interrupted after step {self.progress.step}; run the same command "
                            "again to continue"
                        )
        finally:
            log.close()

    def _step(self) -> None:
        """Take one step. Raises Diverged before anything is changed."""
        began = self._clock.seconds
        rows = self._order.step(self.progress.step)
        num_labels = sum(row.num_counted for row in rows)
        self._network.train()
        total = self._losses_of.backward(rows, num_labels=num_labels)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        if not math.isfinite(total) or not math.isfinite(float(norm)):
            self._optimizer.zero_grad()
            raise self._diverged(f"the loss is {total:g}")
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.progress.step += 1
        self.progress.tokens += sum(len(row.ids) for row in rows)
        self.progress.seconds += self._clock.seconds - began
        self._losses.append(total)

    def _rate(self) -> float:
        done, before = self.done, 0.0
        if self.settings.minutes is not None:  # a measurement warms nothing up
            before = self.progress.seconds_before / (60 * self.settings.minutes)
        falling = max(0.0, (1.0 - done) / DECAY)
        return self.settings.rate * min(1.0, (done - before + 1e-3) / WARM_UP, falling)

    def _measured(self, rows: Sequence[Row]) -> tuple[float, int, int]:
        """Return the loss per label, how many replies are exact, and how many there are."""
        self._network.eval()
        total, num_labels, num_exact, num_replies = 0.0, 0, 0, 0
        for row, loss in self._losses_of.measured(rows):
            total += float(loss.total)
            num_labels += row.num_counted
            if isinstance(row, EpisodeRow):
                for start, stop in row.replies:
                    inside = (loss.columns >= start) & (loss.columns < stop)
                    num_exact += bool(loss.is_right[0, inside].all())
                num_replies += len(row.replies)
        return total / num_labels, num_exact, num_replies

    def _check(self, log: Any, on_check: Callable[[Check], None]) -> None:
        """Measure and save. Raises Diverged, and saves nothing then."""
        began = self._clock.seconds
        loss, exact, num_replies = None, None, 0
        if self._held:
            loss, num_exact, num_replies = self._measured(self._held)
            exact = num_exact / num_replies
        text = self._measured(self._held_texts)[0] if self._held_texts else None
        progress = self.progress
        progress.seconds += self._clock.seconds - began
        if progress.step == 0:
            progress.seconds_before = progress.seconds
            for each in (loss, text):
                if each is not None and not math.isfinite(each):
                    raise TrainError(
                        f"the loss of the untrained model is {each:g}; its weights are damaged, or "
                        "--dtype does not hold what it computes"
                    )
        if loss is not None:
            if not loss <= progress.best_loss + MOST_WORSE:  # no number is not less either
                raise self._diverged(
                    f"the loss on held-out replies is {loss:.3g}, and was {progress.best_loss:.3g}"
                )
            progress.best_loss = min(progress.best_loss, loss)
        elif not all(bool(each.isfinite().all()) for each in self._learning()):
            raise self._diverged("weights of the adapter are no finite numbers")
        recent = sum(self._losses) / len(self._losses) if self._losses else None
        self._losses = []
        found = Check(
            progress.step,
            progress.tokens,
            progress.seconds,
            recent,
            loss,
            exact,
            num_replies,
            text,
        )
        self._save()
        log.append(log_line({**asdict(found), "rate": self._rate()}))
        write_curve(self.folder.path / LOG, title=f"training of {self.settings.model}")
        on_check(found)

    def _learning(self) -> list[torch.nn.Parameter]:
        return [each for each in self.model.parameters() if each.requires_grad]

    def _save(self) -> None:
        self.folder.save(self.model, self._optimizer, asdict(self.progress))

    def _diverged(self, reason: str) -> Diverged:
        step, every = self.progress.step, self.settings.check_every
        return Diverged(
            f"the training diverged at step {step}: {reason}; {self.folder.path} holds the state "
            f"of its last check, {every} steps before or less; lower --rate (now "
            f"{self.settings.rate:g}) and give another --to"
        )


def _names_elements(
    recordings: Sequence[Recording], template: Template, start: Path | None
) -> bool:
    """Return whether all replies that are learned, and were learned by the adapter that the
    training begins with, name what they act on. Those that are rewritten for the template do."""
    if template.thoughts != "free" or (start is not None and not names_elements(start)):
        return False
    return all(
        names_element(step.reply, step.page)
        for recording in recordings
        if recording.thoughts == "free"
        for step in recording.steps
        if step.counts
    )


def _with_adapter(local: LocalModel, rank: int, start: Path | None) -> PeftModel:
    """Give the layers of a model an adapter: the one of a folder, or one that changes nothing yet.

    Raises:
        TrainError: the adapter of the folder has another rank.
        ModelError: it does not fit the model's layers.
    """
    if start is not None:
        begun: PeftModel = wrapped_in(local.model, start.expanduser(), learns=True)
        found: Any = begun.peft_config["default"]
        if found.r != rank:
            raise TrainError(f"--start {start} has rank {found.r}; give --rank {found.r}")
        return begun
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=rank,
        lora_alpha=rank,
        target_modules="all-linear",
        base_model_name_or_path=local.name,
    )
    with quiet_peft():
        made: PeftModel = get_peft_model(local.model, config)
    return made


def _checkpoint_activations(network: Any) -> None:
    """Let the backward pass compute each layer once more, so that long rows fit into memory."""
    enable = getattr(
        network, "activation_checkpointing_enable", None
    )  # its name in newer transformers
    (enable or network.gradient_checkpointing_enable)({"use_reentrant": False})


def _digest(rows: Sequence[Row]) -> str:
    """Return 16 hex digits that tell rows apart."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(repr((row.ids, row.labels)).encode())
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def _stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C end the block when it asks; a second one interrupts it as usual."""
    before, stopped = signal.getsignal(signal.SIGINT), False

    def stop(number: int, frame: object) -> None:
        nonlocal stopped
        stopped = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, stop)
    try:
        yield lambda: stopped
    finally:
        signal.signal(signal.SIGINT, before)
