"""OLMo hybrid: linear attention beside full attention."""

from agentkv.cache.hf.family import Family

FAMILY = Family(added="post_attention_layernorm")
