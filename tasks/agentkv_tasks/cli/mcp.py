"""`agentkv mcp`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from agentkv_tasks.cli.options import (
    Dialogs,
    NamedSecret,
    for_people,
    read_hosts,
    read_secrets,
    takes,
)
from agentkv_tasks.settings import RunSettings


@takes(RunSettings, "ocr", "browser_path")
def mcp(
    given: dict[str, Any],
    hosts: Annotated[
        str,
        typer.Option(
            help="The only hosts that pages may reach, separated by commas: shop.example, "
            "127.0.0.1:8080."
        ),
    ],
    tokens: Annotated[
        int, typer.Option(min=64, help="Maximum tokens of a page, estimated by its bytes.")
    ] = 4000,
    files: Annotated[
        list[Path] | None,
        typer.Option(
            help="File that may be uploaded to pages, or folder of such files; may be repeated."
        ),
    ] = None,
    secret: NamedSecret = None,
    dialogs: Dialogs = "ask",
) -> None:
    """Serve web pages as tools over the Model Context Protocol, on standard input and output."""
    with for_people("stopped"):
        from agentkv.adapters.mcp_server import mcp_server

        settings = RunSettings.read(**given)
        path = settings.browser_path
        names = read_hosts("--hosts", hosts)
        server = mcp_server(
            names,
            tokens=tokens,
            ocr=settings.ocr,
            executable=None if path is None else str(path),
            files=files or (),
            secrets=read_secrets(secret or (), names),
            dialogs=dialogs,
        )
        server.run("stdio")
