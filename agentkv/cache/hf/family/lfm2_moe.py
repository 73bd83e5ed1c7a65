"""LFM2, as a mixture of experts."""

from agentkv.cache.hf.family import Family

FAMILY = Family(projection="out_proj")
