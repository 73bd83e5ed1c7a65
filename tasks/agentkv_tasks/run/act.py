"""`agentkv act`: pursue one goal from one page, outside any suite."""

import contextlib
from collections.abc import Callable
from urllib.parse import urlsplit

from agentkv.build import load_run_model, make_acting, make_agent, resolved_parameters
from agentkv.config import RunSettings
from agentkv.trace import Episode, Step
from agentkv_env.browser import Browser
from agentkv_env.hosts import host_of, is_web_address
from agentkv_env.ocr import Ocr, default_cache
from agentkv_env.sites.server import Server
from agentkv_env.sites.world import World


class UrlError(ValueError):
    """An address that is not a web page."""


def run_goal(
    settings: RunSettings,
    url: str,
    goal: str,
    *,
    max_steps: int,
    on_step: Callable[[Step], None],
) -> Episode:
    """Run the agent with `goal`, starting at `url`, under the first policy of `settings`.

    The agent stays on the host of `url`. If `url` belongs to the embedded sites, as
    http://shop.localhost/ does, they are started.

    Raises:
        UrlError: `url` is not a web address.
        ValueError: the policy or the model is unknown.
        BrowserMissing: no browser was found.
        ActionFailed: the page did not load.
    """
    if not is_web_address(url):
        raise UrlError(f"'{url}' is not a web address; expected http://host/...")
    host, port = host_of(url), urlsplit(url).port
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
            browser.session(hosts=hosts, addresses=addresses, ocr=Ocr.find(default_cache()))
        )
        session.open(url)
        return agent.run(
            session,
            goal,
            max_steps=max_steps,
            timeout_s=settings.timeout_s,
            on_step=on_step,
        )
