"""Train nano: copying, then drills, then recorded episodes. One command, resumable.

    PYTHONPATH=tasks python -m nano.train            # goes on where the last run stopped

Each step's rows are drawn from a generator seeded by (seed, step), so equal seeds, recordings and
threads give equal weights, and a run that was interrupted gives the weights of one that was not.
"""

import argparse
import json
import random
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from agentkv.prompt import PlainTemplate
from nano.data import Recordings
from nano.drills import Drills, copying
from nano.episode import Row, encode, stretch
from nano.loss import batches, losses, per_reply
from nano.model import configure, export, initialise
from nano.quoting import quoting
from nano.tokenizer import save as save_tokenizer

HERE = Path(__file__).parent
MODEL = HERE.parents[1] / "agentkv" / "models" / "nano"


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run is made of. Two runs with equal settings and recordings are the same run."""

    seed: int = 0
    width: int = 256
    layers: int = 5
    inner: int = 704
    rate: float = 1e-3
    warmup_steps: int = 200
    decay_tokens: int = 3_500_000
    """The learning rate falls linearly to a twentieth over the last so many tokens."""
    step_tokens: int = 6144
    copy_to: int = 512
    drill_to: int = 40
    drill_tokens: int = 1_500_000
    tokens: int = 12_000_000
    """Of the whole run."""
    max_tokens: int = 4096
    """Of one row; longer episodes lose pages that nothing later needs."""


@dataclass(slots=True)
class Progress:
    """Where a run stands; all that a checkpoint holds beside weights and optimizer."""

    step: int = 0
    tokens: int = 0
    stage: str = "copy"
    level: int = 16
    """copy: length of rows; drill: elements of a page."""
    stage_tokens: int = 0
    seconds: float = 0.0
    recent: list[float] = field(default_factory=list)
    """Share of right answers in the last steps at this level."""


class Trainer:
    """Model, optimizer and progress; `run` takes steps until the tokens are used up.

    Raises:
        ValueError: the checkpoint in `work` was made with another tokenizer or shape.
    """

    def __init__(
        self, settings: Settings, tokenizer: Tokenizer, work: Path, recordings: Recordings
    ) -> None:
        self.settings = settings
        self.tokenizer = tokenizer
        self.template = PlainTemplate(tokenizer)
        self.recordings = recordings
        self.work = work
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        config = configure(
            tokenizer, width=settings.width, layers=settings.layers, inner=settings.inner
        )
        self.model = initialise(config, tokenizer, seed=settings.seed)
        torch.nn.Module.to(self.model, self.device)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=settings.rate,
            betas=(0.9, 0.98),
            weight_decay=0.01,
            fused=True,
        )
        self.progress = Progress()
        special = set(tokenizer.get_added_tokens_decoder())
        self.plain_tokens = [i for i in range(config.vocab_size) if i not in special]
        self.page_id = self.template.turn("")[0]

    # ---- checkpoints --------------------------------------------------------------------

    def save(self) -> None:
        """Write the checkpoint, whole or not at all."""
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
        """Go on from the checkpoint, if there is one."""
        path = self.work / "checkpoint.pt"
        if not path.exists():
            return
        values = torch.load(path, map_location=self.device, weights_only=True)
        if values["tokenizer"] != self.tokenizer.to_str():
            raise ValueError(
                f"{path} was made with another tokenizer; move it away to start afresh"
            )
        try:
            self.model.load_state_dict(values["model"])
        except RuntimeError as error:
            raise ValueError(f"{path} holds a model of another shape: {error}") from error
        self.optimizer.load_state_dict(values["optimizer"])
        self.progress = Progress(**values["progress"])

    # ---- one step -----------------------------------------------------------------------

    def rows(self) -> list[Row]:
        """The rows of the next step: about `step_tokens` tokens of the present stage's mixture."""
        progress, settings = self.progress, self.settings
        rng = random.Random(f"{settings.seed}/{progress.step}")
        drills = Drills(rng.randrange(1 << 30))
        rows: list[Row] = []
        total, budget = 0, settings.step_tokens
        if progress.stage == "copy":
            budget = min(budget, 4096)
        while total < budget:
            row = self._row(rng, drills)
            rows.append(row)
            total += len(row.ids)
        return rows

    def _row(self, rng: random.Random, drills: Drills) -> Row:
        progress, settings = self.progress, self.settings
        roll = rng.random()
        if progress.stage == "copy":
            return copying(rng, self.plain_tokens, progress.level)
        if roll < 0.01:
            return copying(rng, self.plain_tokens, rng.choice((64, 128, 256)))
        if roll < 0.14 and self.recordings:
            goal, page = self.recordings.page(rng)
            return quoting(rng, self.template, goal, page, count=12, weight=0.5)
        drilling = progress.stage == "drill"
        if roll < (0.6 if drilling else 0.2) or not self.recordings:
            elements = progress.level if drilling else rng.randint(4, settings.drill_to)
            if rng.random() < 0.3:
                elements = rng.randint(1, elements)
            row = encode(self.template, drills.walk(elements))
        else:
            left = 1.0 - progress.tokens / settings.tokens
            thinned = max(0.1, min(0.85, 2.5 * left))
            row = self.recordings.row(
                rng, self.template, max_tokens=settings.max_tokens, thinned=thinned
            )
        if rng.random() < 0.1:
            most = rng.choice((64, 512))
            row = stretch(row, self.page_id, [rng.randint(0, most) for _ in range(12)])
        return row

    def step(self) -> dict[str, float]:
        """Take one step and say how it went."""
        started = time.perf_counter()
        rows = self.rows()
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate()
        total = sum(sum(row.weights) for row in rows)
        loss, right, replies, exact = 0.0, 0.0, 0, 0
        for batch in batches(rows):
            lost, correct, weights = losses(self.model, batch, self.device)
            (lost.sum() / total).backward()  # type: ignore[no-untyped-call]
            loss += float(lost.detach().sum()) / total
            right += float((correct * weights).sum()) / total
            for hits in per_reply(batch, correct):
                replies += 1
                exact += hits
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        count = sum(len(row.ids) for row in rows)
        progress = self.progress
        progress.step += 1
        progress.tokens += count
        progress.stage_tokens += count
        progress.seconds += time.perf_counter() - started
        self._advance(exact / replies if replies and progress.stage != "copy" else right)
        return {"loss": loss, "right": right, "exact": exact / max(1, replies)}

    def rate(self) -> float:
        """The learning rate of the next step."""
        settings, progress = self.settings, self.progress
        left = (settings.tokens - progress.tokens) / max(1, settings.decay_tokens)
        warm = (progress.step + 1) / settings.warmup_steps
        return settings.rate * min(1.0, warm, max(0.05, left))

    def _advance(self, share: float) -> None:
        """Make the task harder when it is mastered; hard enough, go to the next stage."""
        progress, settings = self.progress, self.settings
        progress.recent = [*progress.recent[-9:], share]
        mastered = len(progress.recent) == 10 and sum(progress.recent) / 10 >= 0.9
        if progress.stage == "copy" and mastered:
            if progress.level >= settings.copy_to:
                self._enter("drill", 4)
            else:
                self._enter("copy", progress.level * 2)
        elif progress.stage == "drill":
            if mastered and progress.level < settings.drill_to:
                self._enter("drill", min(settings.drill_to, progress.level * 3 // 2 + 1))
            elif progress.stage_tokens >= settings.drill_tokens or mastered:
                self._enter("episodes", 0)

    def _enter(self, stage: str, level: int) -> None:
        progress = self.progress
        if stage != progress.stage:
            progress.stage_tokens = 0
        progress.stage, progress.level, progress.recent = stage, level, []

    def run(self, *, until: int | None = None, save_every: int = 40) -> None:
        """Step until `until` tokens (all, by default), writing log and checkpoints."""
        until = self.settings.tokens if until is None else until
        self.work.mkdir(parents=True, exist_ok=True)
        path = self.work / "log.jsonl"
        _forget(path, after=self.progress.step)
        with path.open("a", encoding="utf-8") as log:
            sums: dict[str, float] = {}
            num_summed = 0
            while self.progress.tokens < until:
                for name, value in self.step().items():
                    sums[name] = sums.get(name, 0.0) + value
                num_summed += 1
                if self.progress.step % 20 == 0:
                    line: dict[str, Any] = {
                        "step": self.progress.step,
                        "tokens": self.progress.tokens,
                        "seconds": round(self.progress.seconds, 1),
                        "stage": self.progress.stage,
                        "level": self.progress.level,
                        **{name: round(value / num_summed, 4) for name, value in sums.items()},
                        "data": self.recordings.digest[:12],
                    }
                    log.write(json.dumps(line) + "\n")
                    log.flush()
                    sums, num_summed = {}, 0
                if self.progress.step % save_every == 0:
                    self.save()
        self.save()


def _forget(path: Path, *, after: int) -> None:
    """Drop the lines of steps that no checkpoint kept: they are taken again."""
    if path.exists():
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if json.loads(line)["step"] <= after))


def trainer_for(work: Path, settings: Settings | None = None) -> Trainer:
    """The trainer whose checkpoint is in `work`, with the tokenizer that ships."""
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    trainer = Trainer(settings or Settings(), tokenizer, work, Recordings(work / "recordings"))
    trainer.resume()
    return trainer


def main() -> None:
    parser = argparse.ArgumentParser(description="Train nano; goes on where the last run stopped.")
    parser.add_argument("--work", type=Path, default=HERE / "work")
    parser.add_argument("--tokens", type=int, default=Settings().tokens)
    parser.add_argument("--until", type=int, help="stop here; the schedule does not know")
    parser.add_argument("--export", action="store_true", help="write the checkpoint to the model")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    trainer = trainer_for(options.work, replace(Settings(), tokens=options.tokens))
    if options.export:
        save_tokenizer(trainer.tokenizer, MODEL)
        export(trainer.model, MODEL)
    else:
        trainer.run(until=options.until)


if __name__ == "__main__":
    main()
