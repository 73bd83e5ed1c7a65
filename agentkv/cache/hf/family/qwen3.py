"""Qwen 3."""

from agentkv.cache.hf.family import Family

FAMILY = Family(compiled="Qwen3")
