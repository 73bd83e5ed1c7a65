"""Llama, and models of its architecture."""

from agentkv.cache.hf.family import Family

FAMILY = Family(compiled="Llama")
