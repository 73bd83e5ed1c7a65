"""Granite 4: state spaces beside attention, with a residual multiplier."""

from agentkv.cache.hf.family import Family

FAMILY = Family(added="")
