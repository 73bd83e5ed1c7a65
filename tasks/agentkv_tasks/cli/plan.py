"""`agentkv plan`."""

from typing import Annotated, Any

import typer

from agentkv.settings import PoliciesSettings
from agentkv.terminal import note
from agentkv_tasks.cli.options import for_people, takes


@takes(PoliciesSettings)
def plan(
    given: dict[str, Any],
    model: Annotated[
        str, typer.Argument(help="nano, smollm2, smollm2-web, a folder, a GGUF file or a hub id.")
    ] = "nano",
    tokens: Annotated[
        int, typer.Option(min=1, help="Tokens that an episode or a conversation reads and writes.")
    ] = 32_768,
    memory: Annotated[
        str | None,
        typer.Option(help="Memory for weights and cache, such as 24GiB. [default: the device's]"),
    ] = None,
) -> None:
    """Say what weights and caches will take, and what fits, without loading the model."""
    with for_people() as console:
        from agentkv.build import ignored_budget
        from agentkv.plan import memory_of, plan_caches, plan_model, without_refused
        from agentkv_tasks.cli.listing import print_plan

        settings = PoliciesSettings.read(**given, model=model)
        note(ignored_budget(settings))
        num_bytes = memory_of(settings.device, memory)
        planned = plan_model(settings)
        if given.get("policies") is None:
            settings, left_out = without_refused(settings, planned.geometry)
            note(left_out)
        caches = plan_caches(settings, planned, num_tokens=tokens, memory=num_bytes)
        print_plan(console, planned, caches, num_tokens=tokens, memory=num_bytes)
