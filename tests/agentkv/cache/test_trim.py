"""Forwards return temporary memory to the system."""

import ctypes
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import agentkv

STATUS = Path("/proc/self/status")


def resident():
    lines = (line.split() for line in STATUS.read_text().splitlines())
    return next(int(line[1]) * 1024 for line in lines if line[0] == "VmRSS:")


@torch.no_grad()
def kept_beside():
    """Bytes that a process has resident only because they were in use before."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=64, num_hidden_layers=12,
        num_attention_heads=16, num_key_value_heads=2, head_dim=32,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    cache = agentkv.Cache.for_model(model, policy="conf-kv-int8", budget=128, chunk=512)
    cache.feed(model, torch.randint(96, (1, 1024)))
    before = resident()
    ctypes.CDLL(None).malloc_trim(0)
    return before - resident(), cache.nbytes


@pytest.mark.slow
@pytest.mark.skipif(
    not STATUS.exists() or not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="glibc on Linux"
)
def test_what_was_computed_in_is_given_back_after_each_chunk():
    # in a process of its own, in which nothing else was freed
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=spawn) as pool:
        kept, held = pool.submit(kept_beside).result()
    assert kept < 16 << 20 and held < 16 << 20
