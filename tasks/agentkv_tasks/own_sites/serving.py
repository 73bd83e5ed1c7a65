"""Start, reset and end the sites of a file, and begin tasks on them."""

import http.client
import socket
import ssl
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self
from urllib.parse import urlencode, urlsplit

from playwright.sync_api import StorageState

from agentkv_env.browser import Browser
from agentkv_env.masking import Secrets
from agentkv_env.named_secrets import Secret
from agentkv_tasks.addresses import Addresses
from agentkv_tasks.evaluate import MagentoAdmin
from agentkv_tasks.own_sites.guard import GRACE_S
from agentkv_tasks.own_sites.process import SiteProcess
from agentkv_tasks.own_sites.schema import PORT, PYTHON, Command, OwnSite
from agentkv_tasks.own_sites.sign_in import SignInError, joined, read_storage_state, sign_in
from agentkv_tasks.own_sites.site_file import SiteFile
from agentkv_tasks.task import Task

_REQUEST_S = 10.0
_ENDING_S = GRACE_S + 1  # the site of a worker that crashed may still be ending


class SiteError(ValueError):
    """A site that does not start, answer or reset; the message says what it printed."""


class ServedSite:
    """One site of a file.

    Args:
        secrets: texts that its messages mask.
    """

    def __init__(self, file: SiteFile, name: str, secrets: Secrets) -> None:
        self.name = name
        self.site: OwnSite = file.sites[name]
        self._file = file
        self._secrets = secrets
        self._process: SiteProcess | None = None
        self._port = _free_port() if self.site.is_copied else 0
        self.address = self._filled(self.site.address)
        """Real address."""

    def start(self) -> None:
        """Start the site and wait until its address answers; without a command, only check that.

        Raises:
            SiteError: the address does not answer, or it did before the start.
        """
        if self.site.start is None:
            if reason := silence(self.address):
                raise self._error(
                    f"{self.address} does not answer, and the file has no `start`: {reason}"
                )
            return
        until = time.monotonic() + _ENDING_S
        while answers(self.address):
            if time.monotonic() > until:
                raise self._error(
                    f"{self.address} answers before the start; end the program that serves it, or "
                    "remove `start`"
                )
            time.sleep(0.05)
        self._process = self._run(self.site.start)
        until = time.monotonic() + self.site.ready_s
        while not answers(self.address):
            code = self._process.exit_code
            if code is not None:
                raise self._error(f"`start` ended with exit code {code}", self._process)
            if time.monotonic() > until:
                waited = f"{self.address} does not answer {self.site.ready_s:g} s after the start"
                raise self._error(waited, self._process)
            time.sleep(0.05)
        if (code := self._process.exit_code) is not None:
            raise self._error(
                f"`start` ended with exit code {code}, and another program answers at "
                f"{self.address}",
                self._process,
            )

    def reset(self) -> None:
        """Put the site into its first state. A started site that no longer answers is restarted.

        Raises:
            SiteError: the command or request failed, or the site does not start.
        """
        reset = self.site.reset
        process = self._process
        is_gone = process is not None and (
            process.exit_code is not None or not answers(self.address)
        )
        if is_gone or (reset is not None and reset.restart):
            self.stop()
            self.start()
        if reset is None or reset.restart:
            return
        if reset.command is not None:
            with self._run(reset.command) as running:
                code = running.wait(self.site.ready_s)
                if code is None:
                    raise self._error(f"`reset` took longer than {self.site.ready_s:g} s", running)
                if code != 0:
                    raise self._error(f"`reset` ended with exit code {code}", running)
            return
        method, path = ("GET", reset.get) if reset.get else ("POST", reset.post)
        form = self._file.form(reset)
        try:
            status = request(
                self.address + path, method=method, form=form, timeout_s=self.site.ready_s
            )
        except (OSError, http.client.HTTPException) as error:
            raise self._error(f"reset: {path} does not answer: {error}") from None
        if status >= 400:
            raise self._error(f"reset: {method} {path} answers with status {status}")

    def ended(self) -> str:
        """Return why a site that was started no longer answers; empty if it does."""
        process = self._process
        if process is None or (process.exit_code is None and answers(self.address)):
            return ""
        code = process.wait(GRACE_S)  # its death closes its port before it is noticed here
        if code is None:  # it is only slow
            return ""
        return str(self._error(f"`start` ended with exit code {code} during an episode", process))

    def stop(self) -> None:
        """End what was started; stopping twice does nothing."""
        if self._process is not None:
            self._process.stop()
            self._process = None

    def _run(self, command: Command) -> SiteProcess:
        words = [self._filled(word).replace(PYTHON, sys.executable) for word in command]
        environment = {key: self._filled(text) for key, text in self.site.environment.items()}
        return SiteProcess(words, folder=self._file.folder, environment=environment)

    def _filled(self, text: str) -> str:
        return text.replace(PORT, str(self._port)) if self._port else text

    def _error(self, problem: str, process: SiteProcess | None = None) -> SiteError:
        output = "" if process is None else process.output()
        masked = self._secrets.mask(output)[-_SHOWN_CHARACTERS:]  # a cut before would part secrets
        text = self._secrets.mask(f"site {self.name}: {problem}")
        return SiteError(text + (f"; it printed: {masked}" if masked else ""))


_SHOWN_CHARACTERS = 2000
"""Characters of a command's output that an error quotes."""


class OwnServer:
    """The sites of a file; a context manager that starts and ends them.

    Args:
        passwords: password of each account that has one, by site and key.
    """

    def __init__(self, file: SiteFile, passwords: Mapping[tuple[str, str], str]) -> None:
        self.file = file
        self._passwords = passwords
        self.secrets = Secrets([*passwords.values(), *file.tokens()])
        """All passwords and tokens; whoever writes about an episode masks them."""
        self.named_secrets: Mapping[str, Secret] = file.named_secrets(passwords)
        """The passwords, for an agent that types them by name."""
        self.sites = {name: ServedSite(file, name, self.secrets) for name in file.sites}
        self.admin = self._admin()
        """Admin interface of a shop; None if the file has none, or its password is missing."""
        origins = {
            _origin(file.public_address(name)): _origin(served.address)
            for name, served in self.sites.items()
            if served.site.is_copied
        }
        self.addresses = Addresses(file.placeholders, origins, settle_s=file.settle_s)

    def _admin(self) -> MagentoAdmin | None:
        for name, site in self.file.sites.items():
            if site.admin is not None:
                try:
                    password = self.file.password(site.admin)
                except ValueError:  # a run has refused the tasks that need it
                    return None
                self.secrets.add(password)
                return MagentoAdmin(self.sites[name].address, site.admin.name, password)
        return None

    def begin(self, task: Task, browser: Browser) -> StorageState | None:
        """Reset the sites, and return the log-in with which `task` begins, if it has one.

        Exclusive sites that the task does not reserve stay as they are: another episode may be
        playing there.

        Raises:
            SiteError: a site cannot be reset.
            SignInError: an account cannot be logged in.
            TaskError: the task needs an account that is not in the file.
            BrowserGone: the browser died.
        """
        others = self.file.left_to_others(task)
        for name, served in self.sites.items():
            if name not in others:
                served.reset()
        states = [self.sign_in(browser, name, key) for name, key in self.file.accounts_of(task)]
        return joined(states) if states else None

    def ended(self) -> str:
        """Return why a site that was started no longer answers; empty if all do."""
        return next((why for served in self.sites.values() if (why := served.ended())), "")

    def sign_in(self, browser: Browser, name: str, key: str) -> StorageState:
        """Log account `key` in to site `name`. Raises as `begin` does."""
        site = self.file.sites[name]
        account = site.accounts[key]
        try:
            if account.storage_state:
                return read_storage_state(self.file.folder / account.storage_state)
            assert site.login is not None, "the file was checked"
            return sign_in(
                browser,
                site.login,
                site=self.file.public_address(name),
                name=account.name or key,
                password=self._passwords[name, key],
                addresses=self.addresses,
            )
        except SignInError as error:
            raise SignInError(f"site {name}, account {key}: {error}") from None

    def __enter__(self) -> Self:
        try:
            for served in self.sites.values():
                served.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End all sites that were started."""
        for served in self.sites.values():
            served.stop()


def answers(url: str) -> bool:
    """Return True if a web server answers at `url`, with any status."""
    return not silence(url)


def silence(url: str) -> str:
    """Return why no web server answers at `url`; empty if one does."""
    try:
        request(url, method="GET", timeout_s=_REQUEST_S)
    except (OSError, http.client.HTTPException) as error:
        return str(error) or type(error).__name__
    return ""


def request(
    url: str, *, method: str, timeout_s: float, form: Mapping[str, str] | None = None
) -> int:
    """Send a request and return the status; redirects are not followed.

    Args:
        form: fields to send in the body; None or empty: no body.

    Raises:
        OSError: nothing answers.
        http.client.HTTPException: the answer is not HTTP.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host.endswith(".localhost"):  # not every resolver knows these names
        host = "127.0.0.1"
    if parts.scheme == "https":
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, parts.port, timeout=timeout_s, context=ssl.create_default_context()
        )
    else:
        connection = http.client.HTTPConnection(host, parts.port, timeout=timeout_s)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        headers = {"Host": parts.netloc}
        if form:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        connection.request(method, path, urlencode(form) if form else None, headers)
        return connection.getresponse().status
    finally:
        connection.close()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


def _origin(address: str) -> str:
    return "/".join(address.split("/")[:3])
