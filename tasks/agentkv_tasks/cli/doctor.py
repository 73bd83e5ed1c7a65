"""`agentkv doctor`."""

from typing import Any

import typer
from rich.text import Text

from agentkv_tasks.cli.options import for_people, takes
from agentkv_tasks.settings import RunSettings


@takes(RunSettings, "model", "browser_path")
def doctor(given: dict[str, Any]) -> None:
    """Check everything a run needs: model, browser, fonts, OCR and device."""
    with for_people() as console:
        from agentkv_tasks.run.preflight import examine

        settings = RunSettings.read(**given)
        colors = {"ok": "green", "degraded": "yellow", "missing": "red"}
        verdicts = []
        for finding in examine(browser_path=settings.browser_path, model=settings.model):
            verdicts.append(finding.verdict)
            line = Text(f"{finding.verdict:<9}", style=colors[finding.verdict])
            console.print(line + Text(f"{finding.name:<10} {finding.detail}"), soft_wrap=True)
        raise typer.Exit(1 if "missing" in verdicts else 0)
