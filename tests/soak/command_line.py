"""Call the command line in this process and judge its output."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

import typer
from typer.testing import CliRunner

from agentkv_tasks.cli.app import cli
from tests.soak.part import Verdict
from tests.soak.time_limit import time_limit

NO_BROWSER = "/nowhere/chromium"
"""A --browser-path that does not exist: arguments are checked in full, but nothing starts."""
LIMIT_S = 300.0
"""Seconds after which a case counts as hanging."""
MAX_LINE = 2000
"""Maximum characters of an error line."""


def invoke(
    case: str,
    arguments: Sequence[str],
    folder: Path,
    *,
    refused: bool | None = None,
    app: typer.Typer = cli,
) -> Verdict:
    """Call `agentkv` in `folder`; expect a result, or one line on stderr and exit code 1 or 2.

    Args:
        case: the name of the case.
        arguments: the arguments of the command.
        folder: the working directory.
        refused: whether the arguments must be refused, for a reason other than a missing browser.
            None accepts either.
        app: the commands.
    """
    try:
        with contextlib.chdir(folder), time_limit(LIMIT_S):
            result = CliRunner().invoke(app, list(arguments))
    except Exception as error:  # a timeout, or an error of the runner
        return Verdict(case, "broken", f"{type(error).__name__}: {str(error)[:200]}")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        kind = type(result.exception).__name__
        return Verdict(case, "broken", f"traceback: {kind}: {str(result.exception)[:200]}")
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    if lines[:1] and lines[0].startswith("Usage: "):
        lines = [line for line in lines if not line.startswith(("Usage: ", "Try "))]
        if not any(line.startswith("Error: ") for line in lines):
            return Verdict(case, "held", "the help")
    said = "\n".join(lines)
    if "Traceback" in result.output:
        return Verdict(case, "broken", f"a traceback is shown: {said[:200]}")
    if result.exit_code == 0:
        outcome = "a result"
    elif result.exit_code == 1 and not lines and result.stdout:
        outcome = "a result that says no"  # for example the findings of `doctor`
    elif result.exit_code not in (1, 2):
        return Verdict(case, "broken", f"exit code {result.exit_code}: {said[:200]}")
    elif len(lines) != 1 or not said.startswith(("agentkv: ", "Error: ")):
        return Verdict(case, "broken", f"{len(lines)} lines of error: {said[:200]!r}")
    elif len(said) > MAX_LINE and said.startswith("agentkv: "):
        return Verdict(case, "broken", f"a line of {len(said)} characters: {said[:200]}")
    else:
        outcome = "for the browser" if NO_BROWSER in said else "refused"
    if refused is not None and refused != (outcome == "refused"):
        return Verdict(case, "broken", f"answered with {outcome}: {said[:200]}")
    return Verdict(case, "held", said)
