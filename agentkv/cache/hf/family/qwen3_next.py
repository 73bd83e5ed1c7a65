"""Qwen3-Next: linear attention beside full attention."""

from agentkv.cache.hf.family import Family

FAMILY = Family()
