"""The exported adapter: half the bytes, and the same model."""

from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file

from agentkv.models.adapter import WEIGHTS, base_file, quiet_peft
from agentkv.models.load import load_model
from tests.tasks.tiny_folder import save_model
from train_smollm2.export import export


def test_an_exported_adapter_has_half_the_bytes_and_acts_alike(tmp_path: Path) -> None:
    model = save_model(tmp_path / "model", is_chat=False)
    config = LoraConfig(
        task_type="CAUSAL_LM", r=16, target_modules="all-linear", init_lora_weights=False
    )
    with quiet_peft():
        adapter = get_peft_model(load_model(model, device="cpu").model, config)
    adapter.save_pretrained(str(tmp_path / "adapter"))
    (tmp_path / "adapter" / "agentkv.json").write_text(base_file(str(model)))
    size = export(tmp_path / "adapter", tmp_path / "small")
    assert size < 0.6 * (tmp_path / "adapter" / WEIGHTS).stat().st_size
    assert {each.dtype for each in load_file(tmp_path / "small" / WEIGHTS).values()} == {
        torch.bfloat16
    }
    ids = torch.randint(5, 3000, (1, 40), generator=torch.Generator().manual_seed(1))
    base, one, other = (
        load_model(model, device="cpu", adapter=folder).model(ids).logits
        for folder in (None, tmp_path / "adapter", tmp_path / "small")
    )
    assert (one - other).abs().max() < 0.1 * (one - base).abs().max()
