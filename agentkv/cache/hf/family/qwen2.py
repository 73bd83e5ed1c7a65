"""Qwen 2 and 2.5."""

from agentkv.cache.hf.family import Family

FAMILY = Family(compiled="Qwen2")
