"""Caches, agents and browser pages work with their defaults."""

import json

import pytest
import torch

import agentkv
from agentkv.cache.budget import Share, parse_budget
from agentkv.defaults import BUDGET, CHUNK
from agentkv.models.find import NANO, default_cache_dtype
from tests.own_thread import in_own_thread


@pytest.fixture(scope="module")
def nano():
    return agentkv.load_model("nano")


def test_a_cache_needs_only_a_model(nano):
    cache = agentkv.Cache.for_model(nano.model)
    budget = parse_budget(BUDGET)
    assert isinstance(budget, Share) and cache.budget == budget and cache.chunk == CHUNK
    draw = torch.Generator().manual_seed(0)
    for _ in range(9):
        cache.feed(nano.model, torch.randint(5, 3000, (1, 500), generator=draw))
    cache.check()
    kept = max(len(head) for head in cache.kept(0)[0])
    most = budget.of_seen * cache.seen
    assert budget.floor < most and most <= kept < most + 64  # a whole block turns cold at once
    assert cache.cold_nbytes > 0


def test_the_default_budget_keeps_short_prompts_complete_and_survives_a_file(nano, tmp_path):
    cache = agentkv.Cache.for_model(nano.model, policy="h2o")
    cache.feed(nano.model, torch.arange(5, 905)[None])
    assert len(cache.kept(0)[0][0]) == 900
    cache.save(tmp_path / "cache")
    assert agentkv.Cache.load(tmp_path / "cache", nano.model).budget == cache.budget


def test_a_policy_that_keeps_everything_gets_no_budget(nano):
    assert agentkv.Cache.for_model(nano.model, policy="full").budget is None


@pytest.mark.parametrize(
    ("chosen", "num_bytes"),
    [({}, 2), ({"cache_dtype": "float32"}, 4), ({"cache_dtype": "float16"}, 2)],
)
def test_an_agent_stores_16_bits_unless_another_dtype_is_chosen(nano, chosen, num_bytes):
    cache = nano.with_cache("full", **chosen).new_cache()
    assert nano.model.dtype == torch.float32
    cache.feed(nano.model, torch.arange(5, 905)[None])
    config = nano.model.config
    per_token = 2 * config.num_key_value_heads * config.head_dim * num_bytes + 8
    stored = cache.nbytes / config.num_hidden_layers
    assert 900 * per_token <= stored <= (900 + 64) * per_token


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"dtype": "float16"}, "float16"),
        ({"torch_dtype": "bfloat16"}, "bfloat16"),
        ({"text_config": {"dtype": "float16"}}, "float16"),
        ({"dtype": "float32"}, "bfloat16"),
        ({}, "bfloat16"),
    ],
)
def test_the_default_dtype_is_the_checkpoints_if_it_has_16_bits(tmp_path, config, expected):
    for file in NANO.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert default_cache_dtype(tmp_path) == expected


@pytest.mark.browser
def test_an_agent_needs_only_a_model_and_acts_on_a_page_of_agentkv_browser(nano):
    def act():
        with agentkv.browser() as page:
            page.set_content("<title>Bees</title><h1>Bees</h1><p>Bees make honey.</p>")
            episode = agentkv.Agent(nano).run(page, "What do bees make?", max_steps=1)
            assert not page.is_closed()
        assert len(episode.steps) == 1

    in_own_thread(act)


def test_loading_a_model_writes_nothing_and_leaves_the_bars_of_transformers_as_they_were(capfd):
    from transformers.utils import logging

    assert logging.is_progress_bar_enabled()
    agentkv.load_model("nano")
    assert capfd.readouterr() == ("", "")
    assert logging.is_progress_bar_enabled()
