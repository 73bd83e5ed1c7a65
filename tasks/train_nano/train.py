"""Train nano on copying, associative recall, synthetic episodes and recorded episodes.

    PYTHONPATH=tasks python -m train_nano.train            # resumes the last run

A generator seeded by (seed, step) draws the rows of each step. Equal seeds, recordings and process
counts therefore give equal weights, and an interrupted run gives the same weights as an
uninterrupted one.
"""

import argparse
import json
import random
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from agentkv.dialog.prompt import PlainTemplate
from train_nano.data import Recordings
from train_nano.episode import Row
from train_nano.loss import Accuracy, batches, losses, per_reply, per_token
from train_nano.mixture import ORDER, STAGES, Source, next_kind
from train_nano.model import configure, export, initialize, load_weights
from train_nano.optimizer import Optimizer
from train_nano.settings import Progress, Settings
from train_nano.tokenizer import save as save_tokenizer
from train_nano.workers import Worker, launch

HERE = Path(__file__).parent
RECORDINGS = HERE / "recordings"
MODEL = HERE.parents[1] / "agentkv" / "models" / "nano"
NUM_RECENT = 10
"""Number of latest steps whose mean accuracy decides when a level ends."""
SINGLE_WORKER = Worker()


class Trainer:
    """A training run: model, optimizer, progress and data."""

    def __init__(
        self,
        settings: Settings,
        tokenizer: Tokenizer,
        work: Path,
        recordings: Recordings,
        worker: Worker = SINGLE_WORKER,
    ) -> None:
        self.settings = settings
        self.worker = worker
        self.tokenizer = tokenizer
        self.template = PlainTemplate(tokenizer)
        self.work = work
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        config = configure(
            tokenizer, width=settings.width, layers=settings.layers, inner=settings.inner
        )
        self.model = initialize(config, tokenizer, seed=settings.seed)
        torch.nn.Module.to(self.model, self.device)
        self.progress = Progress()
        self.optimizer = self.new_optimizer()
        special = set(tokenizer.get_added_tokens_decoder())
        plain_tokens = [i for i in range(config.vocab_size) if i not in special]
        self.source = Source(self.template, recordings, plain_tokens, settings.max_tokens)

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
            "progress": {name: getattr(self.progress, name) for name in Progress.__slots__},
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
        self.progress = Progress(**values["progress"])
        self.optimizer = self.new_optimizer()
        self.optimizer.load_state_dict(values["optimizer"])

    def start_from(self, folder: Path) -> None:
        """Start the last stage with the weights of the model in `folder`.

        Raises:
            ValueError: `folder` has no tokenizer.
        """
        weights = load_weights(self.tokenizer, folder, seed=self.settings.seed)
        self.model.load_state_dict(weights)
        self.progress = Progress(stage=ORDER[-1])
        self.optimizer = self.new_optimizer()

    # ---- one step -----------------------------------------------------------------------

    def rows(self) -> list[Row]:
        """Draw the rows of the next step, about `step_tokens` tokens of the stage's kinds."""
        progress = self.progress
        stage = STAGES[progress.stage]
        rng = random.Random(f"{self.settings.seed}/{progress.step}")
        left = 1.0 - progress.tokens / self.settings.tokens
        rows: list[Row] = []
        shares = self.source.shares(progress.stage)
        spent = Counter(progress.spent)
        total = 0
        while total < self.source.step_tokens(progress.stage, left):
            kind = next_kind(shares, spent)
            level = stage.levels[progress.level]
            row = self.source.row(kind, progress.stage, level, rng, left=left, wrong=progress.wrong)
            rows.append(row)
            spent[kind] += len(row.ids)
            total += len(row.ids)
        return rows

    def step(self) -> dict[str, float]:
        """Take one optimizer step; return the loss and, by kind, the accuracy.

        Accuracy counts tokens in the stages "copy" and "pair", and whole replies later.
        """
        started = time.perf_counter()
        rows = self.rows()
        total = sum(sum(row.weights) for row in rows)
        loss = 0.0
        tokens, replies, tasks = Accuracy(), Accuracy(), Accuracy()
        for batch in batches(self.worker.shard(rows)):
            lost, correct, _ = losses(
                self.model, batch, self.device, getattr(torch, self.settings.dtype)
            )
            (lost.sum() / total).backward()  # type: ignore[no-untyped-call]
            loss += float(lost.detach().sum()) / total
            tokens.add(per_token(batch, correct))
            scored = list(per_reply(batch, correct))
            replies.add((row.kind, hit) for row, hit in scored)
            tasks.add((row.task, hit) for row, hit in scored if row.task)
        self.worker.sum_gradients(self.model)
        parts = self.worker.gather((loss, tokens, replies, tasks))
        loss = sum(part[0] for part in parts)
        tokens = sum((part[1] for part in parts), Accuracy())
        replies = sum((part[2] for part in parts), Accuracy())
        tasks = sum((part[3] for part in parts), Accuracy())
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step(self.rate())
        progress = self.progress
        count = sum(len(row.ids) for row in rows)
        progress.step += 1
        progress.tokens += count
        progress.level_tokens += count
        for row in rows:
            progress.spent[row.kind] = progress.spent.get(row.kind, 0) + len(row.ids)
        progress.update_errors(tasks)
        progress.seconds += time.perf_counter() - started
        stage = STAGES[progress.stage]
        self._advance((replies if stage.by_reply else tokens).share(stage.judged))
        shown = tokens if progress.stage in ("copy", "pair") else replies
        return {"loss": loss} | {kind: shown.share({kind}) for kind in shown.total}

    def rate(self) -> float:
        """Return the learning rate of the next step."""
        settings, progress = self.settings, self.progress
        left = (settings.tokens - progress.tokens) / max(1, settings.decay_tokens)
        warmup = (progress.step + 1) / settings.warmup_steps
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

    def run(self, *, until: int | None = None, save_every: int = 40) -> None:
        """Take steps until `until` tokens; the worker of rank 0 writes the log and checkpoints.

        Args:
            until: total tokens of the run at which to stop; by default all of them.
            save_every: steps between two checkpoints.
        """
        until = self.settings.tokens if until is None else until
        if self.worker.rank:
            while self.progress.tokens < until:
                self.step()
            return
        self.work.mkdir(parents=True, exist_ok=True)
        path = self.work / "log.jsonl"
        _truncate_log(path, after=self.progress.step)
        with path.open("a", encoding="utf-8") as log:
            metrics: dict[str, list[float]] = {}
            while self.progress.tokens < until:
                for name, value in self.step().items():
                    metrics.setdefault(name, []).append(value)
                if self.progress.step % 20 == 0:
                    line: dict[str, Any] = {
                        "step": self.progress.step,
                        "tokens": self.progress.tokens,
                        "seconds": round(self.progress.seconds, 1),
                        "stage": self.progress.stage,
                        "level": self.progress.level,
                        **{
                            name: round(sum(values) / len(values), 4)
                            for name, values in metrics.items()
                        },
                        "data": self.source.recordings.digest[:12],
                    }
                    log.write(json.dumps(line) + "\n")
                    log.flush()
                    metrics = {}
                if self.progress.step % save_every == 0:
                    self.save()
        self.save()


def _truncate_log(path: Path, *, after: int) -> None:
    """Drop the log lines of steps after the checkpoint, which will be repeated."""
    if path.exists():
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if json.loads(line)["step"] <= after))


def load_trainer(
    work: Path,
    settings: Settings | None = None,
    start: Path | None = None,
    worker: Worker = SINGLE_WORKER,
) -> Trainer:
    """Create a trainer and resume from the checkpoint in `work`, if there is one.

    The tokenizer comes from `work` or else from the package.

    Args:
        start: folder of a model whose weights start a run without a checkpoint.
    """
    path = work / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path if path.exists() else MODEL / "tokenizer.json"))
    trainer = Trainer(settings or Settings(), tokenizer, work, Recordings(RECORDINGS), worker)
    trainer.resume()
    if start and not trainer.progress.step:
        trainer.start_from(start)
    return trainer


def train(
    worker: Worker, work: Path, settings: Settings, start: Path | None, until: int | None
) -> None:
    """Run one worker; `launch` calls this function in each process."""
    load_trainer(work, settings, start, worker).run(until=until)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train nano, resuming the last run.")
    parser.add_argument(
        "--work", type=Path, default=HERE / "work", help="folder of tokenizer, checkpoint and log"
    )
    parser.add_argument(
        "--tokens", type=int, default=Settings().tokens, help="tokens of the whole run"
    )
    parser.add_argument(
        "--rate",
        type=float,
        default=Settings().rate,
        help="highest learning rate (default: %(default)s)",
    )
    parser.add_argument(
        "--decay",
        type=int,
        metavar="TOKENS",
        default=Settings().decay_tokens,
        help="final tokens over which the rate falls (default: %(default)s)",
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
        "--processes",
        type=int,
        default=1 if torch.cuda.is_available() else 2,
        help="number of data parallel workers, one core each",
    )
    parser.add_argument(
        "--dtype",
        choices=("bfloat16", "float32"),
        default=Settings().dtype,
        help="data type of matrix products",
    )
    options = parser.parse_args()
    settings = replace(
        Settings(),
        tokens=options.tokens,
        rate=options.rate,
        decay_tokens=options.decay,
        dtype=options.dtype,
    )
    if options.export:
        trainer = load_trainer(options.work, settings, options.start)
        save_tokenizer(trainer.tokenizer, options.export)
        export(trainer.model, options.export)
    else:
        launch(train, options.processes, options.work, settings, options.start, options.until)


if __name__ == "__main__":
    main()
