"""The five sites, in the order in which their tables are filled."""

from agentkv_env.sites.classifieds import SITE as CLASSIFIEDS
from agentkv_env.sites.forum import SITE as FORUM
from agentkv_env.sites.home import SITE as HOME
from agentkv_env.sites.shop import SITE as SHOP
from agentkv_env.sites.site import Site
from agentkv_env.sites.wiki import SITE as WIKI

SITES: tuple[Site, ...] = (HOME, SHOP, CLASSIFIEDS, FORUM, WIKI)
