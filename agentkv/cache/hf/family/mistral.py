"""Mistral."""

from agentkv.cache.hf.family import Family

FAMILY = Family(compiled="Mistral")
