"""The wiki: what is known of the world's places, people and makers."""

from agentkv_env.sites.wiki.pages import SITE

__all__ = ["SITE"]
