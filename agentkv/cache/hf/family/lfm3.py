"""LFM3: short convolutions beside attention, some of it windowed."""

from agentkv.cache.hf.family import Family

FAMILY = Family()
