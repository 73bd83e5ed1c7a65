"""`agentkv.run` and `agentkv.report`: suites and their reports from Python."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from agentkv_tasks.report.pool import pooled, read_runs
from agentkv_tasks.report.summary import summarize
from agentkv_tasks.report.tables import markdown, policy_lines
from agentkv_tasks.report.write import write_report
from agentkv_tasks.results import Row
from agentkv_tasks.run import command
from agentkv_tasks.settings import RunSettings


@dataclass(frozen=True, slots=True)
class Report:
    """The rows of one run or several, and the page that shows them."""

    rows: tuple[Row, ...]
    """One row for each episode, in the order of the results files."""
    path: Path
    """The HTML report."""

    def markdown(self, *, against: Sequence[str] | None = None) -> str:
        """Return the table of the policies as Markdown, as `agentkv report --markdown` prints it.

        Args:
            against: policies to compare with; None: the full cache, or the first policy.

        Raises:
            ResultsError: a ValueError; no row belongs to a policy in `against`.
        """
        return markdown(policy_lines(summarize(self.rows), against))

    def frame(self) -> Any:
        """Return the rows as a `pandas.DataFrame`, with a column for each field of `Row`.

        Settings, versions and parameters are columns of dictionaries.

        Raises:
            ModuleNotFoundError: pandas is not installed.
        """
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "a frame needs pandas, which is not installed: pip install 'agentkv-web[pandas]', "
                "or use the rows themselves",
                name="pandas",
            ) from error
        return pandas.DataFrame([asdict(row) for row in self.rows])


def run(
    tasks: str | Path | None = None,
    policies: str | Sequence[str | Mapping[str, Any]] | None = None,
    *,
    out: str | Path | None = None,
    config: str | Path | None = None,
    fresh: bool = False,
    retry_failures: bool = False,
    show_progress: bool = False,
    **settings: Any,
) -> Report:
    """Run tasks under several cache policies, as `agentkv run` does, and return their rows.

    The same call continues a run that was stopped. Worker processes do not import the calling
    script, so the call needs no `if __name__ == "__main__":`.

    Args:
        tasks: suite, JSON file or folder, or TOML file of sites; None: vwa75, or what `config`
            says.
        policies: names or TOML files of policies, or tables with `name`, `parameters` and `label`;
            a text names several, separated by commas. None: those that `agentkv run` takes.
        out: folder of rows, traces and the report; None: the one that `agentkv run` takes, below
            `runs`.
        config: TOML file of settings, which arguments override.
        fresh: delete the rows in `out` first.
        retry_failures: run episodes again that failed for a reason outside the agent.
        show_progress: print progress and the table, as the command does. Otherwise what is
            degraded, such as a missing Tesseract, is a warning.
        settings: further settings of `agentkv_tasks.settings.RunSettings`, such as `model`,
            `budget`, `world_seed`, `limit` and `workers`.

    Returns:
        The rows of this run's episodes, those that were done before included.

    Raises:
        ValueError: an argument, a task or a policy is wrong; the message names usable values.
        BrowserMissing: a RuntimeError; no browser was found.
        RunError: a RuntimeError; workers or the model's process die repeatedly.
        WriteError: a RuntimeError; a row or the report could not be written.
    """
    given = dict(settings)
    if tasks is not None:
        given["tasks"] = str(tasks)
    if out is not None:
        given["out"] = Path(out)
    if policies is not None:
        names = policies.split(",") if isinstance(policies, str) else policies
        given["policies"] = tuple(each.strip() if isinstance(each, str) else each for each in names)
    prepared = command.prepare(
        RunSettings.read(_path(config), **given), fresh=fresh, retry_failures=retry_failures
    )
    if not show_progress:
        for notice in prepared.notices:
            warnings.warn(notice, stacklevel=2)
    path = command.run(prepared, Console(quiet=not show_progress))
    folder, wanted = prepared.plan.settings.out, {job.key for job in prepared.plan.jobs}
    rows = read_runs([folder])[folder]
    return Report(tuple(row for row in rows if row.key in wanted), path)


def report(
    *folders: str | Path, out: str | Path | None = None, against: Sequence[str] | None = None
) -> Report:
    """Pool the runs in `folders`, rewrite their reports, and return their rows.

    Runs of equal settings are repeats; `Row.repeat` numbers them.

    Args:
        folders: folders (`out`) of runs.
        out: folder of the pooled report; None: the parent of the first folder. One folder gets its
            own report.
        against: policies to compare with; None: the full cache, or the first policy.

    Raises:
        ValueError: no folder.
        ResultsError: a ValueError; there are no results, a line is broken, the runs cannot be
            pooled, or no row belongs to a policy in `against`.
        WriteError: a RuntimeError; a page could not be written.
    """
    if not folders:
        raise ValueError("give at least one folder (out) of a run")
    paths = [Path(folder) for folder in folders]
    rows = tuple(row for run in pooled(read_runs(paths)).values() for row in run)
    return Report(rows, write_report(*paths, out=_path(out), against=against))


def _path(given: str | Path | None) -> Path | None:
    return None if given is None else Path(given)
