"""Policies of a person's own, from the pages that tell people how: they run as they are printed."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import agentkv
from agentkv.build import make_policy
from agentkv.config import PolicySettings
from agentkv.models.find import NANO
from agentkv.policies import registry
from agentkv.policies.confident import conf_kv
from agentkv.policies.named import edie

ROOT = Path(__file__).parents[3]
PROMPT = 150


def blocks(page, kind, word):
    """Code blocks of a page that have a word in them."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.findall(rf"```{kind}\n(.*?)```", text, flags=re.DOTALL)
    return [code for code in found if word in code]


@pytest.fixture(scope="module")
def input_ids():
    return torch.randint(5, 2304, (1, PROMPT), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def told(input_ids):
    """What the README's block leaves behind."""
    (code,) = blocks("README.md", "python", "agentkv.scored")
    names = {"input_ids": input_ids}
    exec(code, names)
    return names


def test_ten_lines_of_the_readme_make_a_policy_that_runs(told):
    (code,) = blocks("README.md", "python", "agentkv.scored")
    assert sum(bool(line.strip()) for line in code.splitlines()) <= 10
    cache = told["cache"]
    cache.check()
    assert PROMPT < cache.seen < PROMPT + 8  # the last token that was decoded is not read
    full = agentkv.Cache.for_model(told["model"], policy="full")
    full.feed(told["model"], cache.ids.long())
    assert cache.nbytes < full.nbytes


@torch.no_grad()
def test_the_rows_it_keeps_are_those_that_transformers_attention_says(told, input_ids):
    cache = agentkv.Cache.for_model(told["model"], policy=told["policy"], budget=64)
    told["model"](input_ids, past_key_values=cache)
    plain = AutoModelForCausalLM.from_pretrained(
        NANO, dtype=torch.float32, attn_implementation="eager"
    )
    seen = plain(input_ids, output_attentions=True).attentions
    for layer, attention in enumerate(seen):
        # 4 query heads in groups of 2; attention of the last 16 queries to the entries before them
        most = attention[0].view(2, 2, PROMPT, PROMPT)[:, :, -16:, :-16].amax(dim=(1, 2))
        newest = set(range(PROMPT - 16, PROMPT))
        for head, scores in enumerate(most):
            best = set(scores.topk(64 - 16).indices.tolist())
            assert set(cache.kept(layer)[0][head].tolist()) == best | newest


def test_the_composed_policy_of_the_policies_page_is_what_it_says(tmp_path):
    (code,) = blocks("agentkv/policies/README.md", "toml", "base")
    path = tmp_path / "mine.toml"
    path.write_text(code)
    made = make_policy(PolicySettings(name=str(path)))
    expected = replace(edie(window=16), gate=conf_kv(threshold=0.8).gate)
    for part in ("gate", "allocator", "scorer", "selector", "precision"):
        assert getattr(made, part) == getattr(expected, part)
    model = agentkv.load_model("nano").model
    cache = agentkv.Cache.for_model(model, policy=made, budget=48)
    cache.feed(model, torch.arange(5, 105)[None])
    cache.check()
    assert cache.kept(0)[0][0].shape[0] in (24, 48)  # tight or loose


def test_the_pages_name_every_policy():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    page = (ROOT / "agentkv/policies/README.md").read_text(encoding="utf-8")
    for name in registry.NAMED:
        assert f"`{name}`" in readme and f"`{name}`" in page
    assert f"the {len(registry.NAMED)} that are there" in readme
