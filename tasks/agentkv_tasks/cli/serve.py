"""`agentkv serve`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from agentkv.serve.settings import ServeSettings
from agentkv.startup import no_collections
from agentkv.terminal import Terminal, note
from agentkv_tasks.cli.options import for_people, takes


@takes(ServeSettings)
def serve(
    given: dict[str, Any],
    api_keys: Annotated[
        Path | None,
        typer.Option(
            help="File of API keys, one per line, which only its owner may read. The variable "
            "AGENTKV_API_KEYS may hold keys as well, separated by commas."
        ),
    ] = None,
) -> None:
    """Serve a model to programs that speak OpenAI's or Anthropic's protocol, until Ctrl-C.

    Every conversation keeps its cache from one request to the next, so that the model reads only
    what is new.
    """
    store = given.get("store")
    kept = f"sessions stay in {store}" if store else "sessions are lost without --store"
    with for_people(f"stopped; {kept}") as console:
        with no_collections():
            from agentkv.build import ignored_budget
            from agentkv.serve.command import check, read_keys
            from agentkv.serve.front import run_server

        settings = ServeSettings.read(**given)
        keys = read_keys(api_keys)
        check(settings, keys)
        note(ignored_budget(settings))
        run_server(settings, keys, console=console, errors=Terminal(stderr=True), kept=kept)
