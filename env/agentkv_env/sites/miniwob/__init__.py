"""The pages of MiniWoB++, served from the installed package `miniwob`."""

from agentkv_env.sites.miniwob.package import MiniwobMissing, find_pages
from agentkv_env.sites.miniwob.pages import SITE

__all__ = ["SITE", "MiniwobMissing", "find_pages"]
