"""`agentkv policies`."""

from typing import Annotated

import typer

from agentkv_tasks.cli.options import for_people


def policies(
    name: Annotated[str | None, typer.Argument(help="Policy to explain.")] = None,
    long: Annotated[
        bool, typer.Option("--long", help="Print parts, parameters and source of each policy.")
    ] = False,
) -> None:
    """List the cache policies in a line each, or explain one policy."""
    with for_people() as console:
        from agentkv_tasks.cli.listing import print_parts, print_policies, print_policy

        if name is None:
            (print_parts if long else print_policies)(console)
        else:
            print_policy(console, name)
