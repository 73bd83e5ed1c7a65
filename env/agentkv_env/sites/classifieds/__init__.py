"""The classifieds."""

from agentkv_env.sites.classifieds.pages import SITE

__all__ = ["SITE"]
