"""Language models on this machine: found, loaded, and put under a cache policy."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentkv.cache.cache import Cache, attach
from agentkv.chat import ChatTemplate
from agentkv.config import Decoding, Observations
from agentkv.grammar import Grammar
from agentkv.models.decode import ActingModel
from agentkv.models.find import ModelError, find_model, not_here
from agentkv.prompt import PlainTemplate, Template


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model, its tokenizer and how it is spoken to; all that act with it share the weights."""

    name: str
    model: Any = field(repr=False)
    """The transformers model, in evaluation mode, attached to our attention."""
    tokenizer: Tokenizer = field(repr=False)
    template: Template = field(repr=False)
    grammar: Grammar = field(repr=False)
    max_positions: int | None
    """Tokens an episode may have; None if the architecture sets no end."""

    def under(
        self,
        policy: Any = "conf-kv-int8",
        *,
        budget: int | str | None = None,
        decoding: Decoding = "constrained",
        temperature: float = 0.0,
        max_new_tokens: int = 256,
        observation_tokens: int | None = 3840,
        observations: Observations = "whole",
        **cache_options: Any,
    ) -> ActingModel:
        """This model with its cache kept by `policy`.

        Args:
            policy, budget: as `agentkv.Cache.for_model` takes them; so are `cache_options`, such as
                `prefill` and `chunk`.
            decoding: `constrained` masks every token that the page's grammar does not allow;
                `free` masks nothing.
            temperature: 0 takes the likeliest token; above it one is drawn, seeded by the episode.
            max_new_tokens: tokens a reply may have.
            observation_tokens: tokens of a page that are shown; None shows all.
            observations: `whole` shows every page in full; `changes` shows of a page that is looked
                at again only the lines that are new or changed (`agentkv_env.changes`).

        Raises:
            ValueError: an unknown policy or option, or a budget that cannot be kept.
        """

        def new_cache() -> Cache:
            return Cache.for_model(self.model, policy=policy, budget=budget, **cache_options)

        new_cache()  # an unknown policy is an error now, not in the first episode
        return ActingModel(
            self,
            new_cache,
            decoding=decoding,
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            observation_tokens=observation_tokens,
            observations=observations,
        )


def load_model(name: str | Path, *, device: str = "auto", dtype: str = "auto") -> LocalModel:
    """Load `nano`, a folder in Hugging Face format, or a hub id that has been downloaded before.

    Nothing is downloaded. The weights go to `device` (`auto`: CUDA if there is one) in `dtype`
    (`auto`: the checkpoint's own on CUDA, float32 on a CPU, where 16-bit is slower). Models whose
    tokenizer has our four special tokens read `PlainTemplate`, all others `ChatTemplate`.

    Raises:
        ModelError: no such model, or one with parts missing.
    """
    source = find_model(name)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    elif device.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError(
            f"device {device!r}: torch {torch.__version__} sees no GPU; use auto or cpu"
        )
    if dtype == "auto":
        kept = "auto" if device.startswith("cuda") else torch.float32
    else:
        kept = getattr(torch, dtype)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=True)
        model: Any = AutoModelForCausalLM.from_pretrained(source, local_files_only=True, dtype=kept)
    except (OSError, SafetensorError) as error:
        if isinstance(source, Path):
            raise ModelError(f"{source} cannot be read as a model: {error}") from error
        raise not_here(source) from error
    return local_model(model.to(device).eval(), tokenizer, name=str(name))


def local_model(model: Any, tokenizer: Any, *, name: str) -> LocalModel:
    """A `LocalModel` of a transformers model and fast tokenizer already in memory.

    Attaches our attention to `model`.

    Raises:
        ModelError: the tokenizer is a slow one.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(f"{name} has no fast tokenizer (tokenizer.json), which the agent needs")
    plain = all(backend.token_to_id(token) is not None for token in PlainTemplate.SPECIALS)
    template: Template = (
        PlainTemplate(backend) if plain else ChatTemplate(tokenizer, end_ids=_end_ids(model))
    )
    if not template.end_ids:
        raise ModelError(f"{name}: neither tokenizer nor chat template has an end token")
    attach(model)
    return LocalModel(
        name=name,
        model=model,
        tokenizer=backend,
        template=template,
        grammar=Grammar(backend, end_id=min(template.end_ids)),
        max_positions=getattr(model.config, "max_position_embeddings", None),
    )


def _end_ids(model: Any) -> list[int]:
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return [ends] if isinstance(ends, int) else list(ends or ())
