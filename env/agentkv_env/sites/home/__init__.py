"""The home page: local news, and links to the other sites."""

from agentkv_env.sites.home.pages import SITE

__all__ = ["SITE"]
