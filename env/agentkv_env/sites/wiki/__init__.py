"""The wiki: articles about the world's places, people and companies."""

from agentkv_env.sites.wiki.pages import SITE

__all__ = ["SITE"]
