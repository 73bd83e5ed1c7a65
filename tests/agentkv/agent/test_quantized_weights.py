"""Models whose weights transformers quantizes or places."""

from typing import Any

import pytest
import torch
from transformers import BitsAndBytesConfig, DynamicCache, QuantoConfig

import agentkv
from agentkv.models.load import load_model
from agentkv.models.refused import ModelError
from agentkv_env.page import Page

# for int4 the library compiles C++ at its first use, which takes longer than all tests of a folder
WEIGHTS = ["int8", pytest.param("int4", marks=pytest.mark.exhaustive)]


@torch.no_grad()
@pytest.mark.parametrize("weights", WEIGHTS)
def test_quantized_weights_write_what_they_write_with_transformers_own_cache(weights: str) -> None:
    model: Any = load_model("nano", quantization_config=QuantoConfig(weights=weights)).model
    assert "QLinear" in type(model.model.layers[0].self_attn.q_proj).__name__
    torch.manual_seed(0)
    ids = torch.randint(5, 3000, (1, 200))
    cache = agentkv.Cache.for_model(model, policy="full")
    made = [
        model.generate(
            ids,
            past_key_values=each,
            max_new_tokens=12,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        for each in (cache, DynamicCache())
    ]
    assert torch.equal(made[0].sequences, made[1].sequences)
    for ours, theirs in zip(made[0].logits, made[1].logits, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-3)


def test_an_agent_acts_on_quantized_weights(page: Page) -> None:
    model = load_model("nano", quantization_config=QuantoConfig(weights="int8"))
    conversation = model.with_cache("lookback-int8", budget=256).begin("find the kayak")
    assert "```" in conversation.reply(page).text
    conversation.cache.check()


@torch.no_grad()
def test_a_device_map_places_the_model() -> None:
    placed, plain = load_model("nano", device_map={"": "cpu"}), load_model("nano", device="cpu")
    ids = torch.arange(5, 45)[None]
    assert torch.equal(placed.model(ids).logits, plain.model(ids).logits)


def test_what_cannot_be_done_is_said() -> None:
    with pytest.raises(ModelError, match="so does device='cpu'; give one"):
        load_model("nano", device="cpu", device_map="auto")
    with pytest.raises(ModelError, match=r"bitsandbytes"):
        load_model("nano", quantization_config=BitsAndBytesConfig(load_in_8bit=True))
