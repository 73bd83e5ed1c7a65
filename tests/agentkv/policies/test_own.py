"""The documentation's examples of custom policies run as printed and do what the text says."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import agentkv
from agentkv.build import make_policy
from agentkv.models.find import NANO
from agentkv.settings import PolicySettings

ROOT = Path(__file__).parents[3]


def blocks(page, kind, word):
    """Code blocks of a page that have a word in them."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.findall(rf"```{kind}\n(.*?)```", text, flags=re.DOTALL)
    return [code for code in found if word in code]


@pytest.fixture(scope="module")
def example():
    """Names that the page's example leaves behind."""
    (code,) = blocks("docs/extending.md", "python", "agentkv.scored")
    names = {}
    exec(code, names)
    return names


def test_the_example_policy_of_the_extending_page_runs(example):
    cache, num_prompt = example["cache"], example["input_ids"].shape[1]
    cache.check()
    assert num_prompt < cache.seen < num_prompt + 8  # the last decoded token is not fed
    full = agentkv.Cache.for_model(example["model"], policy="full")
    full.feed(example["model"], cache.ids.long())
    assert cache.nbytes < full.nbytes


@torch.no_grad()
def test_the_example_keeps_the_entries_that_transformers_attention_ranks_highest(example):
    input_ids = example["input_ids"]
    num_prompt = input_ids.shape[1]
    cache = agentkv.Cache.for_model(example["model"], policy=example["policy"], budget=64)
    example["model"](input_ids, past_key_values=cache)
    plain = AutoModelForCausalLM.from_pretrained(
        NANO, dtype=torch.float32, attn_implementation="eager"
    )
    seen = plain(input_ids, output_attentions=True).attentions
    for layer, attention in enumerate(seen):
        # 4 query heads in groups of 2; attention of the last 16 queries to the entries before them
        most = attention[0].view(2, 2, num_prompt, num_prompt)[:, :, -16:, :-16].amax(dim=(1, 2))
        newest = set(range(num_prompt - 16, num_prompt))
        for head, scores in enumerate(most):
            best = set(scores.topk(64 - 16).indices.tolist())
            assert set(cache.kept(layer)[0][head].tolist()) == best | newest


def test_the_policies_page_composes_the_policy_that_it_describes(tmp_path):
    code, *_ = blocks("docs/policies.md", "toml", "base")
    path = tmp_path / "mine.toml"
    path.write_text(code)
    made = make_policy(PolicySettings(name=str(path)))
    expected = replace(
        agentkv.policy("edie", window=16), gate=agentkv.policy("conf-kv", threshold=0.8).gate
    )
    for part in ("gate", "allocator", "scorer", "selector", "precision"):
        assert getattr(made, part) == getattr(expected, part)
    model = agentkv.load_model("nano").model
    cache = agentkv.Cache.for_model(model, policy=made, budget=48)
    cache.feed(model, torch.arange(5, 105)[None])
    cache.check()
    assert cache.kept(0)[0][0].shape[0] in (24, 48)  # tight or loose
