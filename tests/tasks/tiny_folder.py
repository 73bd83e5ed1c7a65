"""A folder with a Llama of two layers and random weights."""

from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from agentkv.dialog.prompt import PlainTemplate
from agentkv.models.find import NANO

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def save_model(folder: Path, *, is_chat: bool) -> Path:
    """Save random weights with nano's words, and a chat template or nano's own tokens."""
    text = (NANO / "tokenizer.json").read_text(encoding="utf-8")
    names = ("<|im_start|>", "<|im_end|>", "<|one|>", "<|two|>")
    for name, new in zip(PlainTemplate.SPECIALS, names, strict=True):
        text = text.replace(name, new) if is_chat else text
    end = "<|im_end|>" if is_chat else PlainTemplate.SPECIALS[-1]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(text), eos_token=end)
    tokenizer.chat_template = CHATML if is_chat else None
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1200,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
