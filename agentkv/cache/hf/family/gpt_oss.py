"""gpt-oss."""

from agentkv.cache.hf.family import Family

FAMILY = Family()
