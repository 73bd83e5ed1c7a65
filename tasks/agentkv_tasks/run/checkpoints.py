"""Checkpoints of episodes, from which an interrupted episode resumes.

A checkpoint is a conversation with its cache, saved between two replies; the episode's trace has
its steps. A later run restores the sites and plays those steps again without the model. Then the
saved conversation writes the next reply, with the same cache.

An episode that knows a secret has no checkpoint: a file with tokens cannot be masked.
"""

import contextlib
import json
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from agentkv.models.model import Reply
from agentkv.settings import SCRIPTED
from agentkv.trace import Step, TraceError, read_trace
from agentkv_env.masking import MASK
from agentkv_env.page import Page
from agentkv_tasks.run.plan import Plan
from agentkv_tasks.run.remote import NotSaved, RemoteActing, RemoteConversation
from agentkv_tasks.run.replay import page_difference, recorded_reply

FOLDER = "checkpoints"
"""Folder for them in that of a run."""


class Diverged(RuntimeError):
    """A step that is played again differs from the recorded one; the message says how."""


def remove_checkpoint(out: Path, stem: str) -> None:
    """Remove the checkpoint of an episode, if there is one; what cannot be removed stays."""
    folder = checkpoint_folder(out, stem)
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()  # stays while others are in it


def checkpoint_folder(out: Path, stem: str) -> Path:
    """Return where the checkpoint of an episode is.

    Args:
        stem: file name of the episode's trace without suffix.
    """
    return out / FOLDER / stem


def has_checkpoints(plan: Plan) -> bool:
    """Return whether the episodes of a run have checkpoints.

    They do if a model with a cache plays on embedded sites, whose state a reset restores. A profile
    needs uninterrupted episodes.
    """
    settings = plan.settings
    is_embedded = plan.suite.sites is None and not plan.unreset
    return is_embedded and settings.model not in SCRIPTED and not settings.profile


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An interrupted episode: its steps, and the conversation that has read and written them."""

    steps: tuple[Step, ...]
    conversation: RemoteConversation

    def require_same(self, step: Step) -> None:
        """Check a step that was played again.

        Raises:
            Diverged: its page, its action or its error differs from the recorded one.
        """
        recorded = self.steps[step.index]
        for what in ("url", "note", "action", "error"):
            before, now = getattr(recorded, what), getattr(step, what)
            if before != now:
                raise Diverged(f"step {step.index}: {what} was {before!r:.80} and is {now!r:.80}")
        if lines := page_difference(recorded.observation, step.observation):
            raise Diverged(f"step {step.index}: the page differs: {' / '.join(lines)[:200]}")


def load_checkpoint(
    folder: Path, trace: Path, head: Mapping[str, Any], acting: RemoteActing
) -> Checkpoint | None:
    """Return the interrupted episode; None if there is none, or if it cannot resume.

    Args:
        folder: see `checkpoint_folder`.
        trace: of the same episode.
        head: of a new trace; key, settings and versions of the recorded one must be equal.
        acting: the model, under the policy of the episode.

    Raises:
        ModelGone: the process that holds the model has ended.
    """
    if not folder.is_dir():
        return None
    try:
        return _load(folder, trace, head, acting)
    except (NotSaved, OSError, TraceError) as error:
        print(f"the episode starts over: {error}", file=sys.stderr, flush=True)
        return None


def _load(folder: Path, trace: Path, head: Mapping[str, Any], acting: RemoteActing) -> Checkpoint:
    recorded = read_trace(trace)
    for name in ("key", "settings", "versions"):
        if recorded.head.get(name) != json.loads(json.dumps(head[name])):
            raise NotSaved(f"{trace} has other {name}")
    conversation = acting.load(folder)
    steps = recorded.steps[: conversation.num_turns]
    if not steps or len(steps) < conversation.num_turns:
        raise NotSaved(f"{trace} has {len(steps)} of {conversation.num_turns} steps")
    if any(MASK in step.reply for step in steps):
        raise NotSaved(f"{trace} has a masked reply")
    return Checkpoint(steps, conversation)


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """A `Model` that saves its episode to a folder at intervals, and may resume it from there."""

    acting: RemoteActing
    folder: Path
    every_s: float
    """Seconds between two checkpoints."""
    may_save: Callable[[], bool]
    """Asked before each checkpoint."""
    resumed: Checkpoint | None
    """The episode to resume; None begins a new one."""

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.acting.name

    def begin(self, goal: str, *, seed: int = 0) -> "CheckpointedConversation":
        """Begin the episode, or resume it."""
        if self.resumed is not None:
            return CheckpointedConversation(self, self.resumed.conversation, self.resumed.steps)
        return CheckpointedConversation(self, self.acting.begin(goal, seed=seed))


class CheckpointedConversation:
    """A conversation that repeats its recorded replies, and then saves itself at intervals."""

    def __init__(
        self,
        model: Checkpointed,
        conversation: RemoteConversation,
        recorded: tuple[Step, ...] = (),
    ) -> None:
        self._model, self._conversation = model, conversation
        self._recorded = deque(recorded)
        self._num_asked = 0
        """Replies asked for that the checkpoint does not have."""
        self._saved_at = time.monotonic()

    def reply(self, page: Page, note: str = "", deadline: float | None = None) -> Reply:
        """Return the reply to a page, as `RemoteConversation.reply` does."""
        return self.ask(page, note, deadline)()

    def ask(self, page: Page, note: str = "", deadline: float | None = None) -> Callable[[], Reply]:
        """Show the page to the model, and return a function that waits for its reply."""
        if self._recorded:
            return partial(recorded_reply, self._recorded.popleft(), page)
        if self._num_asked and time.monotonic() - self._saved_at >= self._model.every_s:
            self._save()
        self._num_asked += 1
        return self._conversation.ask(page, note, deadline)

    def _save(self) -> None:
        if self._model.may_save():
            try:
                self._conversation.save(self._model.folder)
            except NotSaved as error:  # the episode needs none
                print(f"no checkpoint: {error}", file=sys.stderr, flush=True)
        self._num_asked, self._saved_at = 0, time.monotonic()
