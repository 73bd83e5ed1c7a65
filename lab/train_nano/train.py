"""Train nano on copying, associative recall, synthetic episodes and recorded episodes.

    python -m train_nano.train            # resumes the last run

A generator seeded by (seed, step) draws the rows of each step. Equal seeds, recordings and process
counts therefore give equal weights on a CPU, and an interrupted run gives the same weights as an
uninterrupted one. The latter does not hold where other processes draw the rows, whose progress
starts anew, and neither holds where the schedule follows the clock.
"""

import argparse
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from tokenizers import Tokenizer

from train_nano.data import Recordings
from train_nano.drawers import Drawers
from train_nano.episode import TrainingRow
from train_nano.loss import Accuracy, batch_size, batches, losses, per_reply, per_token
from train_nano.mixture import ORDER, STAGES, MixturePlan, make_source
from train_nano.model import configure, export, initialize, load_weights
from train_nano.optimizer import Optimizer
from train_nano.settings import TrainingProgress, TrainingSettings
from train_nano.tokenizer import save as save_tokenizer
from train_nano.workers import Worker, launch

HERE = Path(__file__).parent
RECORDINGS = HERE / "recordings"
MODEL = HERE.parents[1] / "agentkv" / "models" / "nano"
NUM_RECENT = 10
"""Number of latest steps whose mean accuracy decides when a level ends."""
SAVE_SECONDS = 60.0
"""Seconds between two checkpoints."""
SINGLE_WORKER = Worker()


class Trainer:
    """A training run: model, optimizer, progress and data.

    Args:
        drawers: processes that draw the rows, in tokens of `tokenizer`; by default none.
    """

    def __init__(
        self,
        settings: TrainingSettings,
        tokenizer: Tokenizer,
        work: Path,
        recordings: Recordings,
        worker: Worker = SINGLE_WORKER,
        drawers: Drawers | None = None,
    ) -> None:
        self.settings = settings
        self.worker = worker
        self.drawers = drawers
        self.started = time.monotonic()
        """Time from which the minutes of the run count."""
        self.elapsed = 0.0
        """Seconds from then to the end of the latest step, the same in all workers."""
        self.stopping = False
        """True after a worker got a signal; the run then ends."""
        self._got_signal = False
        self.tokenizer = tokenizer
        self.source = make_source(tokenizer, recordings, settings.max_tokens)
        self.template = self.source.template
        self.work = work
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        config = configure(
            tokenizer, width=settings.width, layers=settings.layers, inner=settings.inner
        )
        self.model = initialize(config, tokenizer, seed=settings.seed)
        torch.nn.Module.to(self.model, self.device)
        # On some GPUs torch prefers cuDNN, which plans anew for each shape of batch.
        torch.backends.cuda.enable_cudnn_sdp(False)
        self.progress = TrainingProgress()
        self.optimizer = self.new_optimizer()

    def new_optimizer(self) -> Optimizer:
        """Create the optimizer of the current stage, with empty state."""
        matrices = "adamw" if self.progress.stage == "copy" else "muon"
        return Optimizer(self.model, rate=self.settings.rate, matrices=matrices)

    # ---- checkpoints --------------------------------------------------------------------

    def save(self) -> None:
        """Write the checkpoint atomically."""
        values = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "progress": {name: getattr(self.progress, name) for name in TrainingProgress.__slots__},
            "tokenizer": self.tokenizer.to_str(),
        }
        self.work.mkdir(parents=True, exist_ok=True)
        partial = self.work / "checkpoint.partial"
        torch.save(values, partial)
        partial.replace(self.work / "checkpoint.pt")

    def resume(self) -> None:
        """Load the checkpoint in `work`, if there is one.

        Raises:
            ValueError: the checkpoint has another tokenizer or model shape.
        """
        path = self.work / "checkpoint.pt"
        if not path.exists():
            return
        values = torch.load(path, map_location=self.device, weights_only=True)
        if values["tokenizer"] != self.tokenizer.to_str():
            raise ValueError(
                f"{path} was made with another tokenizer; move it away to start a new run"
            )
        try:
            self.model.load_state_dict(values["model"])
        except RuntimeError as error:
            raise ValueError(
                f"{path} holds a model of another shape; use the settings it was made with, "
                f"or move it away: {error}"
            ) from error
        self.progress = TrainingProgress(**values["progress"])
        self.optimizer = self.new_optimizer()
        self.optimizer.load_state_dict(values["optimizer"])

    def start_from(self, folder: Path) -> None:
        """Start the last stage with the weights of the model in `folder`.

        Raises:
            ValueError: `folder` has no tokenizer.
        """
        weights = load_weights(self.tokenizer, folder, seed=self.settings.seed)
        self.model.load_state_dict(weights)
        self.progress = TrainingProgress(stage=ORDER[-1])
        self.optimizer = self.new_optimizer()

    # ---- one step -----------------------------------------------------------------------

    def rows(self) -> list[TrainingRow]:
        """Draw the rows of the next step."""
        progress, settings = self.progress, self.settings
        plan = MixturePlan(
            seed=settings.seed,
            step=progress.step,
            stage=progress.stage,
            level=STAGES[progress.stage].levels[progress.level],
            left=self.left(),
            factor=settings.step_factor,
            spent=dict(progress.spent),
            wrong=dict(progress.wrong),
        )
        return self.drawers.rows(plan) if self.drawers else self.source.rows(plan)

    def step(self) -> dict[str, float]:
        """Take one optimizer step; return the loss and, by kind, the accuracy.

        Accuracy counts whole replies or tokens, as `Stage.by_reply` of the stage says.
        """
        started = time.perf_counter()
        rows = self.rows()
        progress, stage = self.progress, STAGES[self.progress.stage]
        total = float(sum(np.sum(row.weights) for row in rows))
        grouped = list(batches(self.worker.shard(rows), batch_size(self.device)))
        # Reading a number from a GPU waits for it, so the results of all batches are read at once.
        lost_sum = torch.zeros((), device=self.device)
        hits = [torch.zeros(0, dtype=torch.bool, device=self.device)]
        for batch in grouped:
            lost, correct, _ = losses(
                self.model, batch, self.device, getattr(torch, self.settings.dtype)
            )
            lost = lost.sum() / total
            lost.backward()  # type: ignore[no-untyped-call]
            lost_sum += lost.detach()
            hits.append(correct)
        self.worker.sum_gradients(self.model)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step(self.rate())
        judge = per_reply if stage.by_reply else per_token
        scored = list(judge([row for batch in grouped for row in batch], torch.cat(hits)))
        answers, tasks = Accuracy(), Accuracy()
        answers.add((row.kind, hit) for row, hit in scored)
        tasks.add((row.task, hit) for row, hit in scored if row.task)
        now = time.monotonic() - self.started
        parts = self.worker.gather((float(lost_sum), answers, tasks, now, self._got_signal))
        loss = sum(part[0] for part in parts)
        answers = sum((part[1] for part in parts), Accuracy())
        tasks = sum((part[2] for part in parts), Accuracy())
        self.elapsed, self.stopping = parts[0][3], any(part[4] for part in parts)
        count = sum(len(row.ids) for row in rows)
        progress.step += 1
        progress.tokens += count
        progress.level_tokens += count
        for row in rows:
            progress.spent[row.kind] = progress.spent.get(row.kind, 0) + len(row.ids)
        progress.update_errors(tasks)
        progress.seconds += time.perf_counter() - started
        self._advance(answers.share(stage.judged))
        return {"loss": loss} | {kind: answers.share({kind}) for kind in answers.total}

    def left(self) -> float:
        """Return the remaining share of the run, by its tokens or its minutes."""
        if self.settings.minutes is None:
            return 1.0 - self.progress.tokens / self.settings.tokens
        return 1.0 - self.elapsed / (60 * self.settings.minutes)

    def rate(self) -> float:
        """Return the learning rate of the next step."""
        settings = self.settings
        left = self.left() * settings.tokens / max(1, settings.decay_tokens)
        warmup = (self.progress.step + 1) / settings.warmup_steps
        return settings.rate * min(1.0, warmup, max(0.05, left))

    def _advance(self, share: float) -> None:
        """Go to the next level once this one is mastered, and after the last to the next stage."""
        progress, stage = self.progress, STAGES[self.progress.stage]
        progress.recent = [*progress.recent[1 - NUM_RECENT :], share]
        mastered = (
            len(progress.recent) == NUM_RECENT
            and sum(progress.recent) / NUM_RECENT >= stage.mastered
        )
        if not mastered and progress.level_tokens < stage.most_tokens:
            return
        progress.level, progress.level_tokens, progress.recent = progress.level + 1, 0, []
        if progress.level == len(stage.levels):
            progress.stage = ORDER[ORDER.index(progress.stage) + 1]
            progress.level, progress.spent = 0, {}
            if stage is STAGES["copy"]:
                self.optimizer = self.new_optimizer()

    def run(self, *, until: int | None = None) -> None:
        """Take steps to the end of the run; the worker of rank 0 writes the log and checkpoints.

        SIGINT and SIGTERM end the run after the current step, with its checkpoint.

        Args:
            until: total tokens of the run at which to stop earlier.
        """
        with self._stop_on_signals():
            if self.worker.rank:
                while not self._is_over(until):
                    self.step()
                return
            self.work.mkdir(parents=True, exist_ok=True)
            path = self.work / "log.jsonl"
            _truncate_log(path, after=self.progress.step)
            with path.open("a", encoding="utf-8") as log:
                metrics: dict[str, list[float]] = {}
                saved = time.monotonic()
                while not self._is_over(until):
                    for name, value in self.step().items():
                        metrics.setdefault(name, []).append(value)
                    if self.progress.step % 20 == 0:
                        self._write_metrics(log, metrics)
                        metrics = {}
                    if time.monotonic() - saved >= SAVE_SECONDS:
                        self.save()
                        saved = time.monotonic()
                if metrics:
                    self._write_metrics(log, metrics)
            self.save()

    def _is_over(self, until: int | None) -> bool:
        by_tokens = until is not None and self.progress.tokens >= until
        return self.stopping or by_tokens or self.left() <= 0

    def _write_metrics(self, log: TextIO, metrics: dict[str, list[float]]) -> None:
        """Write a line with the means of `metrics`."""
        line: dict[str, Any] = {
            "step": self.progress.step,
            "tokens": self.progress.tokens,
            "seconds": round(self.progress.seconds, 1),
            "stage": self.progress.stage,
            "level": self.progress.level,
            **{name: round(sum(values) / len(values), 4) for name, values in metrics.items()},
            "data": self.source.recordings.digest[:12],
        }
        log.write(json.dumps(line) + "\n")
        log.flush()

    @contextmanager
    def _stop_on_signals(self) -> Iterator[None]:
        """Let the first SIGINT or SIGTERM end the run; a second one has its usual effect."""
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        def stop(number: int, frame: object) -> None:
            self._got_signal = True
            restore()

        for number in before:
            signal.signal(number, stop)
        try:
            yield
        finally:
            restore()


def _truncate_log(path: Path, *, after: int) -> None:
    """Drop the log lines of steps after the checkpoint, which will be repeated."""
    if path.exists():
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if json.loads(line)["step"] <= after))


def load_trainer(
    work: Path,
    settings: TrainingSettings | None = None,
    start: Path | None = None,
    worker: Worker = SINGLE_WORKER,
    recordings: Path | None = RECORDINGS,
    num_drawers: int = 0,
) -> Trainer:
    """Create a trainer and resume from the checkpoint in `work`, if there is one.

    The tokenizer comes from `work` or else from the package.

    Args:
        start: folder of a model whose weights start a run without a checkpoint.
        recordings: folder of the recordings; None to load none.
        num_drawers: processes that draw rows; with 0 the trainer draws them itself.
    """
    started = time.monotonic()
    settings = settings or TrainingSettings()
    path = work / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path if path.exists() else MODEL / "tokenizer.json"))
    drawers = None
    if num_drawers:
        drawers = Drawers(num_drawers, tokenizer, recordings, settings.max_tokens)
    trainer = Trainer(settings, tokenizer, work, Recordings(recordings), worker, drawers)
    trainer.started = started
    trainer.resume()
    if start and not trainer.progress.step:
        trainer.start_from(start)
    return trainer


def train(
    worker: Worker,
    work: Path,
    settings: TrainingSettings,
    start: Path | None,
    until: int | None,
    num_drawers: int,
) -> None:
    """Run one worker; `launch` calls this function in each process."""
    trainer = load_trainer(work, settings, start, worker, num_drawers=num_drawers)
    try:
        trainer.run(until=until)
    finally:
        if trainer.drawers:
            trainer.drawers.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train nano, resuming the last run.")
    parser.add_argument(
        "--work", type=Path, default=HERE / "work", help="folder of tokenizer, checkpoint and log"
    )
    parser.add_argument(
        "--tokens", type=int, default=TrainingSettings().tokens, help="tokens of the whole run"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        help="end the run this many minutes after its start, loading included, instead of after "
        "--tokens; rate and rows follow the clock, so no two such runs are equal",
    )
    parser.add_argument(
        "--rate",
        type=float,
        default=TrainingSettings().rate,
        help="highest learning rate (default: %(default)s)",
    )
    parser.add_argument(
        "--decay",
        type=int,
        metavar="TOKENS",
        default=TrainingSettings().decay_tokens,
        help="final tokens over which the rate falls (default: %(default)s); with --minutes, "
        "their share of --tokens is the share of the time",
    )
    parser.add_argument(
        "--start",
        type=Path,
        metavar="FOLDER",
        help="start a new run at its last stage with the weights of this model",
    )
    parser.add_argument(
        "--until", type=int, help="stop at this many tokens without changing the schedule"
    )
    parser.add_argument(
        "--export",
        type=Path,
        nargs="?",
        const=MODEL,
        metavar="FOLDER",
        help="write the checkpoint as a model, by default into the package, and exit",
    )
    parser.add_argument(
        "--step-factor",
        type=int,
        default=TrainingSettings().step_factor,
        metavar="N",
        help="multiply the tokens of every step by N",
    )
    has_gpu = torch.cuda.is_available()
    parser.add_argument(
        "--drawers",
        type=int,
        default=max(1, (os.cpu_count() or 1) - 1) if has_gpu else 0,
        metavar="N",
        help="draw rows ahead in N processes, 1.4 GB each; 0 draws them in the training process "
        "(default: %(default)s, on a GPU one less than there are cores)",
    )
    parser.add_argument(
        "--processes",
        type=int,
        help="number of data parallel workers, one core each (default: 2, and 1 with drawers)",
    )
    parser.add_argument(
        "--dtype",
        choices=("bfloat16", "float32"),
        default=TrainingSettings().dtype,
        help="data type of matrix products",
    )
    options = parser.parse_args()
    processes = options.processes or (1 if options.drawers or has_gpu else 2)
    if options.drawers and processes > 1:
        parser.error("--drawers needs --processes 1: every worker draws all rows")
    settings = replace(
        TrainingSettings(),
        tokens=options.tokens,
        rate=options.rate,
        decay_tokens=options.decay,
        minutes=options.minutes,
        step_factor=options.step_factor,
        dtype=options.dtype,
    )
    if options.export:
        trainer = load_trainer(options.work, settings, options.start, recordings=None)
        save_tokenizer(trainer.tokenizer, options.export)
        export(trainer.model, options.export)
    else:
        run = (options.work, settings, options.start, options.until, options.drawers)
        launch(train, processes, *run)


if __name__ == "__main__":
    main()
