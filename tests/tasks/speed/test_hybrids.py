"""Hybrids beside their judge, and what says which policies they refuse."""

import pytest
import torch
from transformers import PreTrainedModel

import agentkv
from agentkv.cache.hf.families import describe
from agentkv.plan import without_refused
from agentkv.settings import PoliciesSettings
from agentkv_tasks.bench.contenders.judge import CacheJudge
from tests.agentkv.cache.hybrids import fresh


@pytest.mark.parametrize("family", ["lfm2", "lfm3"])
@torch.no_grad()
def test_a_judge_of_a_hybrid_hides_what_its_cache_has_evicted(family: str) -> None:
    model: PreTrainedModel = fresh(family)
    judge, ids = CacheJudge(fresh(family)), torch.randint(1, 60, (1, 41))
    cache = agentkv.Cache.for_model(model, policy="window", budget=16)
    kept = None
    for piece in ids.split(20, dim=1):
        found, expected = cache.feed(model, piece), judge.feed(piece, kept)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
        assert judge.take_quantised(cache) == 0
        kept = [cache.kept(layer) for layer in range(len(cache.cache_layers))]
    assert max(len(heads[0]) for (heads,) in kept) == 16


def test_policies_that_look_back_are_left_out_of_the_plan_of_a_hybrid() -> None:
    settings, said = without_refused(PoliciesSettings(), describe(fresh("lfm2")))
    assert [each.name for each in settings.policies] == ["full", "int4"]
    assert said.startswith("left out: lookback-int8 computes a token again when it looks back")
