"""Nemotron-H: state spaces, attention and perceptrons, a layer each."""

from agentkv.cache.hf.family import Family

FAMILY = Family(attention="mixer", added="mixer")
