"""A file of sites: where they are, how they are started, reset and logged in to, and their tasks.

The file never holds a password. It names an environment variable, or a file that only its owner may
read. Messages about a wrong file quote none of its values, because a password may stand there by
mistake.
"""

import os
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from agentkv.config import read_toml
from agentkv.files import read_private
from agentkv_env.hosts import is_web_address
from agentkv_env.named_secrets import Secret, is_name, names_in, placeholder
from agentkv_tasks.addresses import PLACEHOLDER
from agentkv_tasks.task import Task, TaskError

PORT = "{port}"
"""Stands for a free port in an address and in commands."""
PYTHON = "{python}"
"""Stands for the Python that runs agentkv, in commands."""

_MAX_PASSWORD_BYTES = 4096
_SITE_NAME = re.compile("[a-z][a-z0-9-]*")


class SiteFileError(ValueError):
    """A file of sites with a mistake; the message names the file and the key."""


class _Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _command(value: object) -> object:
    if isinstance(value, str):
        raise ValueError('a command is a list such as ["python", "serve.py"]; no shell runs it')
    return value


Word = Annotated[str, Field(min_length=1)]
Command = Annotated[tuple[Word, ...], BeforeValidator(_command), Field(min_length=1)]
"""A program and its arguments; they run in the folder of the file."""


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"expected a regular expression: {error}") from None
    return value


Pattern = Annotated[Word, AfterValidator(_pattern)]


def _place(value: object) -> object:
    return {"label": value} if isinstance(value, str) else value


class Place(_Schema):
    """An element of a page, by its label or text, or by a CSS selector.

    In the file, a bare text is the label.
    """

    label: str = ""
    selector: str = ""

    @model_validator(mode="after")
    def _is_one(self) -> "Place":
        if bool(self.label) == bool(self.selector):
            raise ValueError('expected a text, or { selector = "..." }')
        return self

    def __str__(self) -> str:
        return f"'{self.label}'" if self.label else f"selector '{self.selector}'"


OnePlace = Annotated[Place, BeforeValidator(_place)]


class Login(_Schema):
    """A form that logs an account in."""

    page: str = "/"
    """Path of the page with the form, below the address of the site."""
    name: OnePlace
    """Field of the account's name."""
    password: OnePlace
    """Field of the password."""
    button: OnePlace
    """Button that sends the form."""
    shows: OnePlace
    """Text or element that a page shows only after the log-in, such as `Sign out`."""

    @field_validator("page")
    @classmethod
    def _is_a_path(cls, value: str) -> str:
        return _path(value)


def _password(value: object) -> object:
    if isinstance(value, str):
        raise ValueError(
            "no password stands in this file; give the name of an environment variable, "
            '{ env = "NAME" }, or a file that only its owner may read, { file = "PATH" }'
        )
    return value


class Password(_Schema):
    """Where a password is: in an environment variable, or in a file."""

    env: str = Field(default="", pattern="^[A-Za-z_][A-Za-z0-9_]*$|^$")
    file: str = ""

    @model_validator(mode="after")
    def _is_one(self) -> "Password":
        if bool(self.env) == bool(self.file):
            raise ValueError('expected { env = "NAME" } or { file = "PATH" }')
        return self


class Account(_Schema):
    """An account: a name and a password for the form, or a stored log-in."""

    name: str = ""
    """Name to type; empty stands for the account's key in the file."""
    password: Annotated[Password, BeforeValidator(_password)] | None = None
    storage_state: str = ""
    """File of a stored log-in (Playwright's storage state), which only its owner may read."""

    @model_validator(mode="after")
    def _is_one(self) -> "Account":
        if (self.password is None) == (not self.storage_state):
            raise ValueError("expected either a password or a storage_state")
        return self


def _reset(value: object) -> object:
    if value == "restart":
        return {"restart": True}
    if isinstance(value, str):
        raise ValueError(
            'expected "restart", a command such as ["python", "reset.py"], { get = "/path" } or '
            '{ post = "/path" }'
        )
    return {"command": value} if isinstance(value, list | tuple) else value


class Variable(_Schema):
    """A value that does not stand in the file: the name of its environment variable."""

    env: str = Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$")


class Reset(_Schema):
    """What puts a site into its first state before a task.

    In the file, `"restart"` stands for `{ restart = true }`, and a list for a command.
    """

    restart: bool = False
    """End the site and start it again."""
    command: Command | None = None
    """Command to run; an exit code other than 0 is an error."""
    get: str = ""
    """Path to request with GET."""
    post: str = ""
    """Path to request with POST."""
    form: dict[Word, str | Variable] = {}
    """Fields of the POST; without them it is empty."""

    @field_validator("get", "post")
    @classmethod
    def _is_a_path(cls, value: str) -> str:
        return _path(value)

    @model_validator(mode="after")
    def _is_one(self) -> "Reset":
        if sum(map(bool, (self.restart, self.command, self.get, self.post))) != 1:
            raise ValueError("expected one of restart, command, get and post")
        if self.form and not self.post:
            raise ValueError("`form` belongs to a `post`")
        return self


def _address(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    name = Variable.model_validate(value).env
    if not os.environ.get(name):
        raise ValueError(f"the environment variable {name} is not set; it names the address")
    return os.environ[name]


class Site(_Schema):
    """One site."""

    address: Annotated[str, BeforeValidator(_address)]
    """Address, where placeholders lead. With `{port}` in it, every worker starts a site of its own
    on a free port, and the agent sees `http://NAME.localhost`. In the file, `{ env = "NAME" }`
    stands for the value of an environment variable."""
    placeholder: str = Field(default="", pattern="^__[A-Z]+__$|^$")
    """Placeholder in tasks; empty stands for the site's name, as `__WIKI__`."""
    start: Command | None = None
    """Command that serves the site until it is ended; None: the site runs already."""
    environment: dict[Word, str] = {}
    """Environment variables of the commands, beside those of agentkv."""
    ready_s: float = Field(default=60.0, gt=0, le=3600)
    """Maximum seconds until the address answers after a start, and for a reset."""
    reset: Annotated[Reset, BeforeValidator(_reset)] | None = None
    """What is done before each task; None: nothing."""
    read_only: bool = False
    """No task changes the site, so it needs no reset."""
    volatile: tuple[Pattern, ...] = ()
    """Regular expressions for what differs on a start page each time, such as a clock;
    `agentkv tasks check` ignores it."""
    login: Login | None = None
    accounts: dict[Word, Account] = {}
    """Accounts by key; tasks begin with the first, or with the one they name."""
    admin: Account | None = None
    """Account of Magento's admin interface, which some page checks of VisualWebArena ask."""

    @field_validator("address")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        plain = value.replace(PORT, "1")
        parts = urlsplit(plain)
        if not is_web_address(plain) or "@" in parts.netloc or parts.query or parts.fragment:
            raise ValueError('expected an address such as "http://127.0.0.1:8123"')
        if PORT in value and (parts.scheme != "http" or value.count(PORT) > 1):
            raise ValueError('expected {port} once, as in "http://127.0.0.1:{port}"')
        if PORT in value and not re.match(r"^http://[^/:]+:\{port\}(/|$)", value):
            raise ValueError('expected {port} behind the host, as in "http://127.0.0.1:{port}"')
        return value.rstrip("/")

    @model_validator(mode="after")
    def _fits_together(self) -> "Site":
        if PORT in self.address and self.start is None:
            raise ValueError("an address with {port} needs a `start` that serves on that port")
        written = [*(self.start or ()), *self.environment.values()]
        if self.reset is not None:
            written += self.reset.command or ()
        if PORT not in self.address and any(PORT in text for text in written):
            raise ValueError("{port} stands for a free port, which the address must name as well")
        if self.reset is not None and self.reset.restart and self.start is None:
            raise ValueError('reset = "restart" needs a `start`')
        if self.reset is not None and self.read_only:
            raise ValueError("a read_only site needs no `reset`; remove one of them")
        if self.admin is not None and self.admin.password is None:
            raise ValueError("`admin` needs a name and a password")
        typed = [key for key, account in self.accounts.items() if account.password is not None]
        if typed and self.login is None:
            raise ValueError(f"account {typed[0]} has a password, and the site has no [login]")
        return self

    @property
    def is_copied(self) -> bool:
        """True if every worker has a site of its own, on a free port."""
        return PORT in self.address

    @property
    def is_changed(self) -> bool:
        """True if agentkv starts or resets the site, so that two episodes at a time disturb each
        other unless the site is copied."""
        return self.start is not None or self.reset is not None


class _Written(_Schema):
    tasks: str
    settle_s: float = Field(default=0.0, ge=0, le=60)
    sites: dict[str, Site] = Field(min_length=1)

    @field_validator("sites")
    @classmethod
    def _have_names(cls, value: dict[str, Site]) -> dict[str, Site]:
        for name in value:
            if not _SITE_NAME.fullmatch(name):
                raise ValueError(
                    f"'{name}' is no name of a site; expected small letters, digits and hyphens"
                )
        found = [_placeholder(name, site) for name, site in value.items()]
        if twice := sorted({each for each in found if found.count(each) > 1}):
            raise ValueError(f"two sites have {twice[0]}; give one a `placeholder` of its own")
        return value


@dataclass(frozen=True, slots=True)
class SiteFile:
    """What a file of sites says."""

    path: Path
    tasks: str
    """Task file, or folder of task files, from the folder of the file; or a suite of
    VisualWebArena, `NAME:FILE`."""
    settle_s: float
    """Seconds to wait after a page check has opened a page."""
    sites: Mapping[str, Site]

    @property
    def folder(self) -> Path:
        """Folder of the file, where commands run and paths begin."""
        return self.path.parent

    @property
    def placeholders(self) -> dict[str, str]:
        """Placeholder to the address that the agent sees."""
        return {
            _placeholder(name, site): self.public_address(name) for name, site in self.sites.items()
        }

    def public_address(self, name: str) -> str:
        """Return the address of a site that the agent sees; it is the same in every worker."""
        site = self.sites[name]
        if not site.is_copied:
            return site.address
        return f"http://{name}.localhost{urlsplit(site.address.replace(PORT, '1')).path}"

    @property
    def is_shared(self) -> bool:
        """True if only one episode can be played at a time."""
        return any(site.is_changed and not site.is_copied for site in self.sites.values())

    def password(self, account: Account) -> str:
        """Return the password of an account.

        Raises:
            SiteFileError: the variable is not set, or the password is empty.
            PrivateFileError: a ValueError; the file cannot be read, or others may read it.
        """
        assert account.password is not None, "the account has a password"
        if name := account.password.env:
            return self._variable(name)
        path = self.folder / account.password.file
        found = read_private(path, most_bytes=_MAX_PASSWORD_BYTES).rstrip("\r\n")
        if not found:
            raise SiteFileError(f"{path}: is empty; expected a password")
        return found

    def form(self, reset: Reset) -> dict[str, str]:
        """Return the fields of a reset's POST.

        Raises:
            SiteFileError: an environment variable is not set.
        """
        return {
            key: field if isinstance(field, str) else self._variable(field.env)
            for key, field in reset.form.items()
        }

    def tokens(self) -> list[str]:
        """Return the values of environment variables that resets send.

        Raises:
            SiteFileError: an environment variable is not set.
        """
        return [
            self._variable(field.env)
            for site in self.sites.values()
            if site.reset is not None
            for field in site.reset.form.values()
            if not isinstance(field, str)
        ]

    def _variable(self, name: str) -> str:
        found = os.environ.get(name, "")
        if not found:
            raise SiteFileError(f"{self.path}: the environment variable {name} is not set")
        return found

    def passwords(self) -> dict[tuple[str, str], str]:
        """Return the password of each account that has one, by site and key.

        Raises:
            SiteFileError: see `password`.
            PrivateFileError: see `password`.
        """
        return {
            (name, key): self.password(account)
            for name, site in self.sites.items()
            for key, account in site.accounts.items()
            if account.password is not None
        }

    @property
    def secret_names(self) -> dict[str, tuple[str, str]]:
        """Site and key of each account with a password, by the names under which an agent types it.

        `<secret:SITE.ACCOUNT>` is one name, and `<secret:ACCOUNT>` another if no other site has
        such an account. An account whose name has other characters than a secret's has none.
        """
        places = [
            (name, key)
            for name, site in self.sites.items()
            for key, account in site.accounts.items()
            if account.password is not None
        ]
        keys = Counter(key for _, key in places)
        names = {key: (name, key) for name, key in places if keys[key] == 1}
        names |= {f"{name}.{key}": (name, key) for name, key in places}
        return {name: place for name, place in names.items() if is_name(name)}

    def named_secrets(self, passwords: Mapping[tuple[str, str], str]) -> dict[str, Secret]:
        """Return `passwords` as secrets that an agent may type on their own site, by name."""
        return {
            name: Secret(
                passwords[place],
                [urlsplit(self.public_address(place[0])).netloc.rpartition("@")[2]],
            )
            for name, place in self.secret_names.items()
            if passwords.get(place, "").strip()
        }

    def require_secrets(self, task: Task) -> None:
        """Check that `task` names only secrets that the file has.

        Raises:
            TaskError: it names another.
        """
        known = self.secret_names
        for name in names_in(task.intent):
            if name not in known:
                listed = ", ".join(map(placeholder, known)) or "none"
                raise TaskError(
                    f"task {task.task_id}: intent: {self.path.name} has no account for "
                    f"{placeholder(name)}; known: {listed}"
                )

    def unreset(self, tasks: Sequence[Task]) -> list[str]:
        """Return the sites that keep what an episode of `tasks` changes.

        These are the sites without a `reset`, except for those that are `read_only` while no task
        on them has `require_reset`.
        """
        changed = {name for task in tasks if task.require_reset for name in self.sites_of(task)}
        return [
            name
            for name, site in self.sites.items()
            if site.reset is None and (not site.read_only or name in changed)
        ]

    def sites_of(self, task: Task) -> dict[str, Site]:
        """Return the sites that `task` names, by their names or by their placeholders."""
        return {
            name: site
            for name, site in self.sites.items()
            if {name, _placeholder(name, site).strip("_").lower()} & set(task.sites)
        }

    def accounts_of(self, task: Task) -> list[tuple[str, str]]:
        """Return the site and the key of each account that `task` begins with.

        A task with `require_login` or `storage_state` begins logged in to all its sites:
        with the account that `storage_state` names, else with the first.

        Raises:
            TaskError: none of the task's sites has an account, or none has the one it names.
        """
        if not task.require_login and task.storage_state is None:
            return []
        mine = self.sites_of(task)
        keys = {key for site in mine.values() for key in site.accounts}
        named = task.storage_state or ""
        if named and named not in keys and not named.endswith(".json"):
            raise TaskError(
                f"task {task.task_id}: storage_state: '{named}' is no account of its sites; known: "
                f"{', '.join(sorted(keys)) or 'none'}"
            )
        if task.require_login and not keys:
            raise TaskError(
                f"task {task.task_id}: require_login: no site of {', '.join(task.sites)} has an "
                f"account in {self.path.name}"
            )
        return [
            (name, named if named in site.accounts else next(iter(site.accounts)))
            for name, site in mine.items()
            if site.accounts
        ]


def read_site_file(path: Path, *, only: Collection[str] | None = None) -> SiteFile:
    """Read a file of sites.

    Args:
        only: names of sites; the others are left out unread. None: all.

    Raises:
        SettingsError: a ValueError; the file cannot be read or is not TOML.
        SiteFileError: a key is unknown, missing or wrong.
    """
    try:
        content = read_toml(path)
        if only is not None:
            content["sites"] = {name: content["sites"][name] for name in only}
        written = _Written(**content)
    except ValidationError as error:
        raise SiteFileError(f"{path}: {_explain(error)}") from None
    return SiteFile(path, written.tasks, written.settle_s, written.sites)


def _explain(error: ValidationError) -> str:
    problems = []
    for problem in error.errors(include_input=False, include_url=False, include_context=False):
        where = ".".join(str(part) for part in problem["loc"]) or "the file"
        if problem["type"] == "extra_forbidden":
            schema = _schema_at(problem["loc"])
            known = f"; known: {', '.join(schema.model_fields)}" if schema else ""
            problems.append(f"unknown key {where}{known}")
        else:
            problems.append(f"{where}: {problem['msg'].removeprefix('Value error, ')}")
    return "; ".join(problems)


def _schema_at(place: tuple[Any, ...]) -> type[BaseModel] | None:
    """Return the schema whose key `place` is."""
    match place:
        case (_,):
            return _Written
        case ("sites", _, _):
            return Site
        case ("sites", _, "login", _):
            return Login
        case ("sites", _, "reset", _):
            return Reset
        case ("sites", _, "accounts", _, _) | ("sites", _, "admin", _):
            return Account
        case ("sites", _, "accounts", _, "password", _):
            return Password
    return None


def _placeholder(name: str, site: Site) -> str:
    found = site.placeholder or f"__{re.sub('[^a-z]', '', name).upper()}__"
    assert PLACEHOLDER.fullmatch(found), "a name begins with a letter"
    return found


def _path(value: str) -> str:
    if value and (not value.startswith("/") or value.startswith("//")):
        raise ValueError('expected a path such as "/login"')
    return value
