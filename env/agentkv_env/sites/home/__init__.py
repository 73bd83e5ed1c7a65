"""The home page: the door to the four sites."""

from agentkv_env.sites.home.pages import SITE

__all__ = ["SITE"]
