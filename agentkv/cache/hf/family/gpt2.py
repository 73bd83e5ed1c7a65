"""GPT-2."""

from agentkv.cache.hf.family import Family

FAMILY = Family(layers="h", attention="attn", projection="c_proj", added="attn")
