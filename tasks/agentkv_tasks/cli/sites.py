"""`agentkv sites`."""

import time
from typing import Annotated, Any

import typer

from agentkv_tasks.cli.options import for_people, takes
from agentkv_tasks.settings import RunSettings


@takes(RunSettings, "world_seed")
def sites(
    given: dict[str, Any],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8075,
) -> None:
    """Serve the embedded sites for your own browser, until Ctrl-C."""
    with for_people("stopped; changes are lost") as console:
        from agentkv_env.sites.server import Server
        from agentkv_env.sites.world import World

        with Server(World(RunSettings.read(**given).world_seed), port) as server:
            for name, origin in server.origins.items():
                console.print(f"{name:<12} {origin}/", soft_wrap=True)
            console.print("Press Ctrl-C to stop; changes are lost.", style="dim")
            while True:
                time.sleep(3600)
