"""`agentkv act`: pursue one goal from one page, outside any suite."""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from agentkv.build import load_run_model, make_acting, make_agent, resolved_parameters
from agentkv.config import RunSettings
from agentkv.files import OutputPathError, require_folder
from agentkv.trace import Episode, Step, TraceWriter
from agentkv_env.browser import Browser
from agentkv_env.hosts import host_of, is_web_address
from agentkv_env.named_secrets import NamedSecrets, Secret
from agentkv_env.ocr import Ocr, default_cache
from agentkv_env.page_dialogs import Dialogs
from agentkv_env.sites.server import Server
from agentkv_env.sites.world import World

TRACE = "trace.jsonl"
"""Name of the trace in the folder of `agentkv act --out`."""


class UrlError(ValueError):
    """An address that is not a web page."""


def run_goal(
    settings: RunSettings,
    url: str,
    goal: str,
    *,
    max_steps: int,
    on_step: Callable[[Step], None],
    out: Path | None = None,
    secrets: Mapping[str, Secret] | None = None,
    dialogs: Dialogs = "ask",
) -> Episode:
    """Run the agent with `goal`, starting at `url`, under the first policy of `settings`.

    The agent stays on the host of `url`. If `url` belongs to the embedded sites, as
    http://shop.localhost/ does, they are started.

    Args:
        out: folder for the trace and a screenshot of each page; None writes nothing.
        secrets: secrets that the agent may type on their hosts, by name.
        dialogs: as in `Browser.session`.

    Raises:
        UrlError: `url` is not a web address.
        OutputPathError: a ValueError; `out` cannot be written to, or has a trace already.
        ValueError: the policy or the model is unknown, or the goal names an unknown secret.
        BrowserMissing: no browser was found.
        ActionFailed: the page did not load.
    """
    if not is_web_address(url):
        raise UrlError(f"'{url}' is not a web address; expected http://host/...")
    if out is not None:
        require_folder(out)
        if (out / TRACE).exists():
            raise OutputPathError(f"--out {out} has a {TRACE} already; give another folder")
    host, port = host_of(url), urlsplit(url).port
    NamedSecrets(secrets).require(goal)
    policy = settings.policies[0]
    budget = resolved_parameters(settings, policy)["budget"]
    settings = settings.model_copy(update={"budget": budget})
    with contextlib.ExitStack() as stack:
        hosts: tuple[str, ...] = (urlsplit(url).netloc.rpartition("@")[2],)
        addresses: dict[str, str] = {}
        if host.endswith(".localhost") and port is None:
            server = stack.enter_context(Server(World(settings.world_seed)))
            hosts, addresses = server.hosts, server.addresses
        local = load_run_model(settings)
        model = None if local is None else make_acting(settings, policy=policy, model=local)
        agent = make_agent(settings, model=model)
        path = settings.browser_path
        browser = stack.enter_context(Browser.launch(executable=str(path) if path else None))
        session = stack.enter_context(
            browser.session(
                hosts=hosts,
                addresses=addresses,
                ocr=Ocr.find(default_cache()),
                strict=settings.strict,
                secrets=secrets,
                dialogs=dialogs,
            )
        )
        session.open(url)
        trace = None
        if out is not None:
            head = {"goal": goal, "url": url, "model": settings.model, "policy": policy.row_name}
            trace = stack.enter_context(TraceWriter(out / TRACE, head=head))

        def on_each(step: Step) -> None:
            if trace is not None:
                trace.step(step)
            on_step(step)

        episode = agent.run(
            session,
            goal,
            max_steps=max_steps,
            timeout_s=settings.timeout_s,
            on_step=on_each,
            screenshots=None if out is None else out / "screenshots",
        )
        if trace is not None:
            trace.end(episode)
        return episode
