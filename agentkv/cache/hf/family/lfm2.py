"""LFM2: short convolutions beside attention."""

from agentkv.cache.hf.family import Family

FAMILY = Family(projection="out_proj")
