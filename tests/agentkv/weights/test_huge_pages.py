"""Weights move to other memory, and the model stays what it was."""

import copy
import gc
import io

import pytest
import torch
from torch import nn

from agentkv.weights import huge_pages
from agentkv.weights.huge_pages import move_weights
from agentkv.weights.replace import quantize_linear
from tests.agentkv.cache.every_family import changed

IDS = torch.arange(24).view(2, 12)


def model(**settings):
    return changed("llama", hidden_size=256, vocab_size=8192, **settings).eval()


@pytest.fixture
def has_huge_pages(tmp_path, monkeypatch):
    if not hasattr(huge_pages.mmap, "MADV_HUGEPAGE"):
        pytest.skip("only Linux has them")
    setting = tmp_path / "enabled"
    setting.write_text("always [madvise] never")
    monkeypatch.setattr(huge_pages, "SETTING", setting)
    return setting


@torch.no_grad()
@pytest.mark.parametrize("form", [None, "int8"])
def test_a_model_computes_the_same_after_its_weights_moved(form, has_huge_pages):
    own = model(tie_word_embeddings=True)
    if form:
        quantize_linear(own, form)
    before = {name: each.data_ptr() for name, each in own.state_dict().items()}
    expected = own(IDS).logits
    assert move_weights(own, gc.collect)
    assert torch.equal(own(IDS).logits, expected)
    assert all(each.data_ptr() != before[name] for name, each in own.state_dict().items())
    table = "codes" if form else "weight"
    shared = getattr(own.lm_head, table), getattr(own.model.embed_tokens, table)
    assert shared[0].data_ptr() == shared[1].data_ptr()
    assert torch.equal(copy.deepcopy(own)(IDS).logits, expected)


def test_a_saved_tensor_does_not_bring_the_others(has_huge_pages):
    own = model()
    move_weights(own, gc.collect)
    file = io.BytesIO()
    torch.save(own.model.norm.weight, file)
    assert file.tell() < 10_000


def test_weights_stay_where_there_is_nothing_to_gain(has_huge_pages):
    small = nn.Linear(8, 8)
    assert not move_weights(small, gc.collect)
    has_huge_pages.write_text("always madvise [never]")
    assert not move_weights(model(), gc.collect)
    has_huge_pages.unlink()
    assert not move_weights(model(), gc.collect)


def test_parameters_that_share_part_of_their_memory_stay(has_huge_pages):
    own = nn.Module()
    whole = torch.randn(1 << 20)
    own.register_buffer("whole", whole)
    own.register_buffer("first", whole[: 1 << 19])
    own.register_buffer("second", whole[1 << 19 :])
    assert not move_weights(own, gc.collect)
