"""Qwen3.5, its text part: linear attention beside full attention."""

from agentkv.cache.hf.family import Family

FAMILY = Family()
