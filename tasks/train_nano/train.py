"""Train nano: copying, pairs, drills, then recorded episodes. One command, resumable.

    PYTHONPATH=tasks python -m nano.train            # goes on where the last run stopped

Each step's rows are drawn from a generator seeded by (seed, step), so equal seeds, recordings and
processes give equal weights, and a run that was interrupted gives the weights of one that was not.
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
from train_nano.loss import Right, batches, losses, per_reply, per_token
from train_nano.mixture import ORDER, STAGES, Source, next_kind
from train_nano.model import configure, export, initialise, weights_for
from train_nano.optimizer import Optimizer
from train_nano.settings import Progress, Settings
from train_nano.team import Team, together
from train_nano.tokenizer import save as save_tokenizer

HERE = Path(__file__).parent
RECORDINGS = HERE / "recordings"
MODEL = HERE.parents[1] / "agentkv" / "models" / "nano"
NUM_RECENT = 10
"""Steps whose mean says whether a level is mastered."""
ALONE = Team()


class Trainer:
    """Model, optimizer and progress; `run` takes steps until the tokens are used up.

    Raises:
        ValueError: the checkpoint in `work` was made with another tokenizer or shape.
    """

    def __init__(
        self,
        settings: Settings,
        tokenizer: Tokenizer,
        work: Path,
        recordings: Recordings,
        team: Team = ALONE,
    ) -> None:
        self.settings = settings
        self.team = team
        self.tokenizer = tokenizer
        self.template = PlainTemplate(tokenizer)
        self.work = work
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        config = configure(
            tokenizer, width=settings.width, layers=settings.layers, inner=settings.inner
        )
        self.model = initialise(config, tokenizer, seed=settings.seed)
        torch.nn.Module.to(self.model, self.device)
        self.progress = Progress()
        self.optimizer = self.fresh_optimizer()
        special = set(tokenizer.get_added_tokens_decoder())
        plain_tokens = [i for i in range(config.vocab_size) if i not in special]
        self.source = Source(self.template, recordings, plain_tokens, settings.max_tokens)

    def fresh_optimizer(self) -> Optimizer:
        matrices = "adamw" if self.progress.stage == "copy" else "muon"
        return Optimizer(self.model, rate=self.settings.rate, matrices=matrices)

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
        self.progress = Progress(**values["progress"])
        self.optimizer = self.fresh_optimizer()
        self.optimizer.load_state_dict(values["optimizer"])

    def begin_with(self, folder: Path) -> None:
        """Start at the last stage, with the weights of the model in `folder`; tokens that it lacks
        are new ones."""
        weights = weights_for(self.tokenizer, folder, seed=self.settings.seed)
        self.model.load_state_dict(weights)
        self.progress = Progress(stage=ORDER[-1])
        self.optimizer = self.fresh_optimizer()

    # ---- one step -----------------------------------------------------------------------

    def rows(self) -> list[Row]:
        """The rows of the next step: about `step_tokens` tokens of the present stage's kinds."""
        progress = self.progress
        stage = STAGES[progress.stage]
        rng = random.Random(f"{self.settings.seed}/{progress.step}")
        left = 1.0 - progress.tokens / self.settings.tokens
        rows: list[Row] = []
        shares = self.source.shares(progress.stage)
        spent = Counter(progress.spent)
        total = 0
        while total < stage.step_tokens:
            kind = next_kind(shares, spent)
            level = stage.levels[progress.level]
            row = self.source.row(kind, progress.stage, level, rng, left=left, wrong=progress.wrong)
            rows.append(row)
            spent[kind] += len(row.ids)
            total += len(row.ids)
        return rows

    def step(self) -> dict[str, float]:
        """Take one step and say how it went: loss, and by kind the share of right replies."""
        started = time.perf_counter()
        rows = self.rows()
        total = sum(sum(row.weights) for row in rows)
        loss = 0.0
        tokens, replies, tasks = Right(), Right(), Right()
        for batch in batches(self.team.mine(rows)):
            lost, correct, _ = losses(
                self.model, batch, self.device, getattr(torch, self.settings.dtype)
            )
            (lost.sum() / total).backward()  # type: ignore[no-untyped-call]
            loss += float(lost.detach().sum()) / total
            tokens.add(per_token(batch, correct))
            said = list(per_reply(batch, correct))
            replies.add((row.kind, hit) for row, hit in said)
            tasks.add((row.task, hit) for row, hit in said if row.task)
        self.team.add_gradients(self.model)
        parts = self.team.gather((loss, tokens, replies, tasks))
        loss = sum(part[0] for part in parts)
        tokens, replies, tasks = (sum((part[of] for part in parts), Right()) for of in (1, 2, 3))
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step(self.rate())
        progress = self.progress
        count = sum(len(row.ids) for row in rows)
        progress.step += 1
        progress.tokens += count
        progress.level_tokens += count
        for row in rows:
            progress.spent[row.kind] = progress.spent.get(row.kind, 0) + len(row.ids)
        progress.learn(tasks)
        progress.seconds += time.perf_counter() - started
        stage = STAGES[progress.stage]
        self._advance((replies if stage.by_reply else tokens).share(stage.judged))
        shown = tokens if progress.stage in ("copy", "pair") else replies
        return {"loss": loss} | {kind: shown.share({kind}) for kind in shown.total}

    def rate(self) -> float:
        """The learning rate of the next step."""
        settings, progress = self.settings, self.progress
        left = (settings.tokens - progress.tokens) / max(1, settings.decay_tokens)
        warm = (progress.step + 1) / settings.warmup_steps
        return settings.rate * min(1.0, warm, max(0.05, left))

    def _advance(self, share: float) -> None:
        """Make the task harder when it is mastered; hard enough, go to the next stage."""
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
                self.optimizer = self.fresh_optimizer()

    def run(self, *, until: int | None = None, save_every: int = 40) -> None:
        """Step until `until` tokens (all, by default); the first of a team writes log and
        checkpoints."""
        until = self.settings.tokens if until is None else until
        if self.team.rank:
            while self.progress.tokens < until:
                self.step()
            return
        self.work.mkdir(parents=True, exist_ok=True)
        path = self.work / "log.jsonl"
        _forget(path, after=self.progress.step)
        with path.open("a", encoding="utf-8") as log:
            seen: dict[str, list[float]] = {}
            while self.progress.tokens < until:
                for name, value in self.step().items():
                    seen.setdefault(name, []).append(value)
                if self.progress.step % 20 == 0:
                    line: dict[str, Any] = {
                        "step": self.progress.step,
                        "tokens": self.progress.tokens,
                        "seconds": round(self.progress.seconds, 1),
                        "stage": self.progress.stage,
                        "level": self.progress.level,
                        **{name: round(sum(all) / len(all), 4) for name, all in seen.items()},
                        "data": self.source.recordings.digest[:12],
                    }
                    log.write(json.dumps(line) + "\n")
                    log.flush()
                    seen = {}
                if self.progress.step % save_every == 0:
                    self.save()
        self.save()


def _forget(path: Path, *, after: int) -> None:
    """Drop the lines of steps that no checkpoint kept: they are taken again."""
    if path.exists():
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if json.loads(line)["step"] <= after))


def trainer_for(
    work: Path, settings: Settings | None = None, start: Path | None = None, team: Team = ALONE
) -> Trainer:
    """The trainer whose checkpoint is in `work`; its tokenizer is there or ships."""
    path = work / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path if path.exists() else MODEL / "tokenizer.json"))
    trainer = Trainer(settings or Settings(), tokenizer, work, Recordings(RECORDINGS), team)
    trainer.resume()
    if start and not trainer.progress.step:
        trainer.begin_with(start)
    return trainer


def train(
    team: Team, work: Path, settings: Settings, start: Path | None, until: int | None
) -> None:
    """What each process of a run does."""
    trainer_for(work, settings, start, team).run(until=until)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train nano; goes on where the last run stopped.")
    parser.add_argument("--work", type=Path, default=HERE / "work")
    parser.add_argument("--tokens", type=int, default=Settings().tokens)
    parser.add_argument(
        "--start",
        type=Path,
        metavar="FOLDER",
        help="without a checkpoint: recordings alone, from the weights of this model on",
    )
    parser.add_argument("--until", type=int, help="stop here; the schedule does not know")
    parser.add_argument(
        "--export",
        type=Path,
        nargs="?",
        const=MODEL,
        metavar="FOLDER",
        help="write the checkpoint as a model; into the package if no folder is named",
    )
    parser.add_argument(
        "--processes", type=int, default=1 if torch.cuda.is_available() else 2, help="a core each"
    )
    parser.add_argument(
        "--dtype", choices=("bfloat16", "float32"), default=Settings().dtype, help="of products"
    )
    options = parser.parse_args()
    settings = replace(Settings(), tokens=options.tokens, dtype=options.dtype)
    if options.export:
        trainer = trainer_for(options.work, settings, options.start)
        save_tokenizer(trainer.tokenizer, options.export)
        export(trainer.model, options.export)
    else:
        together(train, options.processes, options.work, settings, options.start, options.until)


if __name__ == "__main__":
    main()
