"""Gemma 3, its text part."""

from agentkv.cache.hf.family import Family

FAMILY = Family(added="post_attention_layernorm")
