"""A run's end of the process that holds the model: its start, its lines, and its troubles."""

import multiprocessing.context
import time
from multiprocessing import reduction

from agentkv_tasks.run.child_process import ChildProcess
from agentkv_tasks.run.model_host import Alive, Loaded, NewLine, Sign, Unloadable, serve_model
from agentkv_tasks.run.plan import Plan
from agentkv_tasks.run.remote import Connection

START_S = 600.0
"""What it may take to load the model."""


class CannotStart(ValueError):
    """Nobody can work as was asked; the message says what to mend. Nothing was run."""


class ModelProcess:
    """One process with the model in it. `plan.settings.out` gets its log."""

    def __init__(self, context: multiprocessing.context.SpawnContext, plan: Plan) -> None:
        self._context, self._silence_s = context, plan.step_timeout_s
        log = plan.settings.out / "logs" / "model.log"
        self.child = ChildProcess(context, serve_model, plan, what="the model's process", log=log)
        self.loaded: float | None = None
        """When the model was; monotonic seconds."""
        self._waiting: list[Connection] = []

    def line(self) -> Connection:
        """A worker's end of a new line, on which the process speaks once the model is loaded."""
        theirs, worker = self._context.Pipe()
        if self.loaded is None:
            self._waiting.append(theirs)
        else:
            self._hand_over(theirs)
        return worker

    def hear(self) -> None:
        """Take one message. Does nothing at the process's end, which is a `trouble`.

        Raises:
            CannotStart: there is no such model, or no such policy.
        """
        try:
            sign: Sign = self.child.connection.recv()
        except (EOFError, OSError):
            self.child.wait(5)
            return
        self.child.heard = time.monotonic()
        match sign:
            case Loaded():
                self.loaded = self.child.heard
                while self._waiting:
                    self._hand_over(self._waiting.pop(0))
            case Unloadable():
                raise CannotStart(sign.message)
            case Alive():
                pass

    @property
    def trouble(self) -> tuple[str, str] | None:
        """How episodes end that depended on it, and why; None while all is well."""
        now = time.monotonic()
        if not self.child.is_alive:
            return "crash", self.child.cause()
        if self.loaded is None and now - self.child.started > START_S:
            return "timeout", f"the model was not loaded in {START_S:.0f} s"
        if self.loaded is not None and now - self.child.heard > self._silence_s:
            return "timeout", f"killed: the model's process was silent for {self._silence_s:.0f} s"
        return None

    def kill(self) -> None:
        """End it and all lines that it was not given yet."""
        self.child.kill()
        for line in self._waiting:
            line.close()

    def _hand_over(self, line: Connection) -> None:
        try:
            self.child.connection.send(NewLine())
            reduction.send_handle(self.child.connection, line.fileno(), self.child.pid)
        except OSError:
            pass  # it has died; the next turn finds it dead
        line.close()  # theirs alone now, so that its death closes the line
