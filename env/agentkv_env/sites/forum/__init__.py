"""The forum: boards, threads, nested comments, votes."""

from agentkv_env.sites.forum.pages import SITE

__all__ = ["SITE"]
