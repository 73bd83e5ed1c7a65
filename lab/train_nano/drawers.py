"""Processes that draw the rows of coming steps.

One core draws about 100,000 tokens per second. That is enough for training on a CPU, where the
training process draws its own rows. A GPU needs the rows of many cores.
"""

import multiprocessing as mp
import os
import signal
import threading
from array import array
from collections import Counter, deque
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import Tokenizer

from train_nano.data import Recordings
from train_nano.episode import TrainingRow
from train_nano.mixture import MixturePlan, Source, make_source

AHEAD = 2
"""Steps that each process is ahead of training."""


class Drawers:
    """A pool of processes that draws rows ahead, in the same order in every run.

    The rows of a step depend on the progress `ahead` steps before. They continue the balance of
    kinds of the rows of that step, which is the latest one known when they are planned.

    Args:
        count: number of processes. They start at once, and each loads the recordings.
        recordings: folder of the recordings.
        max_tokens: as for `Source`.
    """

    def __init__(
        self, count: int, tokenizer: Tokenizer, recordings: Path | None, max_tokens: int
    ) -> None:
        self.ahead = AHEAD * count
        self._pool = ProcessPoolExecutor(
            count,
            # A forked process must not use CUDA, nor may it inherit threads.
            mp_context=mp.get_context("spawn"),
            initializer=_load,
            initargs=(tokenizer.to_str(), recordings, max_tokens),
        )
        for _ in range(count):
            self._pool.submit(int)
        self._coming: deque[tuple[MixturePlan, Future[list[TrainingRow]]]] = deque()

    def rows(self, plan: MixturePlan) -> list[TrainingRow]:
        """Return the rows of step `plan.step` and order those of a later step.

        Args:
            plan: plan by the progress before this step. The rows that come back follow the plan of
                `ahead` calls before; those of the first calls follow the first plan.
        """
        while len(self._coming) < self.ahead:
            self._order(replace(plan, step=plan.step + len(self._coming), spent={}))
        drawn, future = self._coming.popleft()
        assert drawn.step == plan.step
        rows = future.result()
        spent = Counter(drawn.spent)
        for row in rows:
            spent[row.kind] += len(row.ids)
        following = spent if drawn.stage == plan.stage else {}
        self._order(replace(plan, step=plan.step + self.ahead, spent=following))
        return rows

    def close(self) -> None:
        """End the processes after the steps that they are drawing."""
        self._pool.shutdown(cancel_futures=True)

    def _order(self, plan: MixturePlan) -> None:
        self._coming.append((plan, self._pool.submit(_draw, plan)))


_source: Source
"""The source of a drawing process."""


def _load(tokenizer: str, recordings: Path | None, max_tokens: int) -> None:
    """Prepare a drawing process, which ends with the training process."""
    global _source
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C reaches the whole process group
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    _source = make_source(Tokenizer.from_str(tokenizer), Recordings(recordings), max_tokens)


def _end_with_parent() -> None:
    parent = mp.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _draw(plan: MixturePlan) -> list[TrainingRow]:
    """Draw the rows of a step; arrays take a tenth of the time of lists to send."""
    return [
        replace(
            row,
            ids=array("i", row.ids),
            weights=array("f", row.weights),
            positions=array("i", row.positions),
        )
        for row in _source.rows(plan)
    ]
