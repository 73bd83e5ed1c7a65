"""The shop: products, cart, checkout, orders, reviews and services."""

from agentkv_env.sites.shop.pages import SITE

__all__ = ["SITE"]
