"""The classifieds: second-hand listings, their sellers, and messages between users."""

from agentkv_env.sites.classifieds.pages import SITE

__all__ = ["SITE"]
