"""Qwen3.5 as a mixture of experts, its text part."""

from agentkv.cache.hf.family import Family

FAMILY = Family()
