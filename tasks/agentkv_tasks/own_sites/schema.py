"""What a file of sites may say: the schema of its tables.

The file never holds a password. It names an environment variable, or a file that only its owner may
read. Messages about a wrong file quote none of its values, because a password may stand there by
mistake.
"""

import os
import re
from collections.abc import Mapping
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

from agentkv_env.hosts import is_web_address
from agentkv_tasks.addresses import PLACEHOLDER

PORT = "{port}"
"""Stands for a free port in an address and in commands."""
PYTHON = "{python}"
"""Stands for the Python that runs agentkv, in commands."""

_SITE_NAME = re.compile("[a-z][a-z0-9-]*")


class _SiteSchema(BaseModel):
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


class Place(_SiteSchema):
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


class Login(_SiteSchema):
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


class Password(_SiteSchema):
    """Where a password is: in an environment variable, or in a file."""

    env: str = Field(default="", pattern="^[A-Za-z_][A-Za-z0-9_]*$|^$")
    file: str = ""

    @model_validator(mode="after")
    def _is_one(self) -> "Password":
        if bool(self.env) == bool(self.file):
            raise ValueError('expected { env = "NAME" } or { file = "PATH" }')
        return self


class Account(_SiteSchema):
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


class Variable(_SiteSchema):
    """A value that does not stand in the file: the name of its environment variable."""

    env: str = Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$")


class Reset(_SiteSchema):
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


class OwnSite(_SiteSchema):
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
            raise ValueError('expected {port} after the host, as in "http://127.0.0.1:{port}"')
        return value.rstrip("/")

    @model_validator(mode="after")
    def _fits_together(self) -> "OwnSite":
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
    def is_exclusive(self) -> bool:
        """True if two episodes at a time would disturb each other."""
        return not self.is_copied and not self.read_only

    @property
    def runs_once(self) -> bool:
        """True if agentkv starts the site at an address where it can run once only."""
        return not self.is_copied and self.start is not None


class Written(_SiteSchema):
    """The whole file."""

    tasks: str
    settle_s: float = Field(default=0.0, ge=0, le=60)
    sites: dict[str, OwnSite] = Field(min_length=1)

    @field_validator("sites")
    @classmethod
    def _have_names(cls, value: dict[str, OwnSite]) -> dict[str, OwnSite]:
        for name in value:
            if not _SITE_NAME.fullmatch(name):
                raise ValueError(
                    f"'{name}' is no name of a site; expected small letters, digits and hyphens"
                )
        found = [placeholder_of(name, site) for name, site in value.items()]
        if twice := sorted({each for each in found if found.count(each) > 1}):
            raise ValueError(f"two sites have {twice[0]}; give one a `placeholder` of its own")
        return value


def explain(error: ValidationError) -> str:
    """Say which keys of a file are unknown, missing or wrong, without their values."""
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
            return Written
        case ("sites", _, _):
            return OwnSite
        case ("sites", _, "login", _):
            return Login
        case ("sites", _, "reset", _):
            return Reset
        case ("sites", _, "accounts", _, _) | ("sites", _, "admin", _):
            return Account
        case ("sites", _, "accounts", _, "password", _) | ("sites", _, "admin", "password", _):
            return Password
    return None


def placeholder_of(name: str, site: OwnSite) -> str:
    """Return the placeholder of a site in tasks: its own, or one made of its name."""
    found = site.placeholder or f"__{re.sub('[^a-z]', '', name).upper()}__"
    assert PLACEHOLDER.fullmatch(found), "a name begins with a letter"
    return found


def _path(value: str) -> str:
    if value and (not value.startswith("/") or value.startswith("//")):
        raise ValueError('expected a path such as "/login"')
    return value
