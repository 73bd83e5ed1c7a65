"""`agentkv tasks check`: try a file of sites, its log-ins, and each of its tasks."""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Literal

from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import StorageState

from agentkv.agent import Agent
from agentkv.models.scripted import Solution, SolutionStuck
from agentkv_env.browser import Browser
from agentkv_env.errors import ActionFailed, BrowserGone
from agentkv_env.hosts import is_web_address
from agentkv_env.ocr import Ocr, default_cache
from agentkv_env.serialize import serialize
from agentkv_tasks.evaluate import CannotScore, Graders, Score
from agentkv_tasks.evaluate.expressions import syntax_errors
from agentkv_tasks.evaluate.pages import check_calls
from agentkv_tasks.own_sites.serving import OwnServer, SiteError
from agentkv_tasks.own_sites.sign_in import SignInError, shows_log_in
from agentkv_tasks.own_sites.site_file import SiteFile
from agentkv_tasks.run.played_task import EpisodeEnd, begun, first_line, score_of
from agentkv_tasks.suites import read_task_source
from agentkv_tasks.task import Task

_STOP = ("stop []",)
_SHOWN = 100
"""Characters of a line that a finding quotes."""

Verdict = Literal["ok", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class SiteFinding:
    """Result of one check."""

    name: str
    verdict: Verdict
    detail: str


def examine(file: SiteFile, *, browser_path: Path | None = None) -> Iterator[SiteFinding]:
    """Check the passwords, sites, log-ins and tasks of a file.

    The sites are started, and ended at the end. Every task is played three times, each time after a
    reset: by an agent that stops at once, which must not pass; by its solution, which must; and
    once more by the agent that stops, which still must not pass and must find the same start page.

    Raises:
        BrowserMissing: no browser was found.
    """
    passwords: dict[tuple[str, str], str] = {}
    for name, site in file.sites.items():
        for key, account in site.accounts.items():
            if account.password is not None:
                try:
                    passwords[name, key] = file.password(account)
                except ValueError as error:
                    yield SiteFinding(f"password {name}/{key}", "failed", str(error))
    with contextlib.ExitStack() as stack:
        server = OwnServer(file, passwords)
        stack.callback(server.stop)
        checks = _Checks(server, passwords, stack, browser_path)
        for finding in checks.run():
            detail = server.secrets.mask(server.addresses.public(finding.detail))
            yield SiteFinding(finding.name, finding.verdict, " ".join(detail.split()))


class _Checks:
    def __init__(
        self,
        server: OwnServer,
        passwords: Mapping[tuple[str, str], str],
        stack: contextlib.ExitStack,
        browser_path: Path | None,
    ) -> None:
        self._server, self._passwords, self._stack = server, passwords, stack
        self._path = browser_path
        self._running: Browser | None = None
        self._ocr = Ocr.find(default_cache())
        self._bad_sites: list[str] = []
        self._bad_accounts: set[tuple[str, str]] = set()

    def run(self) -> Iterator[SiteFinding]:
        for name in self._server.sites:
            yield from self._site(name)
        for name, site in self._server.file.sites.items():
            for key in site.accounts:
                yield self._log_in(name, key)
        try:
            tasks, _ = read_task_source(self._server.file.tasks, self._server.file.folder)
        except ValueError as error:
            yield SiteFinding("tasks", "failed", str(error))
            return
        yield SiteFinding("tasks", "ok", f"{len(tasks)} in {Path(self._server.file.tasks).name}")
        for task in tasks:
            yield from self._task(task)

    def _site(self, name: str) -> Iterator[SiteFinding]:
        served = self._server.sites[name]
        label = f"site {name}"
        try:
            served.start()
            how = "answers" if served.site.start is None else "answers after its start"
            yield SiteFinding(label, "ok", f"{self._server.file.public_address(name)} {how}")
            served.reset()
        except SiteError as error:
            self._bad_sites.append(name)
            yield SiteFinding(label, "failed", str(error))
            return
        if served.site.reset is not None:
            yield SiteFinding(f"reset {name}", "ok", "done")
        elif served.site.read_only:
            yield SiteFinding(f"reset {name}", "skipped", "it is `read_only`")
        else:
            yield SiteFinding(f"reset {name}", "skipped", "the file has no `reset` for it")

    def _log_in(self, name: str, key: str) -> SiteFinding:
        label = f"log-in {name}/{key}"
        account = self._server.file.sites[name].accounts[key]
        reason = ""
        if name in self._bad_sites:
            reason = f"site {name} does not work"
        elif account.password is not None and (name, key) not in self._passwords:
            reason = "its password is missing"
        if reason:
            self._bad_accounts.add((name, key))
            return SiteFinding(label, "skipped", reason)
        try:
            state = self._server.sign_in(self._browser(), name, key)
            found = SiteFinding(label, "ok", "by the form")
            if account.storage_state:
                found = self._stored(label, name, state)
        except (ValueError, BrowserGone, PlaywrightError) as error:
            found = SiteFinding(label, "failed", first_line(error))
        if found.verdict == "failed":
            self._bad_accounts.add((name, key))
        return found

    def _stored(self, label: str, name: str, state: StorageState) -> SiteFinding:
        """Try a stored log-in, for which a page is needed that shows it."""
        file, addresses = self._server.file, self._server.addresses
        login = file.sites[name].login
        if login is None:
            return SiteFinding(
                label, "skipped", "stored; no login.shows says what a page then shows"
            )
        site = file.public_address(name)
        if shows_log_in(self._browser(), login, site=site, state=state, addresses=addresses):
            return SiteFinding(label, "ok", "stored")
        return SiteFinding(label, "failed", f"stored; {site} does not show {login.shows}")

    def _task(self, task: Task) -> Iterator[SiteFinding]:
        label = f"task {task.task_id}"
        if problems := self._problems(task):
            yield SiteFinding(label, "failed", "; ".join(problems))
            return
        yield SiteFinding(label, "ok", "its addresses and expressions can be read")
        reason = ", ".join(f"site {name} does not work" for name in self._bad_sites)
        bad = self._bad_accounts.intersection(self._server.file.accounts_of(task))
        if bad and not reason:
            reason = ", ".join(f"{name}/{key} is not logged in" for name, key in sorted(bad))
        if reason:
            yield SiteFinding(f"{label} stop", "skipped", reason)
            yield SiteFinding(f"{label} solution", "skipped", reason)
            return
        stop, before = self._played(f"{label} stop", task, _STOP, passes=False)
        yield stop
        if not task.solution:
            yield SiteFinding(f"{label} solution", "skipped", "the task has no `solution`")
            return
        solution, _ = self._played(f"{label} solution", task, task.solution, passes=True)
        yield solution
        if {stop.verdict, solution.verdict} == {"ok"}:
            yield self._is_as_before(f"{label} reset", task, before)
        else:
            yield SiteFinding(f"{label} reset", "skipped", "an earlier check did not succeed")

    def _is_as_before(self, label: str, task: Task, before: str) -> SiteFinding:
        """Check that the sites do not show what the solution has changed.

        Args:
            before: text of the start page before the solution was played.
        """
        if unreset := self._server.file.unreset([task]):
            return SiteFinding(label, "skipped", f"nothing resets {', '.join(unreset)}")
        stop, after = self._played(label, task, _STOP, passes=False)
        if stop.verdict != "ok":
            return replace(stop, detail=f"after the solution: {stop.detail}")
        if difference := self._difference(before, after):
            detail = f"after the solution, the start page shows {difference}"
            return SiteFinding(label, "failed", detail)
        return SiteFinding(label, "ok", "the start page is as before the solution")

    def _difference(self, before: str, after: str) -> str:
        """Describe the first line that differs, apart from what is `volatile`; empty if none."""
        sites = self._server.file.sites.values()
        for pattern in [pattern for site in sites for pattern in site.volatile]:
            before = re.sub(pattern, "", before, flags=re.MULTILINE)
            after = re.sub(pattern, "", after, flags=re.MULTILINE)
        for old, new in zip_longest(before.splitlines(), after.splitlines()):
            if old != new:
                return f"{self._quoted(new)} instead of {self._quoted(old)}"
        return ""

    def _quoted(self, line: str | None) -> str:
        """Return a line of a page for a message, with secrets masked; None is the page's end."""
        if line is None:
            return "its end"
        return f"'{self._server.secrets.mask(line)[:_SHOWN]}'"  # a cut before would part a secret

    def _problems(self, task: Task) -> list[str]:
        """Return what is wrong with a task before it is played."""
        addresses = self._server.addresses
        missing = addresses.missing(task.model_dump_json(include={"start_url", "eval"}))
        if missing:
            known = ", ".join(sorted(addresses.placeholders))
            return [f"no site is known for {', '.join(missing)}; known: {known}"]
        found = [
            f"start_url: '{url}' is not a URL"
            for url in task.start_urls
            if not is_web_address(addresses.fill(url))
        ]
        try:
            self._server.file.accounts_of(task)
            self._server.file.require_secrets(task)
            check_calls(task)
        except ValueError as error:
            return [*found, str(error).removeprefix(f"task {task.task_id}: ")]
        with self._browser().session(hosts=()) as session:
            return found + syntax_errors(task, session.page)

    def _played(
        self, label: str, task: Task, steps: Sequence[str], *, passes: bool
    ) -> tuple[SiteFinding, str]:
        """Reset the sites and play `steps`; return the finding, and the text of the start page.

        Args:
            passes: whether the steps should solve the task.
        """
        page = ""
        try:
            score, page = self._play(task, steps)
        except CannotScore as error:
            found = SiteFinding(label, "skipped", f"cannot be scored: {error}")
        except (SolutionStuck, SiteError, SignInError, ActionFailed) as error:
            found = SiteFinding(label, "failed", str(error))
        except (BrowserGone, PlaywrightError) as error:
            found = SiteFinding(label, "failed", first_line(error))
        else:
            if passes:
                detail = score.reason or f"passes in {_steps(steps)}"
            elif score.value == 1.0:
                detail = "passes for an agent that stops at once"
            else:
                detail = "does not pass"
            found = SiteFinding(label, "ok" if (score.value == 1.0) == passes else "failed", detail)
        return found, page

    def _play(self, task: Task, steps: Sequence[str]) -> tuple[Score, str]:
        browser, addresses = self._browser(), self._server.addresses
        log_in = self._server.begin(task, browser)
        with begun(
            task,
            browser,
            addresses,
            ocr=self._ocr,
            log_in=log_in,
            secrets=self._server.named_secrets,
        ) as (session, goal):
            page = serialize(replace(session.observe(), notices=())).text  # notices depend on time
            agent = Agent(Solution([addresses.fill(line) for line in steps]))
            episode = agent.run(session, goal, max_steps=task.max_steps)
            if episode.status != "stopped":
                reason = episode.error or "it did not stop"
                return Score(0.0, f"{episode.status} after {_steps(episode.steps)}: {reason}"), page
            graders = Graders(admin=self._server.admin)
            end = EpisodeEnd.of(session, episode.answer, browser, addresses)
            score = score_of(task, end, browser, addresses, graders=graders)
            return score, page

    def _browser(self) -> Browser:
        """Return a running browser; a dead one is replaced."""
        if self._running is None or not self._running.is_alive:
            path = None if self._path is None else str(self._path)
            self._running = self._stack.enter_context(Browser.launch(executable=path))
        return self._running


def _steps(steps: Sequence[object]) -> str:
    return f"{len(steps)} step{'s' * (len(steps) != 1)}"
