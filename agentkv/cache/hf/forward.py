"""The forward of an attached model on a CPU: a compiled step where it gives every sequence one
token, or reads an input of one sequence with packed weights, and plain torch where it reads others.

Whatever these do not know goes the ordinary way, through transformers' own code.
"""

import inspect
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from agentkv.cache.hf import plain_forward
from agentkv.cache.hf.compat import ATTENTION, CACHE, cache_in, outside_compile, tokens_among
from agentkv.cache.hf.decoder import Decoder, Seal, read_decoder, unknown_code
from agentkv.cache.hf.first_step import why_apart
from agentkv.cache.hf.hooked_cache import HookedCache
from agentkv.cache.hf.known_code import NotCompiled
from agentkv.cache.hf.parts import DecoderParts
from agentkv.cache.hf.trim import MIN_TOKENS, trim_heap

READ = frozenset(
    {"input_ids", "attention_mask", "position_ids", "past_key_values", "use_cache"}
    | {CACHE}
    | {"logits_to_keep", "cache_position"}
)
"""Arguments of a forward that are heeded, or change nothing."""

COMPILED = "compiled: one call per token"
"""What `decoding` says of a model whose steps are compiled."""

UNSET = {"return_dict": True, "output_attentions": False, "output_hidden_states": False}
"""Other arguments, with the value besides None that changes nothing."""


class Forward:
    """Takes the place of a model's `forward`.

    It belongs to one model, and a copy of it to the model's copy.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = weakref.ref(model)
        self.__signature__ = inspect.signature(type(model).forward.__get__(model))
        self._seal: Seal | None = None
        """Notices what was replaced in the model since it was read; None: it was not read."""
        self._decoder: Decoder | None = None
        self._step: Any = None
        self._is_checked = False
        self.obstacle: str | None = None
        """Why the model goes the ordinary way; None if it need not, or was not asked yet."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        model = self._model()
        assert model is not None
        if not torch.compiler.is_compiling():
            done = self._ours(model, args, kwargs)
            if done is not None:
                return done
        return type(model).forward(model, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Forward":
        model = self._model()
        assert model is not None
        return Forward(memo.get(id(model), model))

    def __reduce__(self) -> Any:
        return Forward, (self._model(),)

    def read(self) -> bool:
        """Read the model if it was not, or has changed; return whether it can be compiled."""
        model = self._model()
        assert model is not None
        if self._seal is None or not self._seal.is_whole():
            self._seal = Seal(model)
            self._decoder = self._step = self.obstacle = None
            self._is_checked = False
            try:
                self._decoder = read_decoder(model)
            except NotCompiled as obstacle:
                self.obstacle = str(obstacle)
                return False
            # imported here because Numba takes half a second, and is optional
            from agentkv.cache.step import CompiledStep

            self._step = CompiledStep(self._decoder)
        if self._decoder is None:
            return False
        # a model in training draws random numbers, and steps come after it
        if not self._is_checked and not model.training:
            self.obstacle = why_apart(model, self._decoder, self._step)
            self._is_checked = True
        return self.obstacle is None

    @outside_compile
    def _ours(
        self, model: PreTrainedModel, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> CausalLMOutputWithPast | None:
        """Run a forward without transformers; return None if it must go the ordinary way."""
        given = kwargs if not args else arguments_of(model, args, kwargs)
        cache, ids = cache_in(given), given.get("input_ids")
        if not isinstance(cache, HookedCache) or not isinstance(ids, Tensor) or ids.dim() != 2:
            return None
        if not _is_plain(model, given) or not self.read():
            return None
        batch, num_new = ids.shape
        cache.check_input(model.base_model, batch, num_new)
        is_token = tokens_among(given.get("attention_mask"), num_new)
        cache.begin(num_new, is_token)
        try:
            cache.note_ids(ids.to(torch.int32, copy=True))
            if is_token is None and cache.can_step(num_new):
                logits = self._decode(cache, ids, given.get("position_ids"))
            elif is_token is None and self._may_read(cache, given):
                logits = self._read_one(cache, given)
            else:
                assert self._decoder is not None
                logits = _read(self._decoder.parts, cache, given, is_token)
            cache.finish()
        except BaseException:
            cache.leave()
            raise
        if ids.numel() >= MIN_TOKENS:
            trim_heap()
        held: Any = {CACHE: cache}
        return CausalLMOutputWithPast(logits=logits, **held)

    def _decode(self, cache: HookedCache, ids: Tensor, positions: Tensor | None) -> Tensor:
        """Return the logits of one new token per sequence, in a compiled step."""
        assert self._decoder is not None
        tokens = ids.flatten().tolist()
        positions = cache.rotary_positions(positions, 1)
        members = cache.begin_step(self._decoder.attentions, self._decoder.scales)
        if positions is None:
            places = [cache.get_seq_length()] * len(tokens)
        else:
            all_places = positions.expand(ids.shape).flatten().tolist()
            places = [place for _, rows in members for place in all_places[rows]]
        own = [token for _, rows in members for token in tokens[rows]]
        layers = [layers for layers, _ in members]
        found: Tensor = self._step.run(layers, own, places, cache.look_step)
        if len(own) < len(tokens):  # a cache that broke takes no part
            whole = found.new_zeros(len(tokens), found.shape[1])
            at = [row for _, rows in members for row in range(*rows.indices(len(tokens)))]
            whole[at] = found
            found = whole
        return found.view(*ids.shape, -1)

    def _may_read(self, cache: HookedCache, given: Mapping[str, Any]) -> bool:
        """Return whether a compiled step may read the new tokens."""
        batch, num_new = given["input_ids"].shape
        keep = given.get("logits_to_keep", 0)
        if batch > 1 or not isinstance(keep, int) or keep < 0:
            return False
        if self._decoder is None or not self._step.can_read(num_new, keep or num_new):
            return False
        return cache.can_read(num_new, self._decoder.dtype)

    def _read_one(self, cache: HookedCache, given: Mapping[str, Any]) -> Tensor:
        """Return the logits of several new tokens of one sequence, from compiled steps."""
        assert self._decoder is not None
        ids, num_new = given["input_ids"], given["input_ids"].shape[1]
        num_logits = min(given.get("logits_to_keep", 0) or num_new, num_new)
        positions = cache.rotary_positions(given.get("position_ids"), num_new)
        own = self._decoder
        layers = cache.begin_read(own.attentions, own.scales, num_new, own.dtype)
        if positions is None:
            seen = cache.get_seq_length()
            places = list(range(seen, seen + num_new))
        else:
            places = positions.flatten().tolist()
        logits: Tensor = self._step.read(layers, ids.flatten().tolist(), places, num_logits)
        return logits[None]


def _read(
    parts: DecoderParts, cache: HookedCache, given: Mapping[str, Any], mask: Tensor | None
) -> Tensor:
    """Return the logits of any number of new tokens, in plain torch."""
    ids = given["input_ids"]
    positions = cache.rotary_positions(given.get("position_ids"), ids.shape[1])
    if positions is None:
        seen = cache.get_seq_length()
        positions = torch.arange(seen, seen + ids.shape[1])[None]
    hidden = plain_forward.forward(parts, cache, ids, positions, mask)
    keep = given.get("logits_to_keep", 0)
    hidden = hidden[:, slice(-keep, None) if isinstance(keep, int) else keep]
    linear = plain_forward.linear_for(1, parts.dtype)  # mostly one token's logits are wanted
    return parts.finish_logits(linear(hidden, parts.head))


def arguments_of(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a module's forward by name."""
    if not args:
        return kwargs
    return inspect.signature(module.forward).bind_partial(*args).arguments | kwargs


def _is_plain(model: PreTrainedModel, given: Mapping[str, Any]) -> bool:
    """Return whether the arguments of a forward ask for nothing but logits."""
    config: Any = model.config
    if torch.is_grad_enabled() or model.training or config._attn_implementation != ATTENTION:
        return False
    if (
        config.output_hidden_states
        or config.output_attentions
        or not getattr(config, "return_dict", True)
    ):
        return False
    for name, value in given.items():
        if value is not None and name not in READ and value != UNSET.get(name):
            return False
    if given.get("use_cache") is False or given["input_ids"].device.type != "cpu":
        return False
    mask, positions = given.get("attention_mask"), given.get("position_ids")
    return (mask is None or mask.dim() == 2) and (positions is None or positions.dim() == 2)


def decoding(model: PreTrainedModel) -> str:
    """Return how an attached model decodes: `COMPILED`, or "transformers: " and the reason.

    A single forward may still go through transformers: if compiled code does not read the cache's
    format, a mask hides a new token, or gradients are wanted.
    """
    own = vars(model).get("forward")
    if isinstance(own, Forward):
        return COMPILED if own.read() else f"transformers: {own.obstacle}"
    unknown = unknown_code(model)
    if unknown is not None:
        return f"transformers: {unknown}"
    return "transformers: its forward was replaced" if own else "transformers: it is not attached"


def install(model: PreTrainedModel) -> None:
    """Give a model whose code the compiled step knows its `Forward`. Repeated calls do nothing.

    A model whose forward was replaced by others keeps theirs.
    """
    if "forward" not in vars(model) and unknown_code(model) is None:
        vars(model)["forward"] = Forward(model)
