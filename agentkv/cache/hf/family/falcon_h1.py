"""Falcon-H1: a state space and attention in each layer."""

from agentkv.cache.hf.family import Family

FAMILY = Family(added="")
