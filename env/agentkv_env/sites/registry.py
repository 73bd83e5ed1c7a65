"""The sites of the embedded world; to add a site, import its `SITE` and add it to `SITES`."""

from typing import Any

from agentkv_env.sites.classifieds import SITE as CLASSIFIEDS
from agentkv_env.sites.forum import SITE as FORUM
from agentkv_env.sites.home import SITE as HOME
from agentkv_env.sites.shop import SITE as SHOP
from agentkv_env.sites.site import Site
from agentkv_env.sites.wiki import SITE as WIKI

SITES: tuple[Site[Any], ...] = (HOME, SHOP, CLASSIFIEDS, FORUM, WIKI)
"""Sites generate content, fill tables and list hosts in this order."""
