"""The embedded world: a shop, classifieds, a forum, a wiki and a home page, served on loopback."""

from agentkv_env.sites.server import PortBusy, Server
from agentkv_env.sites.world import DEFAULT_SEED, World

__all__ = ["DEFAULT_SEED", "PortBusy", "Server", "World"]
