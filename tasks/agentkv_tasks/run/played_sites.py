"""The sites of a run: the embedded ones and those that run elsewhere, or the user's own."""

from collections.abc import Mapping
from types import TracebackType
from typing import Protocol, Self

from playwright.sync_api import StorageState

from agentkv_env.browser import Browser
from agentkv_env.masking import Secrets
from agentkv_env.named_secrets import Secret
from agentkv_env.sites.server import Server
from agentkv_env.sites.world import World
from agentkv_tasks.addresses import Addresses
from agentkv_tasks.evaluate import MagentoAdmin
from agentkv_tasks.own_sites.serving import OwnServer
from agentkv_tasks.run.plan import Plan
from agentkv_tasks.sites import sites_for
from agentkv_tasks.task import Task

_OUTSIDE_SETTLE_S = 3.0  # VisualWebArena waits as long before it reads a page that a check opened


class PlayedSites(Protocol):
    """Sites that tasks are played on; a context manager that starts and ends them."""

    addresses: Addresses
    """Addresses of all sites, once they are started."""
    secrets: Secrets
    """Texts to mask in everything that is written about an episode."""
    admin: MagentoAdmin | None
    """Admin interface of a shop, for the checks that ask it."""
    named_secrets: Mapping[str, Secret]
    """Secrets that the agent may type by name."""

    def begin(self, task: Task, browser: Browser) -> StorageState | None:
        """Put the sites into their first state, and return the log-in with which `task` begins.

        Raises:
            SiteError: a ValueError; a site cannot be reset.
            SignInError: a ValueError; an account cannot be logged in.
        """
        ...

    def ended(self) -> str:
        """Return why a site that was started no longer answers; empty if all do."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class EmbeddedSites:
    """The embedded sites of the plan's world, beside sites that run elsewhere."""

    def __init__(self, plan: Plan) -> None:
        suite = plan.suite
        self.admin: MagentoAdmin | None = None
        self._elsewhere = plan.sites
        self._server = Server(World(suite.world_seed, sites_for(suite.tasks)))
        self.addresses = Addresses({}, {})
        self.secrets = Secrets()
        self.named_secrets: Mapping[str, Secret] = {}
        for address in plan.sites.values():
            self.secrets.add_credentials(address)

    def begin(self, task: Task, browser: Browser) -> None:
        """Restore the world; nobody is logged in."""
        self._server.reset()

    def ended(self) -> str:
        """Return an empty text: the embedded sites run in this process."""
        return ""

    def __enter__(self) -> Self:
        self._server.start()
        self.addresses = Addresses(
            {**self._server.placeholders, **self._elsewhere},
            self._server.addresses,
            settle_s=_OUTSIDE_SETTLE_S if self._elsewhere else 0.0,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.stop()


def sites_of(plan: Plan) -> PlayedSites:
    """Return the sites of a run, not yet started.

    Raises:
        SiteFileError: a ValueError; a password of the user's own sites is missing.
    """
    own = plan.suite.sites
    return EmbeddedSites(plan) if own is None else OwnServer(own, own.passwords())
