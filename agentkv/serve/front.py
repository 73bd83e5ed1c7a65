"""`agentkv serve` on the terminal: what it does at its start, its address, a line per request."""

import contextlib
import logging
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from agentkv.progress import Progress, telling_of_compilation
from agentkv.serve.command import listen, load, prepare, serve
from agentkv.serve.engine import REQUESTS
from agentkv.serve.settings import ServeSettings
from agentkv.startup import no_collections
from agentkv.status_line import StatusLine


def run_server(
    settings: ServeSettings,
    keys: Sequence[str],
    *,
    console: Console,
    errors: Console,
    kept: str,
) -> None:
    """Load the model, and serve until the process is told to stop.

    Args:
        console: writes to stdout, which gets the server's address.
        errors: writes to stderr, which shows what the start is doing, and a line per request.
        kept: what becomes of the sessions when the server stops.
    """
    with contextlib.ExitStack() as stack:
        with StatusLine(errors) as status, telling_of_compilation(status), no_collections():
            status(Progress("loading", name=settings.model))
            api = stack.enter_context(prepare(load(settings, status), settings, keys))
        chosen = ", ".join(
            each.policy if each.budget is None else f"{each.policy} ({each.budget})"
            for each in api.engine.sessions.policies
        )
        named = api.model
        if named != settings.model:
            named = f"{named} ({settings.model})"
        if settings.any_model:
            named = f"{named}, under any name,"
        listening = stack.enter_context(listen(settings))
        address = f"http://{settings.host}:{listening.getsockname()[1]}/v1"
        told = f"serving model {named} at {address}, with {chosen}"
        console.print(Text(told), soft_wrap=True)
        console.print(Text(f"Press Ctrl-C to stop; {kept}.", style="dim"), soft_wrap=True)
        lines = _Lines(errors)
        stack.callback(REQUESTS.removeHandler, lines)
        stack.callback(REQUESTS.setLevel, REQUESTS.level)
        REQUESTS.addHandler(lines)
        REQUESTS.setLevel(logging.DEBUG if settings.explain else logging.INFO)
        serve(api, listening)


class _Lines(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        self._console.print(Text(self.format(record), style="dim"), soft_wrap=True)
