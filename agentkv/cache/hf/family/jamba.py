"""Jamba: state spaces beside attention."""

from agentkv.cache.hf.family import Family

FAMILY = Family()
