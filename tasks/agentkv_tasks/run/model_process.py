"""The process that holds the model, as its parent sees it: start, connections and failures."""

import multiprocessing.context
import time
from multiprocessing import reduction

from agentkv_tasks.run.child_process import ChildProcess
from agentkv_tasks.run.model_host import (
    Alive,
    Compiling,
    LoadFailed,
    ModelLoaded,
    NewConnection,
    Status,
    serve_model,
)
from agentkv_tasks.run.plan import Plan
from agentkv_tasks.run.remote import Connection

START_S = 600.0
"""Seconds that loading the model may take."""


class CannotStart(ValueError):
    """The run cannot start; the message says what to correct. No episode has run."""


class ModelProcess:
    """The process that holds the model. Its log is in `plan.settings.out`."""

    def __init__(self, context: multiprocessing.context.SpawnContext, plan: Plan) -> None:
        self._context, self._silence_s = context, plan.settings.step_timeout_s
        log = plan.settings.out / "logs" / "model.log"
        self.child = ChildProcess(context, serve_model, plan, what="the model's process", log=log)
        self.loaded: float | None = None
        """Time when the model was loaded, in monotonic seconds; None before."""
        self.compiles = False
        """True once it has said that it compiles kernels."""
        self._waiting: list[Connection] = []

    def open_connection(self) -> Connection:
        """Open a connection between a worker and the process, and return the worker's end.

        The process greets the worker once the model is loaded.
        """
        theirs, worker = self._context.Pipe()
        if self.loaded is None:
            self._waiting.append(theirs)
        else:
            self._send_connection(theirs)
        return worker

    def receive(self) -> None:
        """Handle one message.

        A closed connection is ignored here; `failure` reports it.

        Raises:
            CannotStart: the model or a policy does not exist.
        """
        try:
            status: Status = self.child.connection.recv()
        except (EOFError, OSError):
            self.child.wait(5)
            return
        self.child.last_message = time.monotonic()
        match status:
            case ModelLoaded():
                self.loaded = self.child.last_message
                while self._waiting:
                    self._send_connection(self._waiting.pop(0))
            case LoadFailed():
                raise CannotStart(status.message)
            case Compiling():
                self.compiles = True
            case Alive():
                pass

    @property
    def failure(self) -> tuple[str, str] | None:
        """Status and cause for the rows of the current episodes, or None if the process works."""
        now = time.monotonic()
        if not self.child.is_alive:
            return "crash", self.child.cause()
        if self.loaded is None and now - self.child.started > START_S:
            return "timeout", f"the model was not loaded in {START_S:.0f} s"
        if self.loaded is not None and now - self.child.last_message > self._silence_s:
            return "timeout", f"killed: the model's process was silent for {self._silence_s:.0f} s"
        return None

    def kill(self) -> None:
        """Kill the process, and close the connections that it has not received yet."""
        self.child.kill()
        for connection in self._waiting:
            connection.close()

    def _send_connection(self, connection: Connection) -> None:
        try:
            self.child.connection.send(NewConnection())
            reduction.send_handle(self.child.connection, connection.fileno(), self.child.pid)
        except OSError:
            pass  # it has died; the next round notices
        connection.close()  # only the process holds it now, so its death closes it
