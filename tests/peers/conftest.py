"""The set-up of the comparison: tiny models, one prompt, what every layer did with it, and what
kvpress keeps of it.

Matrices are scaled by 6, else attention is flat and ties decide what is kept. There is no padding:
kvpress scores it like text.
"""

import copy
import warnings
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from agentkv.policies.entries import AttentionUpdate, Drop, Entries, Queries

with warnings.catch_warnings():
    # its command line imports a module that Python deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    import kvpress  # noqa: F401

BATCH, LENGTH, VOCAB = 2, 96, 128
FAMILIES = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}
_made = {}


def _fresh(family, attention="sdpa"):
    """A model nobody has touched: equal families give equal weights."""
    if family not in _made:
        of_config, of_model = FAMILIES[family]
        torch.manual_seed(0)
        model = of_model(
            of_config(
                vocab_size=VOCAB,
                hidden_size=64,
                intermediate_size=96,
                num_hidden_layers=4,
                num_attention_heads=8,
                num_key_value_heads=2,
                head_dim=16,
                bos_token_id=None,
                eos_token_id=None,
                pad_token_id=None,
            )
        )
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if weight.dim() >= 2 and "embed" not in name:
                    weight.mul_(6)
        _made[family] = model.eval()
    model = copy.deepcopy(_made[family])
    model.set_attn_implementation(attention)
    return model


def _draw(batch=BATCH, length=LENGTH, seed=0):
    return torch.randint(VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Layer:
    """Tensors of one layer for the prompt, without any press."""

    module: nn.Module
    hidden: Tensor
    """(B, T, hidden size), what goes into the attention block."""
    rotation: tuple[Tensor, Tensor]
    """Cosines and sines, (1 or B, T, D) each."""
    queries: Tensor
    """(B, H * G, T, D), rotated."""
    keys: Tensor
    """(B, H, T, D), rotated."""
    values: Tensor

    @property
    def weights(self):
        """(B, H, G, T, T) float32: softmax of every query over the keys up to its own."""
        batch, num_heads, length, head_dim = self.keys.shape
        grouped = self.queries.unflatten(1, (num_heads, -1))
        logits = grouped @ self.keys[:, :, None].transpose(-1, -2) * head_dim**-0.5
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        return logits.masked_fill(future, -torch.inf).softmax(-1)

    def last_queries(self, row, count):
        """The last queries of a sequence, as a policy sees them."""
        num_heads, length, head_dim = self.keys.shape[1:]
        rotated = self.queries[row].unflatten(0, (num_heads, -1))[:, :, -count:] * head_dim**-0.5
        angles = self.module.rotary_emb.inv_freq.expand(num_heads, -1)
        return Queries(rotated, torch.arange(max(0, length - count), length), angles)

    def norms(self, of_queries):
        """(B, H, T, G) L1 norms of the projected values, or their means (B, H, T, 1)."""
        batch, num_heads, length, head_dim = self.values.shape
        output = self.module.o_proj.weight.T.unflatten(0, (num_heads, -1, head_dim))
        each = torch.einsum("bhtd,hgdo->bhtgo", self.values, output).abs().sum(-1)
        return each if of_queries == "each" else each.mean(-1, keepdim=True)

    def call(self, press, **more):
        """(B, H, T): what the press's own `score` gives the rows."""
        kwargs = {"position_embeddings": self.rotation}
        with torch.no_grad():
            return press.score(
                self.module, self.hidden, self.keys, self.values, more.get("attentions"), kwargs
            )


_seen = {}


def _record(module, query, key, value, attention_mask, **kwargs):
    _seen[module.layer_idx] = [query, key, value]
    return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)


@torch.no_grad()
def _layers_of(family, ids):
    """Every `Layer` of a forward over the whole prompt."""
    AttentionInterface.register("recorder", _record)
    model = _fresh(family, "recorder")
    inputs = {}

    def note(module, args, kwargs):
        inputs[module.layer_idx] = kwargs["hidden_states"], kwargs["position_embeddings"]

    modules = [layer.self_attn for layer in model.model.layers]
    for module in modules:
        module.rotary_emb = model.model.rotary_emb  # as a press does
        module.register_forward_pre_hook(note, with_kwargs=True)
    model(ids)
    return [Layer(m, *inputs[i], *_seen[i]) for i, m in enumerate(modules)]


def _rows_of(layer, row, policy):
    """One sequence's rows as a fitted policy sees them right after the prompt."""
    num_heads, length = layer.keys.shape[1:3]
    weights, selector = layer.weights[row], policy.selector
    by_lane = (
        weights.mean((0, 1))[None] if policy.allocator.shared else weights.mean(1)
    )  # (S, T, T)
    positions = torch.arange(length, dtype=torch.int32).expand(by_lane.shape[0], -1)
    tracked = None
    if (tracker := policy.scorer.tracker) is not None:
        num_queries = tracker.num_queries(length)
        seen = AttentionUpdate(
            mass=by_lane[:, length - num_queries :].mean(1),
            num_queries=num_queries,
            first=0,
            num_new=length,
            each=lambda last: by_lane[:, length - last :],
        )
        tracked = torch.zeros(*positions.shape, tracker.size, dtype=tracker.dtype)
        tracker.update(tracked, seen)
    return Entries(
        positions=positions,
        num_seen=length,
        num_heads=num_heads,
        sinks=selector.sinks,
        protected=selector.protected,
        tracked=tracked,
        norms=None if selector.norms is None else layer.norms(selector.norms)[row],
        attention=lambda: weights[:, :, length - policy.scorer.window :],
        keys_values=lambda: (layer.keys[row], layer.values[row]),
        queries=lambda: layer.last_queries(row, policy.scorer.window),
    )


def _kept_of(layers, policy):
    """Per layer (B, H, T) bool: the rows a fitted policy leaves of the prompt."""
    batch, num_heads, length = layers[0].keys.shape[:3]
    budgets = policy.allocator.layers(policy.gate.ceiling, len(layers), length)
    kept = []
    for layer, budget in zip(layers, budgets, strict=True):
        of_rows = []
        for row in range(batch):
            rows = _rows_of(layer, row, policy)
            scores = None
            if not policy.scorer.by_age:
                scores = policy.scorer.scores(rows)
                if policy.allocator.shared:
                    scores = scores.mean(0, keepdim=True)
            target = policy.gate.target(budget, length)
            verdict = policy.selector.select(rows, scores, target, policy.allocator)
            if isinstance(verdict, Drop):
                stays = torch.ones(length, dtype=torch.bool)
                stays[verdict.start : verdict.stop] = False
                verdict = stays[None]
            of_rows.append(verdict.expand(num_heads, -1))
        kept.append(torch.stack(of_rows))
    return kept


@torch.no_grad()
def _kept_by(press, family, ids, attention="sdpa"):
    """Per layer (B, H, T) bool: the rows a press leaves of the prompt.

    A press that compresses rewrites the cache in the order of its scores, and its rows are found
    again among the uncompressed; one that masks names what it hides.
    """
    model, full = _fresh(family, attention), DynamicCache()
    model.model(ids, past_key_values=full)
    cache = DynamicCache()
    with press(model):
        model.model(ids, past_key_values=cache)
    kept = []
    for layer, whole, left in zip(model.model.layers, full.layers, cache.layers, strict=True):
        hidden = getattr(layer.self_attn, "masked_key_indices", None)
        if hidden is not None:
            assert left.keys.shape == whole.keys.shape
            stays = torch.ones(whole.keys.shape[:3], dtype=torch.bool)
            stays[hidden] = False
        else:
            same = (left.keys[:, :, :, None] == whole.keys[:, :, None]).all(-1)  # (B, H, n, T)
            assert (same.sum(-1) == 1).all(), "a kept row was not found, or found twice"
            stays = same.any(2)
            assert (stays.sum(-1) == left.keys.shape[2]).all()
        kept.append(stays)
    return kept


@pytest.fixture(params=sorted(FAMILIES))
def family(request):
    return request.param


@pytest.fixture
def model_of():
    """(family, attention) -> a model of its own."""
    return _fresh


@pytest.fixture
def draw():
    """(batch, length, seed) -> token ids, always the same."""
    return _draw


@pytest.fixture
def ids():
    return _draw()


@pytest.fixture
def layers(family, ids):
    return _layers_of(family, ids)


@pytest.fixture
def layers_of():
    return _layers_of


@pytest.fixture
def rows_of():
    return _rows_of


@pytest.fixture
def kept_of():
    return _kept_of


@pytest.fixture
def kept_by():
    return _kept_by
