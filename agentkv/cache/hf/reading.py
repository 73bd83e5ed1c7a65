"""Reading how a decoder attends, by running its own code without its weights.

A copy of the decoder is built on the meta device. Its linear layers return fixed numbers, its small
parameters are drawn at random, and each layer ends where its attention has been called. What the
attention function and the masks receive is what they will receive in use.

Shapes: H key-value heads, T tokens, D head size.
"""

import copy
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from agentkv.cache.geometry import LayerShape
from agentkv.cache.hf.compat import CACHE, Handle
from agentkv.cache.misuse import Misuse
from agentkv.cache.storage.turn_keys import turned


class UnsupportedModel(ValueError):
    """The model has a part that the cache cannot serve."""


READING = "agentkv-reading"
"""Name under which the attention and the mask of a reading are registered."""

POSITIONS = (0, 1, 5, 60)
"""Rotary positions of the tokens that are read: near ones show fast pairs, distant ones slow
pairs."""

SMALL = 1 << 20
"""Numbers of the largest parameter that is drawn: norms and sinks, but no experts."""

CHANGES = "its rotary embedding changes its frequencies with the length of the sequence"

CHANGING = ("dynamic", "longrope")
"""Kinds of rotary embedding whose frequencies change with the length of the sequence."""

HARMLESS = {"dropout", "position_ids", "use_cache", "cache_position", "output_attentions"}
"""Other arguments of an attention function that change nothing here."""


@dataclass(frozen=True, slots=True)
class LayerReading:
    """The attention of one decoder layer."""

    attention: str
    """Path of the attention module in the layer."""
    shape: LayerShape
    num_q_heads: int
    rotary: str | None
    """Path of the buffer with the frequencies in the decoder; None without one."""
    why_not_turned: str | None
    """Why stored keys cannot be turned to other positions; None if they can."""
    source: int | None
    """Number of the layer whose keys and values it attends to; None for its own."""
    num_streams: int
    """Residual streams that the layer reads: one in almost every model."""


def read_layers(kind: type[PreTrainedModel], config: Any) -> tuple[LayerReading, ...]:
    """Read the decoder that `kind` makes of `config`; no weights are made or needed.

    Raises:
        UnsupportedModel: naming the part that the cache cannot serve, by its path in the decoder.
    """
    AttentionInterface.register(READING, _attention)
    AttentionMaskInterface.register(READING, _mask)
    config = copy.deepcopy(config)
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        decoder = kind(config).train(False)
    decoder.config._attn_implementation = READING
    # some layers return a tuple, and one that ends early has to return the same
    for as_tuple in (False, True):
        reading = _Reading(decoder, as_tuple)
        try:
            reading.run()
        except UnsupportedModel:
            raise
        except Misuse as error:
            raise UnsupportedModel(
                f"{reading.place} computes its attention itself, not with one of transformers' "
                "attention functions"
            ) from error
        except Exception as error:  # code of transformers raises all kinds of errors
            if not as_tuple and len(reading.layers) < len(reading.modules):
                continue
            place = reading.place
            raise UnsupportedModel(
                f"{place} cannot be read: {type(error).__name__}: {' '.join(str(error).split())}"
            ) from error
        break
    return tuple(reading.layers)


def layers_of(decoder: nn.Module) -> nn.ModuleList:
    """Return the layers of a decoder. Raises UnsupportedModel if it has none that can be told."""
    config: Any = decoder.config
    count = getattr(config, "num_hidden_layers", None)
    found = [
        each
        for each in decoder.children()
        if isinstance(each, nn.ModuleList) and len(each) == count
    ]
    if len(found) != 1:
        raise UnsupportedModel(
            f"{type(decoder).__name__} has {len(found)} lists of {count} layers; expected one"
        )
    return found[0]


class _Seen(Exception):
    """Ends a layer whose attention has been read."""


class _Reading:
    """One run through a decoder."""

    def __init__(self, decoder: PreTrainedModel, as_tuple: bool) -> None:
        self.decoder, self.modules = decoder, layers_of(decoder)
        self.layers: list[LayerReading] = []
        self.place = type(decoder).__name__
        self._name = next(name for name, each in decoder.named_modules() if each is self.modules)
        self._as_tuple = as_tuple
        self._learned = False
        self._call: _Call | None = None
        generator = torch.Generator().manual_seed(0)
        for module in decoder.modules():
            if isinstance(module, nn.Linear | Conv1D):
                vars(module)["forward"] = self._linear(module, generator)
            elif isinstance(module, nn.Embedding):
                vars(module)["forward"] = self._embedding(module)
            else:
                _fill(module, generator)
        self._rotaries = frequencies_of(decoder)
        for index, layer in enumerate(self.modules):
            vars(layer)["forward"] = self._layer(index, layer, type(layer).forward)

    def run(self) -> None:
        # no id of padding, which some models warn about
        ids = torch.full((1, len(POSITIONS)), self.decoder.config.vocab_size)
        given: dict[str, Any] = {
            "input_ids": ids,
            "position_ids": torch.tensor([POSITIONS]),
            CACHE: _ReadingCache(self),
            "use_cache": True,
            "logits_to_keep": None,  # a number lets layers that share keys skip tokens
        }
        known = inspect.signature(self.decoder.forward).parameters
        with torch.no_grad():
            self.decoder(**{name: value for name, value in given.items() if name in known})

    def attend(self, call: "_Call") -> Tensor:
        """Take one call of the attention function, and return what the projection reads."""
        self._call = call
        batch, heads, num_tokens, _ = call.query.shape
        return call.query.new_full((batch, num_tokens, heads, call.values.shape[-1]), torch.nan)

    def _layer(self, index: int, layer: nn.Module, forward: Any) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            self.place, self._call, projection = f"{self._name}.{index}", None, ""
            try:
                forward(layer, *args, **kwargs)
            except _Seen as seen:
                projection = str(seen)
            stream = args[0] if args else kwargs["hidden_states"]
            num_streams = 1 if stream.dim() == 3 else stream.shape[0]
            self.layers.append(self._read(index, layer, projection, num_streams))
            return (stream,) if self._as_tuple else stream

        return run

    def _linear(self, module: Any, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        size = module.nf if isinstance(module, Conv1D) else module.out_features
        fixed = torch.randn(size, generator=generator)

        def run(x: Tensor) -> Tensor:
            call = self._call
            # only what the attention function returned is not a number
            if call is not None and x.isnan().any():
                raise _Seen(_path_in(call.module, module) or "")
            return fixed.expand(*x.shape[:-1], size).clone()  # some clip it in place

        return run

    def _embedding(self, module: nn.Embedding) -> Callable[[Tensor], Tensor]:
        def run(ids: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            ids = kwargs.get("position_ids", ids)
            numbers = ids.flatten() - ids.flatten()[0]
            self._learned |= torch.equal(numbers, torch.tensor(POSITIONS))
            return torch.zeros(*ids.shape, module.embedding_dim)

        return run

    def _read(
        self, index: int, layer: nn.Module, projection: str, num_streams: int
    ) -> LayerReading:
        call = self._call
        if call is None:
            parts = ", ".join(
                f"{name} ({type(each).__name__})" for name, each in layer.named_children()
            )
            raise UnsupportedModel(
                f"{self.place} has no attention to keys and values in a cache; its parts: {parts}"
            )
        attention = _path_in(layer, call.module)
        place = f"{self.place}.{attention} ({type(call.module).__name__})"
        if attention is None:
            raise UnsupportedModel(f"{self.place} attends in a module of another layer")
        obstacle = call.obstacle() or self._sharing_obstacle(index, call)
        if obstacle is not None:
            raise UnsupportedModel(f"{place} {obstacle}")
        _, heads, _, size = call.keys.shape
        rotation = self._rotation(call.keys[0])
        shape = LayerShape(
            heads, size, call.window, rotation.frequencies, rotation.order, projection
        )
        return LayerReading(
            attention,
            shape,
            call.query.shape[1],
            rotation.buffer,
            rotation.why_unknown,
            None if call.layer_idx == index else call.layer_idx,
            num_streams,
        )

    def _sharing_obstacle(self, index: int, call: "_Call") -> str | None:
        """Return why a layer cannot have its keys where it has them; None if it can."""
        source = call.layer_idx
        if source == index:
            if any(each.source is not None for each in self.layers):
                return "stores keys after a layer that shares those of another one"
        elif source > index or self.layers[source].source is not None:
            return f"stores its keys as layer {source}"
        elif self.layers[source].shape.window != call.window:
            return f"attends to the keys of layer {source}, which has another window"
        return None

    def _rotation(self, keys: Tensor) -> "_Rotation":
        """Return how the keys (H, T, D) of equal tokens at `POSITIONS` are turned."""
        if self._learned:
            return _Rotation(())
        size, steps, first = keys.shape[-1], torch.tensor(POSITIONS), keys[:, :1].expand_as(keys)
        if torch.allclose(keys, first):
            return _Rotation((0.0,) * (size // 2))
        for path, angles in self._rotaries.items():
            for frequencies, order in candidates(angles, size):
                if torch.allclose(turned(first, steps, frequencies, order), keys, 1e-3, 1e-3):
                    if rope_type(self.decoder, path) in CHANGING:
                        return _Rotation(None, why_unknown=CHANGES)
                    return _Rotation(frequencies, order, path)
        return _Rotation(None, why_unknown="its keys are more than turned by their positions")


@dataclass(frozen=True, slots=True)
class _Rotation:
    """The rotation of keys by their positions; `LayerShape` explains the fields."""

    frequencies: tuple[float, ...] | None
    order: tuple[int, ...] | None = None
    buffer: str | None = None
    why_unknown: str | None = None


class _ReadingCache(DynamicCache):
    """Hands out handles instead of keys, as our cache does."""

    def __init__(self, reading: _Reading) -> None:
        super().__init__()
        self.reading = reading

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> Any:
        return Handle(self, layer_idx, key_states, value_states), value_states


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """What the attention function received."""

    module: nn.Module
    layer_idx: int
    query: Tensor
    keys: Tensor
    values: Tensor
    given_values: Tensor
    mask: Tensor | None
    sinks: Tensor | None
    softcap: float | None
    others: dict[str, Any]

    @property
    def window(self) -> int | None:
        """Window that the mask shows; None for none."""
        assert self.mask is not None
        return int(self.mask.item()) or None

    def obstacle(self) -> str | None:
        """Return what the cache cannot serve; None if it can serve all."""
        keys, values = self.keys.shape, self.values.shape
        if self.softcap is not None:
            return "soft-caps its logits"
        if keys != values:
            return f"has keys of {keys[-1]} channels and values of {values[-1]}"
        if self.given_values is not self.values:
            return "changes its values after they were stored"
        if self.query.shape[-1] != keys[-1] or self.query.shape[1] % keys[1]:
            return f"has queries {tuple(self.query.shape)} for keys {tuple(keys)}"
        if self.mask is None:
            return "has a mask that transformers' masking functions do not make"
        if self.mask.dim() or self.mask.item() < 0:
            return "has a mask that is neither causal nor a sliding window"
        # the argument `is_causal` says nothing: GPT-2 of transformers 4.57 gives False with a mask
        if getattr(self.module, "is_causal", True) is False:
            return "lets tokens see what follows them"
        if self.sinks is not None and self.sinks is not getattr(self.module, "sinks", None):
            return "has sink logits that are no parameter `sinks` of it"
        for name, value in self.others.items():
            if isinstance(value, Tensor) and name not in HARMLESS:
                return f"gives its attention function an argument {name}"
        return None


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Any,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    s_aux: Tensor | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    if not isinstance(key, Handle):
        raise TypeError("it attends to keys that no cache has stored")
    reading = key.owner.reading
    call = _Call(
        module, key.layer_idx, query, key.keys, key.values, value, attention_mask, s_aux, softcap,
        others,
    )  # fmt: skip
    return reading.attend(call), None


def _mask(
    *,
    mask_function: Callable[..., Any],
    config: Any = None,
    attention_mask: Tensor | None = None,
    **kwargs: Any,
) -> Tensor:
    """Return what a mask shows as a number: its window, 0 for none, -1 for another mask."""
    if attention_mask is not None:
        return torch.tensor(-1)  # it was not given one
    sizes = (getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size"))
    length = 64 + max((size for size in sizes if isinstance(size, int)), default=1 << 12)
    zero, columns = torch.tensor(0), torch.arange(length)
    shown = [
        torch.as_tensor(mask_function(zero, zero, torch.tensor(row), columns)).expand(length)
        for row in (length - 1, length - 2)
    ]
    counts = [int(each.sum()) for each in shown]
    first = length - counts[0]
    if bool(shown[1][-1]) or not bool(shown[0][first:].all()):
        return torch.tensor(-1)
    if counts == [length, length - 1]:
        return torch.tensor(0)
    return torch.tensor(counts[0] if counts[0] == counts[1] else -1)


def _fill(module: nn.Module, generator: torch.Generator) -> None:
    """Give a module on the meta device small random parameters, and the frequencies of a new
    one."""
    if frequencies_of(module, recurse=False):
        for name, buffer in new_rotary(module).named_buffers(recurse=False):
            setattr(module, name, buffer)
    for name, parameter in list(module.named_parameters(recurse=False)):
        if parameter.numel() <= SMALL:
            numbers = 1 + torch.randn(parameter.shape, generator=generator) / 4
            setattr(module, name, nn.Parameter(numbers, requires_grad=False))
    for name, buffer in list(module.named_buffers(recurse=False)):
        if buffer.device.type == "meta" and buffer.is_floating_point() and buffer.numel() == 1:
            setattr(module, name, torch.ones_like(buffer, device="cpu"))  # a factor


def new_rotary(rotary: Any) -> nn.Module:
    """Return a rotary embedding as a decoder makes it, with its frequencies, for one on the meta
    device."""
    with torch.device("cpu"):
        made: nn.Module = type(rotary)(rotary.config)
    return made


def frequencies_of(module: nn.Module, *, recurse: bool = True) -> dict[str, Tensor]:
    """Return the buffers in which rotary embeddings hold their frequencies, by path."""
    return {
        path: buffer
        for path, buffer in module.named_buffers(recurse=recurse)
        if path.endswith("inv_freq") and "original" not in path
    }


def rope_type(decoder: nn.Module, path: str) -> str:
    """Return the kind of the rotary embedding that holds a buffer of `frequencies_of`."""
    owner, _, name = path.rpartition(".")
    form = getattr(decoder.get_submodule(owner), "rope_type", "default")
    return str(form[name.removesuffix("_inv_freq")] if isinstance(form, dict) else form)


def candidates(
    angles: Tensor, size: int
) -> Iterator[tuple[tuple[float, ...], tuple[int, ...] | None]]:
    """Return the ways in which frequencies may turn D channels, as in `LayerShape`.

    Pairs are channels i and i + r / 2 of the first r channels, or neighbours, and turn in either
    direction.
    """
    count = 2 * angles.numel()
    rest = list(range(count, size))
    still, half = len(rest) // 2, count // 2
    halves = [*range(half), *rest[:still], *range(half, count), *rest[still:]]
    neighbours = [*range(0, count, 2), *rest[:still], *range(1, count, 2), *rest[still:]]
    for order in (halves, neighbours) if count <= size else ():
        for sign in (1, -1):
            frequencies = (*(sign * angles).tolist(), *(0.0,) * still)
            yield frequencies, None if order == list(range(size)) else tuple(order)


def _path_in(whole: nn.Module, part: nn.Module) -> str | None:
    """Return the path of a module in another; None if it is not in it."""
    return next((name for name, each in whole.named_modules() if each is part), None)
