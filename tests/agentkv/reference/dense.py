"""A model that remembers everything and is made to overlook what a policy has dropped.

Nothing here is shared with agentkv: keys, values and queries are kept for every token ever seen, in
numpy and float64, and every query attends in a loop of its own to the tokens its head still holds.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

ATTENTION = "reference-dense"


class Layer:
    """All tokens seen by one attention layer, and those that each key-value head still holds."""

    def __init__(self, output: nn.Module) -> None:
        self.held: list[list[int]] = []
        """Per key-value head: positions, ascending."""
        self.num_seen = 0
        self.sliding: int | None = None
        """The model's own window, if this layer has one: policies leave the layer alone."""
        self.before = self.added = np.zeros((0, 0))
        """(n, hidden): the residual stream before the latest forward's attention, and what the
        attention added to it."""
        self._output = output
        self.before_attention: Callable[[Layer], None] | None = None
        """Called in a second pass once the new token is held, and before it attends."""

    def rewind(self, count: int = 1) -> None:
        """Forget the newest tokens."""
        self.num_seen -= count
        self.queries, self.keys = self.queries[:, :, :-count], self.keys[:, :-count]
        self.values = self.values[:, :-count]
        for held in self.held:
            held[:] = [i for i in held if i < self.num_seen]

    def attend(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        scaling: float,
        sinks: np.ndarray | None,
    ) -> np.ndarray:
        """Append n tokens and attend: queries (H, G, n, D), the others (H, n, D); (H, G, n, D)."""
        if not self.num_seen:
            self.queries, self.keys, self.values = queries, keys, values
            self.held = [[] for _ in keys]
        else:
            self.queries = np.concatenate([self.queries, queries], axis=2)
            self.keys = np.concatenate([self.keys, keys], axis=1)
            self.values = np.concatenate([self.values, values], axis=1)
        self.scaling, self.sinks = scaling, sinks
        num_heads, group, num_new, _ = queries.shape
        first, self.num_seen = self.num_seen, self.num_seen + num_new
        for held in self.held:
            held.extend(range(first, self.num_seen))
        if self.before_attention is not None:
            self.before_attention(self)
        self.weights = np.zeros((num_heads, group, num_new, self.num_seen))
        """(H, G, n, seen): what the latest forward's queries gave every token; 0 if not held."""
        for h in range(num_heads):
            for g in range(group):
                for j in range(num_new):
                    self.weights[h, g, j] = self.weights_of(h, g, first + j)
        return self.weights @ self.values[:, None]

    def weights_of(self, head: int, member: int, position: int) -> np.ndarray:
        """(seen,): what one query gives every token that its head holds now; 0 elsewhere."""
        held = np.array(self.held[head])
        visible = held[held <= position]
        if self.sliding is not None:
            visible = visible[position - visible < self.sliding]
        logits = self.keys[head, visible] @ self.queries[head, member, position] * self.scaling
        odds = np.exp(logits - logits.max())
        total = odds.sum()
        if self.sinks is not None:  # gpt-oss: a learned logit that takes mass and gives nothing
            total += np.exp(self.sinks[head, member] - logits.max())
        weights = np.zeros(self.num_seen)
        weights[visible] = odds / total
        return weights

    def window(self, head: int, num_queries: int) -> np.ndarray:
        """(G, w, T): what the last w queries give the T tokens the head holds."""
        last = range(self.num_seen - num_queries, self.num_seen)
        group = self.queries.shape[1]
        rows = [[self.weights_of(head, g, j) for j in last] for g in range(group)]
        return np.array(rows)[..., self.held[head]]

    def projection(self, head: int, member: int) -> np.ndarray:
        """(D, hidden): the rows of the output projection that belong to one query head."""
        weight = self._output.weight.detach().numpy()
        if isinstance(self._output, nn.Linear):
            weight = weight.T  # GPT-2's Conv1D has it as (in, out) already
        group, size = self.queries.shape[1], self.queries.shape[3]
        start = (head * group + member) * size
        return weight[start : start + size]


class Dense:
    """A model in float64 that attends as its layers' `held` say. Batch of one."""

    def __init__(self, model: PreTrainedModel) -> None:
        AttentionInterface.register(ATTENTION, _attention)
        AttentionMaskInterface.register(ATTENTION, lambda *args, **kwargs: None)
        model.set_attn_implementation(ATTENTION)
        self.model = model.double()
        self.layers: list[Layer] = []
        self.num_seen = 0
        for block in model.modules():
            attention = getattr(block, "self_attn", None) or getattr(block, "attn", None)
            if attention is None:
                continue
            layer = Layer(attention.c_proj if hasattr(attention, "c_proj") else attention.o_proj)
            attention.reference_layer = layer
            self.layers.append(layer)
            block.register_forward_pre_hook(_enter, with_kwargs=True)
            attention.register_forward_hook(_leave)

    @torch.no_grad()
    def forward(self, ids: Sequence[int]) -> np.ndarray:
        """The last token's logits (V,), after these tokens have been taken in."""
        places = torch.arange(self.num_seen, self.num_seen + len(ids))[None]
        self.num_seen += len(ids)
        out = self.model(torch.tensor([ids]), position_ids=places, use_cache=False)
        return out.logits[0, -1].numpy()

    def rewind(self, count: int) -> None:
        """Forget the newest tokens."""
        self.num_seen -= count
        for layer in self.layers:
            layer.rewind(count)

    def again(self, id: int, before_attention: Callable[[Layer], None]) -> np.ndarray:
        """The logits (V,) of the newest token, taken in once more."""
        self.rewind(1)
        for layer in self.layers:
            layer.before_attention = before_attention
        logits = self.forward([id])
        for layer in self.layers:
            layer.before_attention = None
        return logits


def _attention(module, q, k, v, mask, scaling=None, sliding_window=None, s_aux=None, **kwargs):
    layer = module.reference_layer
    layer.sliding = sliding_window
    _, num_heads, num_new, size = k.shape
    grouped = q[0].view(num_heads, -1, num_new, size)
    out = layer.attend(
        grouped.numpy(),
        k[0].numpy(),
        v[0].numpy(),
        size**-0.5 if scaling is None else scaling,
        None if s_aux is None else s_aux.double().view(num_heads, -1).numpy(),
    )
    return torch.from_numpy(out).view(1, -1, num_new, size).transpose(1, 2), None


def _enter(block, args, kwargs):
    stream = args[0] if args else kwargs["hidden_states"]
    attention = getattr(block, "self_attn", None) or block.attn
    attention.reference_layer.before = stream[0].numpy()


def _leave(attention, args, output):
    attention.reference_layer.added = output[0][0].numpy()
