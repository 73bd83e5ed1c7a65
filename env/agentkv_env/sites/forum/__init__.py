"""The forum."""

from agentkv_env.sites.forum.pages import SITE

__all__ = ["SITE"]
