"""`agentkv act`: pursue one goal from one page, outside any suite."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from agentkv.build import check_model, load_run_model, make_acting, make_agent, resolved_parameters
from agentkv.files import OutputPathError, require_folder
from agentkv.progress import Listener, Progress
from agentkv.settings import SCRIPTED
from agentkv.trace import Episode, Step, TraceWriter
from agentkv_env.actions import Action
from agentkv_env.attached import attached_page, other_pages, require_loopback
from agentkv_env.browser import Browser
from agentkv_env.hosts import host_of, is_web_address
from agentkv_env.named_secrets import NamedSecrets, Secret
from agentkv_env.ocr import Ocr, default_cache
from agentkv_env.page import Page
from agentkv_env.page_dialogs import Dialogs
from agentkv_env.session import Session
from agentkv_env.sites.server import Server
from agentkv_env.sites.world import World
from agentkv_tasks.settings import RunSettings

TRACE = "trace.jsonl"
"""Name of the trace in the folder of `agentkv act --out`."""

Verdict = Literal["yes", "no", "end"]
"""Whether an action is carried out, or the episode ends before it."""


class UrlError(ValueError):
    """An address that is not a web page."""


@dataclass(frozen=True, slots=True)
class ActPlace:
    """Where the agent works.

    Raises:
        UrlError: the start page is not a web address.
        CannotAttach: a ValueError; `endpoint` is no port of this machine.
    """

    url: str | None
    """The start page; None: what the tab at `endpoint` shows."""
    endpoint: str | None = None
    """Debugging port of a running Chrome; None: a browser of ours."""
    is_visible: bool = False
    """Show the window of our browser."""
    secrets: Mapping[str, Secret] | None = None
    """Secrets that the agent may type on their hosts, by name."""
    dialogs: Dialogs = "ask"
    """As in `Browser.session`."""
    hosts: tuple[str, ...] = ()
    """The only hosts that pages may reach; empty for that of the start page."""

    def __post_init__(self) -> None:
        if self.url is not None and not is_web_address(self.url):
            raise UrlError(f"'{self.url}' is not a web address; expected http://host/...")
        if self.endpoint is not None:
            require_loopback(self.endpoint)

    @property
    def is_embedded(self) -> bool:
        """True if the start page belongs to the embedded sites, which are then started."""
        if self.url is None or self.endpoint is not None:
            return False
        return host_of(self.url).endswith(".localhost") and urlsplit(self.url).port is None


def run_goal(
    settings: RunSettings,
    place: ActPlace,
    goal: str,
    *,
    max_steps: int,
    on_step: Callable[[Step], None],
    out: Path | None = None,
    judge: Callable[[Page, Action], Verdict] | None = None,
    on_progress: Listener | None = None,
) -> Episode:
    """Run the agent with `goal` under the first policy of `settings`.

    The agent stays on the host of its start page. If that belongs to the embedded sites, as
    http://shop.localhost/ does, they are started.

    Args:
        out: folder for the trace and a screenshot of each page; None writes nothing.
        judge: asked before each action that may change something; None: all are carried out.
        on_progress: told what is being done.

    Raises:
        OutputPathError: a ValueError; `out` cannot be written to, or has a trace already.
        ValueError: the policy or the model is unknown, or the goal names an unknown secret.
        BrowserMissing: no browser was found, or none that can show its window.
        CannotAttach: a ValueError; no browser of the user's can be attached to.
        ActionFailed: the page did not load.
    """
    url = place.url
    if out is not None:
        require_folder(out)
        if (out / TRACE).exists():
            raise OutputPathError(f"--out {out} has a {TRACE} already; give another folder")
    NamedSecrets(place.secrets).require(goal)
    check_model(settings)
    policy = settings.policies[0]
    budget = resolved_parameters(settings, policy)["budget"]
    settings = settings.model_copy(update={"budget": budget})
    with contextlib.ExitStack() as stack:
        # the browser first: whatever is wrong with it is known before the model takes its time
        session = stack.enter_context(open_session(settings, place))
        if on_progress is not None and settings.model not in SCRIPTED:
            on_progress(Progress("loading", name=settings.model))
        local = load_run_model(settings, on_progress)
        model = None if local is None else make_acting(settings, policy=policy, model=local)
        agent = make_agent(settings, model=model)
        agent.on_progress = on_progress
        if url is not None and session.page.url != url:  # a tab of the user's may show it
            session.open(url)
        trace = None
        if out is not None:
            head = {"goal": goal, "url": session.page.url if url is None else url}
            head |= {"model": settings.model, "policy": policy.row_name}
            trace = stack.enter_context(TraceWriter(out / TRACE, head=head))

        def on_each(step: Step) -> None:
            if trace is not None:
                trace.step(step)
            on_step(step)

        opened = stack.enter_context(agent.open(session))

        def approve(page: Page, action: Action) -> bool:
            assert judge is not None
            verdict = judge(page, action)
            if verdict == "end":
                opened.cancel()
            return verdict == "yes"

        episode = opened.do(
            goal,
            max_steps=max_steps,
            timeout_s=settings.timeout_s,
            on_step=on_each,
            approve=None if judge is None else approve,
            screenshots=None if out is None else out / "screenshots",
        )
        if trace is not None:
            trace.end(episode)
        return episode


@contextlib.contextmanager
def open_session(settings: RunSettings, place: ActPlace) -> Iterator[Session]:
    """Open a session in a browser of ours, or on a tab of the user's.

    Raises:
        BrowserMissing: no browser was found, or none that can show its window.
        CannotAttach: a ValueError; no browser of the user's can be attached to.
    """
    url, ocr = place.url, Ocr.find(default_cache())
    hosts = place.hosts or None
    if url is not None and hosts is None:
        hosts = (urlsplit(url).netloc.rpartition("@")[2],)
    with contextlib.ExitStack() as stack:
        if place.endpoint is not None:
            page = stack.enter_context(attached_page(place.endpoint, url))
            yield stack.enter_context(
                Session.on(
                    page,
                    hosts=hosts,
                    ocr=ocr,
                    strict=settings.strict,
                    secrets=place.secrets,
                    dialogs=place.dialogs,
                    bystanders=other_pages(page),
                )
            )
            return
        assert url is not None and hosts is not None, "a browser of ours shows nothing yet"
        addresses: dict[str, str] = {}
        if place.is_embedded:
            server = stack.enter_context(Server(World(settings.world_seed)))
            hosts, addresses = place.hosts or server.hosts, server.addresses
        path = settings.browser_path
        browser = stack.enter_context(
            Browser.launch(executable=str(path) if path else None, is_visible=place.is_visible)
        )
        yield stack.enter_context(
            browser.session(
                hosts=hosts,
                addresses=addresses,
                ocr=ocr,
                strict=settings.strict,
                secrets=place.secrets,
                dialogs=place.dialogs,
            )
        )
