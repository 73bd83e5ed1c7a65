"""A model that writes one reply: a real GPT-2 whose weights were set by hand."""

import re
from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import AddedToken
from transformers import GPT2Config, GPT2LMHeadModel

from agentkv.models.load import local_model
from agentkv.models.local import LocalModel


def add_pieces(tokenizer: Any, text: str) -> list[int]:
    """Return ids of a text: its control tokens, and pieces that become tokens of `tokenizer`."""
    added = tokenizer.added_tokens_decoder.values()
    control = "|".join(re.escape(token.content) for token in added if token.special)
    pieces = []
    for number, part in enumerate(re.split(f"({control})", text)):
        step = len(part) if number % 2 else 16
        pieces += [part[start : start + step] for start in range(0, len(part), step or 1)]
    tokenizer.add_tokens([AddedToken(piece, normalized=False) for piece in dict.fromkeys(pieces)])
    ids: list[int] = tokenizer.convert_tokens_to_ids(pieces)
    return ids


def reciting_model(tokenizer: Any, start: int, reply: Sequence[int]) -> LocalModel:
    """Return a model that writes `reply`, which ends with an end token, after `start` tokens.

    Each position from there on has a dimension of its own, which the output layer maps to the id
    that comes next. Tokens, attention and the layers between add nothing.
    """
    width = -(-len(reply) // 64) * 64
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=start + len(reply) + 8,
        n_embd=width,
        n_inner=8,
        n_layer=1,
        n_head=width // 32,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        (block,) = model.transformer.h
        for weights in (
            *(model.transformer.wte.weight, model.transformer.wpe.weight, model.lm_head.weight),
            *(block.attn.c_proj.weight, block.mlp.c_proj.weight),
        ):
            weights.zero_()
        for number, id in enumerate(reply):
            model.transformer.wpe.weight[start - 1 + number, number] = 1
            model.lm_head.weight[id, number] = 1
    return local_model(model, tokenizer, name="tiny")
