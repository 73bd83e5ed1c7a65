"""The shop."""

from agentkv_env.sites.shop.pages import SITE

__all__ = ["SITE"]
