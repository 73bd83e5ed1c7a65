"""Caches whose steps go through the Triton kernels, against the same in plain torch.

Run as a program, all of it is tried in Triton's interpreter and one line of JSON per check says how
it went.
"""

import gc
import json
import os
import sys
import traceback
from functools import partial

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import agentkv
from agentkv_kernels.device import choice_for, preferring
from tests.kernels.apart import Apart, kernels_watched, on_device

PROMPT, STEPS, BATCH = 80, 4, 2

CHECKS = {
    "full": ({}, None),
    "window": ({}, 24),
    "conf-kv": ({}, 40),
    "conf-kv-int8": ({"recent": 5}, 75),
    "h2o": ({}, 24),
    "ada-snapkv": ({"window": 6}, 24),
}
"""By policy: its parameters and its budget."""

WAITS = {"full": 0, "window": 0, "h2o": 0, "conf-kv": 1, "conf-kv-int8": 1 + BATCH}
"""By policy, how often a step waits for a device: a gate asks once how sure the model is, and where
rows are quantized the host asks for each sequence which row goes."""


def tiny_model(device, dtype=torch.float32):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() >= 2 and "embed" not in name:
                weight.mul_(6)  # else attention is flat and anything passes
    return model.eval().to(device, dtype)


def decoded(implementation, name, device, model=None):
    """Logits of every step, what is kept after each, and bytes."""
    parameters, budget = CHECKS[name]
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(1, 64, (BATCH, PROMPT + STEPS), generator=draw).to(device)
    model = tiny_model(device) if model is None else model
    logits, held, sizes = [], [], []
    with preferring(implementation):
        assert choice_for(ids.device).implementation == implementation
        policy = agentkv.policy(name, **parameters)
        cache = agentkv.Cache.for_model(model, policy=policy, budget=budget)
        cache.feed(model, ids[:, :PROMPT])
        for i in range(PROMPT, PROMPT + STEPS):
            logits.append(cache.feed(model, ids[:, i : i + 1]))
            cache.check()
            held.append([[p.tolist() for of in cache.kept(n) for p in of] for n in range(2)])
            sizes.append(cache.nbytes)
            assert {layer.backend.name for layer in cache.cache_layers} == {implementation}
    return torch.stack(logits), held, sizes


def check(name, device):
    """That logits, rows and bytes are the same."""
    found, expected = (decoded(each, name, device) for each in ("triton", "torch"))
    assert found[1] == expected[1], "other rows are kept"
    assert found[2] == expected[2], "other bytes are held"
    torch.testing.assert_close(found[0], expected[0], atol=2e-3, rtol=1e-4)


def check_apart(name):
    """That nothing of the host's meets something of the device's, and that steps wait for the
    device as often as they may; on a processor, where neither shows by itself."""
    parameters, budget = CHECKS[name]
    model, apart = tiny_model("cpu"), Apart()
    on_device(*model.parameters(), *model.buffers())
    policy = agentkv.policy(name, **parameters)
    with preferring("triton"), kernels_watched(apart), apart, torch.no_grad():
        ids = torch.ones(BATCH, PROMPT, dtype=torch.int64, device="cpu")
        cache = agentkv.Cache.for_model(model, policy=policy, budget=budget)
        cache.feed(model, ids)
        read = len(apart.waits)
        for _ in range(STEPS):
            cache.feed(model, ids[:, :1])
    assert not apart.mixed, apart.mixed
    waits = apart.waits[read:]
    if name in WAITS:
        assert len(waits) == WAITS[name] * STEPS, waits


def check_unwaited(name, device):
    """That a forward of one token asks the device for nothing, once kernels are compiled."""
    parameters, budget = CHECKS[name]
    model, ids = tiny_model(device), torch.ones(BATCH, PROMPT, dtype=torch.int64, device=device)
    policy = agentkv.policy(name, **parameters)
    cache = agentkv.Cache.for_model(model, policy=policy, budget=budget)
    cache.feed(model, ids)
    for _ in range(2):
        cache.feed(model, ids[:, :1])
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.no_grad():
            model(input_ids=ids[:, :1], past_key_values=cache, use_cache=True)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    cache.check()


def check_given_back(name, device):
    """That a cache that is gone leaves no memory taken."""
    model = tiny_model(device)
    taken = []
    for _ in range(2):
        # the first round leaves what is kept for good, such as workspaces
        logits, held, sizes = decoded("triton", name, device, model)
        del logits, held, sizes
        gc.collect()
        taken.append(torch.cuda.memory_allocated())
    assert taken[0] == taken[1]


def main():
    assert os.environ.get("TRITON_INTERPRET") == "1"
    tried = {name: partial(check, name, "cpu") for name in CHECKS}
    tried |= {f"{name}, apart": partial(check_apart, name) for name in CHECKS}
    for name, checked in tried.items():
        try:
            checked()
            reason = None
        except Exception:
            # the edge of this process: whatever broke is told by name, and the test fails
            reason = traceback.format_exc()
        print(json.dumps({"check": name, "failed": reason}))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
