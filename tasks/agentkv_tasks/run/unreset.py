"""Sites that nothing resets between episodes, which several policies must not share unnoticed."""

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from agentkv_tasks.addresses import Addresses
from agentkv_tasks.own_sites.site_file import SiteFile
from agentkv_tasks.task import Task


class UnresetError(ValueError):
    """A run in which a task would find what earlier episodes of it left; the message says how to
    add a reset."""


def unreset_sites(
    tasks: Sequence[Task],
    *,
    own: SiteFile | None,
    elsewhere: Mapping[str, str],
    addresses: Addresses,
) -> tuple[str, ...]:
    """Return the sites of `tasks` that keep what an episode changes, in alphabetical order.

    Embedded sites are none of them. A site of the user's own is named as in its file, a site that
    runs elsewhere by its placeholder, and the host of any other start page by its address.

    Args:
        own: file of the user's own sites, if the suite has one.
        elsewhere: placeholder to address of sites that run elsewhere.
        addresses: addresses of all known sites.
    """
    found = set(own.unreset(tasks)) if own is not None else set()
    known = {_host(address) for address in addresses.placeholders.values()}
    for task in tasks:
        used = task.model_dump_json(include={"start_url", "eval"})
        found.update(placeholder for placeholder in elsewhere if placeholder in used)
        hosts = {_host(addresses.fill(url)) for url in task.start_urls}
        found.update(hosts - known)
    return tuple(sorted(found))


def refuse_unreset(unreset: Sequence[str], *, own: SiteFile | None, num_plays: int) -> None:
    """Refuse to play each task several times on sites that nothing resets.

    Args:
        num_plays: episodes of each task.

    Raises:
        UnresetError: there is such a site, and more than one play.
    """
    if not unreset or num_plays == 1:
        return
    if own is None:
        how = (
            "write a file of sites with a `reset` (`agentkv tasks new` writes a first one), or "
            "`read_only = true` if no task changes anything"
        )
    else:
        how = (
            f'give it a `reset` in {own.path}, such as "restart" or {{ post = "/reset" }}, or '
            "`read_only = true` if no task changes anything and none has require_reset"
        )
    raise UnresetError(
        f"each task is played {num_plays} times, and nothing resets {', '.join(unreset)} in "
        f"between, so that later policies find what earlier ones left: {how}; or accept it with "
        "--allow-unreset, and every table will carry a warning"
    )


def _host(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname or ""
