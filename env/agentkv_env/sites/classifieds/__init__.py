"""The classifieds: second-hand things, their sellers, and letters between them."""

from agentkv_env.sites.classifieds.pages import SITE

__all__ = ["SITE"]
