"""Flows: what a solution does, without the names and values of its world."""

from collections.abc import Sequence
from itertools import chain

from starlette.routing import Match, Route

from agentkv_env.actions import Action, extract, parse
from agentkv_env.page import Page
from agentkv_env.sites.registry import SITES
from agentkv_env.sites.server import Server
from agentkv_tasks.task import Task
from agentkv_tasks.template import says
from tests.tasks.text_walk import walk

Flow = tuple[tuple[str, ...], ...]
"""Kinds of pages and, between them, the actions that lead from one to the next."""

_ROUTES = {site.name: [one for one in site.routes if isinstance(one, Route)] for site in SITES}
_FIELDS = frozenset({"textbox", "combobox"})
_UNSCORED = says(must_include=["."])
"""A check without scripts, because only a real browser scores some tasks."""


def flow_of(task: Task, server: Server) -> Flow:
    """Return the flow of the task's solution, from its first page to its last."""
    result = walk(task.model_copy(update={"eval": _UNSCORED}), server)
    actions = [parse(extract(reply)) for reply in result.replies]
    pages = zip(result.pages, actions, strict=True)
    return tuple(
        chain.from_iterable((kind_of(page), _act(action, page)) for page, action in pages)
    )[
        :-1  # every solution stops
    ]


def contains(flow: Sequence[object], part: Sequence[object]) -> bool:
    """Return whether `part` is a contiguous part of `flow`."""
    ends = range(len(part), len(flow) + 1)
    return any(flow[end - len(part) : end] == part for end in ends)


def kind_of(page: Page) -> tuple[str, ...]:
    """Return the site of a page and the pattern of its address, such as `/product/{number:int}`."""
    host, _, path = page.url.removeprefix("http://").partition("/")
    site = host.partition(".")[0]
    scope = {"type": "http", "path": "/" + path.partition("?")[0].partition("#")[0],
             "method": "GET", "root_path": ""}  # fmt: skip
    return site, next(
        route.path for route in _ROUTES[site] if route.matches(scope)[0] is not Match.NONE
    )


def _act(action: Action, page: Page) -> tuple[str, ...]:
    """Return the verb and the element: a field by its name, any other element by its role only.

    Names of links and buttons belong to a world as often as to a site. The next page tells what
    they do.
    """
    node = None if action.element_id is None else page.element(action.element_id)
    if node is None:
        return (action.kind,)
    return action.kind, node.role, node.name if node.role in _FIELDS else ""
