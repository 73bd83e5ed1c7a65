"""The methods of a cache that an attached model calls."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache as TransformersCache

from agentkv.cache.hf.compat import Handle, outside_compile
from agentkv.cache.layer import CacheLayer
from agentkv.cache.recurrent import RecurrentLayer


class HookedCache(TransformersCache):
    """Methods that the hooks of an attached model call on a cache, in this order.

    `check_input`, `begin`, `note_ids`, `rotary_positions`; `update` and `attend` of every layer;
    then `finish`, `look_back` and `note_logits`, or `leave` if the forward raised.
    """

    embedded_ids: Tensor | None = None
    """Token ids (B, n) that a model of several modalities embeds for its decoder."""
    embedded_mask: Any = None
    """The `attention_mask` that it was given with them."""

    @property
    def is_croppable(self) -> bool:
        """Whether `crop` may forget the newest tokens: it leaves no trace of them, or
        evictions wait for it."""
        return False

    def check_input(self, module: nn.Module, batch: int, num_tokens: int) -> None:
        """Refuse a forward that cannot work. Raises Misuse (ValueError); nothing has changed."""
        raise NotImplementedError

    def begin(self, num_tokens: int, is_token: Tensor | None) -> None:
        """Start a forward that was checked: `finish` ends it, or `leave` if it fails.

        Args:
            num_tokens: new tokens of each sequence, padding included.
            is_token: (B, num_tokens) bool on the CPU, False for padding; None: no padding.

        Raises:
            Misuse: a ValueError; another thread is in the middle of one, or the last did not end.
        """

    def note_ids(self, ids: Tensor | None) -> None:
        """Take the token ids of the forward that began.

        Args:
            ids: (B, n) int32, padding included, on their own device and shared with nobody; None
                for a forward that was given embeddings.
        """

    def rotary_positions(self, given: Tensor | None, num_tokens: int) -> Tensor | None:
        """Return (1 or B, num_tokens) int64, the rotary positions of the new tokens of the forward
        that began; None if transformers counts the same.

        Args:
            given: positions in the sequences, (1 or B, num_tokens), that the forward was called
                with; None: they count on from the tokens that were fed.
        """
        return given

    @property
    def shift_window(self) -> int:
        """Tokens at a forward's end over which `note_residual_shift` wants the mean; 0: no calls.

        Every layer asks in every forward of a model that `watch_residual_shift` watches.
        """
        return 0

    def note_residual_shift(self, layer_idx: int, shift: Tensor) -> None:
        """Take the residual shift of a layer; see `watch_residual_shift`.

        Args:
            shift: (B,) float32 on the layer's device; NaN for a sequence without a new token.
        """

    def recurrent_layer(self, layer_idx: int) -> RecurrentLayer:
        """Return the recurrent states of a decoder layer."""
        raise NotImplementedError

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """Return the state of a convolution, (B, C, width); None before the first forward."""
        return self.recurrent_layer(layer_idx).state(f"conv {state_idx}")

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """Return a recurrent state (B, ...); None before the first forward."""
        return self.recurrent_layer(layer_idx).state(f"recurrent {state_idx}")

    @outside_compile
    def update_conv_state(
        self,
        conv_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Append columns to the state of a convolution; see `RecurrentLayer.put_columns`."""
        layer = self.recurrent_layer(layer_idx)
        return layer.put_columns(f"conv {state_idx}", conv_states, conv_kernel_size)

    @outside_compile
    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> Tensor:
        """Store a recurrent state (B, ...) and return it."""
        return self.recurrent_layer(layer_idx).put(f"recurrent {state_idx}", recurrent_states)

    @outside_compile
    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> Any:
        """Return a handle in place of the keys of a layer, and the values; the attention function
        stores both and attends."""
        return Handle(self, layer_idx, key_states, value_states), value_states

    def attend(
        self,
        module: nn.Module,
        handle: Any,
        query: Tensor,
        mask: Tensor | None,
        scale: float,
        sinks: Tensor | None,
    ) -> Tensor:
        """Store the new tokens of a handle and attend; see `CacheLayer.attend`."""
        raise NotImplementedError

    def can_step(self, num_columns: int) -> bool:
        """Return whether a forward of ids (·, num_columns) may be one compiled step: it gives every
        sequence one token, and compiled code reads all layers."""
        return False

    look_step: Any = None
    """A `LookStep` if the compiled step looks back, else None."""

    def begin_step(
        self, attentions: Sequence[nn.Module], scales: Sequence[float]
    ) -> Sequence[tuple[Sequence[CacheLayer], slice]]:
        """Prepare a compiled step, after `begin`, and return the layers and rows of every cache.

        Args:
            attentions: attention module per layer.
            scales: factor on its logits.
        """
        raise NotImplementedError

    def can_read(self, num_columns: int, dtype: torch.dtype) -> bool:
        """Return whether compiled steps may read a forward of ids (1, num_columns): compiled code
        reads the layers, and keys and values are all that they note and keep.

        Args:
            dtype: of the model.
        """
        return False

    def begin_read(
        self,
        attentions: Sequence[nn.Module],
        scales: Sequence[float],
        num_columns: int,
        dtype: torch.dtype,
    ) -> Sequence[CacheLayer]:
        """Prepare compiled steps that read several tokens, after `begin`, and return the layers.

        Args:
            attentions, scales: as in `begin_step`.
            dtype: as in `can_read`.
        """
        raise NotImplementedError

    def finish(self) -> None:
        """End a forward that all layers have finished."""

    def leave(self) -> None:
        """End a forward of this thread that raised; do nothing if there is none."""

    def note_logits(self, logits: Tensor) -> None:
        """Take the raw logits (B, V) of a forward's last token, which may change afterwards."""

    def look_back(self, model: Any, logits: Tensor) -> Tensor | None:
        """Compute the latest forward's last tokens again where they look back.

        Args:
            model: the attached model.
            logits: raw logits (B, V) after the first pass.

        Returns:
            The logits (B, V) that count; None if no token looks back.
        """
        return None

    def apply_gate(self, logits: Tensor) -> None:
        """Evict down to what the gate allows, given the raw logits (B, V) of the last token."""
        raise NotImplementedError

    def apply_noted_gate(self, logits: Tensor) -> None:
        """Apply the gate to the raw logits of the latest forward; to `logits` if it showed none.

        Args:
            logits: (B, V) of the last token, which logits processors may have changed.
        """
        self.apply_gate(logits)
