"""A file of sites: where they are, who logs in to them, what resets them, and their tasks."""

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import ValidationError

from agentkv.files import read_private
from agentkv.settings import read_toml
from agentkv_env.named_secrets import Secret, is_name, names_in, placeholder
from agentkv_tasks.own_sites.schema import (
    PORT,
    Account,
    OwnSite,
    Reset,
    Written,
    explain,
    placeholder_of,
)
from agentkv_tasks.task import Task, TaskError

_MAX_PASSWORD_BYTES = 4096


class SiteFileError(ValueError):
    """A file of sites with a mistake; the message names the file and the key."""


@dataclass(frozen=True, slots=True)
class SiteFile:
    """What a file of sites says."""

    path: Path
    tasks: str
    """Task file, or folder of task files, from the folder of the file; or a suite of
    VisualWebArena, `NAME:FILE`."""
    settle_s: float
    """Seconds to wait after a page check has opened a page."""
    sites: Mapping[str, OwnSite]

    @property
    def folder(self) -> Path:
        """Folder of the file, where commands run and paths begin."""
        return self.path.parent

    @property
    def placeholders(self) -> dict[str, str]:
        """Placeholder to the address that the agent sees."""
        return {
            placeholder_of(name, site): self.public_address(name)
            for name, site in self.sites.items()
        }

    def public_address(self, name: str) -> str:
        """Return the address of a site that the agent sees; it is the same in every worker."""
        site = self.sites[name]
        if not site.is_copied:
            return site.address
        return f"http://{name}.localhost{urlsplit(site.address.replace(PORT, '1')).path}"

    @property
    def exclusive(self) -> frozenset[str]:
        """Sites that serve one episode at a time."""
        return frozenset(name for name, site in self.sites.items() if site.is_exclusive)

    def reserved_by(self, task: Task) -> frozenset[str]:
        """Return the exclusive sites that an episode of `task` reserves: those that its `sites`,
        start pages and checks name, or all if they name no site."""
        text = task.model_dump_json(include={"start_url", "eval"})
        named = self.sites_of(task).keys() | {
            name for name, site in self.sites.items() if placeholder_of(name, site) in text
        }
        return self.exclusive & named if named else self.exclusive

    def left_to_others(self, task: Task) -> frozenset[str]:
        """Return the exclusive sites that an episode of `task` does not reserve."""
        return self.exclusive - self.reserved_by(task)

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

    def sites_of(self, task: Task) -> dict[str, OwnSite]:
        """Return the sites that `task` names, by their names or by their placeholders."""
        return {
            name: site
            for name, site in self.sites.items()
            if {name, placeholder_of(name, site).strip("_").lower()} & set(task.sites)
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
        written = Written(**content)
    except ValidationError as error:
        raise SiteFileError(f"{path}: {explain(error)}") from None
    return SiteFile(path, written.tasks, written.settle_s, written.sites)
