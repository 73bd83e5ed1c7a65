"""Caches, agents and browser pages work with their defaults."""

import pytest
import torch

import agentkv
from agentkv.cache.budget import Share, parse_budget
from agentkv.defaults import BUDGET, CHUNK


@pytest.fixture(scope="module")
def nano():
    return agentkv.load_model("nano")


def test_a_cache_needs_only_a_model(nano):
    cache = agentkv.Cache.for_model(nano.model)
    budget = parse_budget(BUDGET)
    assert isinstance(budget, Share) and cache.budget == budget and cache.chunk == CHUNK
    draw = torch.Generator().manual_seed(0)
    for _ in range(12):
        cache.feed(nano.model, torch.randint(5, 3000, (1, 500), generator=draw))
    cache.check()
    kept = max(len(head) for head in cache.kept(0)[0])
    assert budget.floor < kept <= budget.of_seen * cache.seen


def test_the_default_budget_keeps_short_prompts_complete_and_survives_a_file(nano, tmp_path):
    cache = agentkv.Cache.for_model(nano.model, policy="h2o")
    cache.feed(nano.model, torch.arange(5, 905)[None])
    assert len(cache.kept(0)[0][0]) == 900
    cache.save(tmp_path / "cache")
    assert agentkv.Cache.load(tmp_path / "cache", nano.model).budget == cache.budget


def test_a_policy_that_keeps_everything_gets_no_budget(nano):
    assert agentkv.Cache.for_model(nano.model, policy="full").budget is None


@pytest.mark.browser
def test_an_agent_needs_only_a_model_and_acts_on_a_page_of_agentkv_browser(nano):
    with agentkv.browser() as page:
        page.set_content("<title>Bees</title><h1>Bees</h1><p>Bees make honey.</p>")
        episode = agentkv.Agent(nano).run(page, "What do bees make?", max_steps=1)
        assert not page.is_closed()
    assert len(episode.steps) == 1
