"""Tiny models of every family, and a judge: a full cache whose attention hides what it is told
to."""

import copy

import pytest
import torch
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    DynamicCache,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import agentkv
from agentkv.cache.hf.families import describe

VOCAB = 96
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}


def make(family):
    torch.manual_seed(0)
    if family == "gpt2":
        config = GPT2Config(
            vocab_size=VOCAB, n_positions=160, n_embd=32, n_layer=4, n_head=4,
            bos_token_id=None, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        model = GPT2LMHeadModel(config)
    elif family == "gemma3":
        # its own scale, heads wider than hidden / heads, and five layers of six with a window
        sizes = SIZES | {"head_dim": 12, "num_hidden_layers": 6}
        config = Gemma3TextConfig(**sizes, query_pre_attn_scalar=3, sliding_window=12)
        model = Gemma3ForCausalLM(config)
    elif family == "gpt_oss":
        config = GptOssConfig(
            **SIZES, num_local_experts=2, num_experts_per_tok=1, sliding_window=12
        )
        model = GptOssForCausalLM(config)
    else:
        made = {
            "llama": (LlamaConfig, LlamaForCausalLM, {}),
            "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
            "qwen3": (Qwen3Config, Qwen3ForCausalLM, {}),
            "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": None}),
            "mistral-window": (MistralConfig, MistralForCausalLM, {"sliding_window": 24}),
        }[family]
        sizes = {k: v for k, v in SIZES.items() if family != "qwen2" or k != "head_dim"}
        model = made[1](made[0](**sizes, **made[2]))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() >= 2 and "embed" not in name and "wte" not in name:
                weight.mul_(6)  # else attention is flat and anything passes
            if name.endswith("sinks"):
                weight.normal_()
    return model.eval()


FAMILIES = ["llama", "qwen2", "qwen3", "mistral", "mistral-window", "gpt2", "gpt_oss", "gemma3"]
_made = {}


def fresh(family):
    """A model that nobody has attached yet; equal families give equal weights."""
    if family not in _made:
        _made[family] = make(family)
    return copy.deepcopy(_made[family])


@pytest.fixture(scope="session", autouse=True)
def _registered():
    AttentionInterface.register("judge", _judge)
    AttentionMaskInterface.register("judge", lambda *a, attention_mask=None, **kw: attention_mask)


def families(*sample):
    """All families as parameters, of which CI runs some; `test_every_family.py` has the rest."""
    return [
        name if name in sample else pytest.param(name, marks=pytest.mark.exhaustive)
        for name in FAMILIES
    ]


@pytest.fixture(params=families("llama", "mistral-window", "gpt2", "gpt_oss", "gemma3"))
def family(request):
    return request.param


@pytest.fixture
def model_of():
    return fresh


@pytest.fixture
def model(family):
    return fresh(family)


@pytest.fixture
def llama():
    return fresh("llama")


@pytest.fixture(scope="session")
def tokens():
    """(batch, length) -> token ids, always the same; 0 is padding and is not among them."""

    def draw(batch, length, seed=0):
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(1, VOCAB, (batch, length), generator=generator)

    return draw


class Judge:
    """The same weights over transformers' own full cache, in which chosen entries are hidden."""

    def __init__(self, family):
        """`family` is the name of one, or a model that nobody has attached."""
        self.model = fresh(family) if isinstance(family, str) else family
        geometry = describe(self.model)
        self.layers = geometry.layers
        self.sources = [*range(len(self.layers)), *geometry.sources]
        """By decoder layer, the layer that has its keys."""
        self.model.set_attn_implementation("judge")
        self.cache = DynamicCache()  # without a config every layer keeps everything

    @torch.no_grad()
    def follow(self, model, cache, ids, chunks, tolerance, **close):
        """Feed the chunks to `model`, compare the logits of each with the judge's, and yield what
        `cache` keeps after it.

        tolerance: of what the cache stores in a format, see `see_quantised`.
        """
        kept, start = None, 0
        for num_tokens in chunks:
            new = ids[:, start : start + num_tokens]
            logits = model(new, past_key_values=cache).logits
            torch.testing.assert_close(logits, self.logits(new, kept), **close)
            cache.apply_gate(logits[:, -1])
            cache.check()
            kept = [cache.kept(layer) for layer in range(len(cache.cache_layers))]
            self.see_quantised(cache, tolerance)
            yield kept
            start += num_tokens

    @torch.no_grad()
    def logits(self, ids, kept, attention_mask=None, position_ids=None):
        """Logits (B, n, V) of new ids when each layer's past is only what `kept` names.

        kept: per layer, per row, the original positions still there, of all heads or per KV head;
        None for everything.
        """
        past = self.cache.get_seq_length()
        _hidden.clear()
        _windows[:] = [self.layers[source].window for source in self.sources]
        if kept is not None:
            for layer, source in enumerate(self.sources):
                hidden = self._hiding(source, kept[source], past)
                new = hidden.new_zeros(*hidden.shape[:2], ids.shape[1])
                _hidden[layer] = torch.cat([hidden, new], dim=2)[:, :, None]
        more = {} if position_ids is None else {"position_ids": position_ids}
        out = self.model(
            ids, past_key_values=self.cache, attention_mask=attention_mask, use_cache=True, **more
        )
        return out.logits

    @torch.no_grad()
    def at_once(self, ids, cuts):
        """Logits (B, n, V) of one forward over all ids, without a cache.

        cuts: pairs (start, kept); tokens from `start` on, up to the next cut, see of the tokens
        before `start` only what `kept` names.
        """
        _hidden.clear()
        _windows[:] = [layer.window for layer in self.layers]
        batch, num_tokens = ids.shape
        ends = [*(start for start, _ in cuts[1:]), num_tokens]
        for layer in range(self.model.config.num_hidden_layers):
            heads = self.layers[layer].num_heads
            hidden = torch.zeros(batch, heads, num_tokens, num_tokens, dtype=torch.bool)
            for (start, kept), end in zip(cuts, ends, strict=True):
                hidden[:, :, start:end, :start] = self._hiding(layer, kept[layer], start)[
                    :, :, None
                ]
            _hidden[layer] = hidden
        return self.model(ids, use_cache=False).logits

    @property
    def weights(self):
        """By layer, what the latest forward's queries gave each row: (B, H * G, n, T) float64."""
        return dict(_weights)

    def _hiding(self, layer, of_rows, past):
        """(B, H, past) bool: True where a KV head's row is gone."""
        num_heads = self.layers[layer].num_heads
        hidden = torch.ones(len(of_rows), num_heads, past, dtype=torch.bool)
        for row, of_heads in enumerate(of_rows):
            if torch.is_tensor(of_heads):
                of_heads = [of_heads] * num_heads
            for head, positions in enumerate(of_heads):
                hidden[row, head, positions] = False
        return hidden

    def see_quantised(self, cache, tolerance):
        """Let rows be what `cache` reads them back as, wherever it holds them quantized.

        Asserts that they are within `tolerance` (relative, Frobenius) of what they were.
        """
        for own, store in zip(self.cache.layers, cache.cache_layers, strict=True):
            lanes = store.storage
            width = lanes.layout.num_heads
            for lane, count in enumerate(lanes.num_quantized):
                if not count:
                    continue
                sequence, number = divmod(lane, lanes.layout.segments_per_sequence)
                heads = slice(number * width, (number + 1) * width)
                places = lanes.positions(lane)[:count].long()
                read = lanes.parts(lane)[0].decode(torch.float32)
                for mine, theirs in zip((own.keys, own.values), read, strict=True):
                    rows = mine[sequence, heads]
                    error = (theirs[0] - rows[:, places]).norm()
                    assert error <= tolerance * rows[:, places].norm()
                    rows[:, places] = theirs[0].to(rows.dtype)


_hidden = {}
_windows = []
_weights = {}


def _judge(module, query, key, value, attention_mask, scaling=None, s_aux=None, **kwargs):
    q, k, v, mask = query, key, value, attention_mask
    sliding_window = _windows[module.layer_idx]
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, dim=1) for x in (k, v))
    scaling = q.shape[-1] ** -0.5 if scaling is None else scaling
    logits = torch.einsum("bhqd,bhtd->bhqt", q.double(), k) * scaling
    num_q, num_kv = logits.shape[-2:]
    behind = torch.arange(num_kv - num_q, num_kv)[:, None] - torch.arange(num_kv)
    hidden = (behind < 0)[None]
    if sliding_window is not None:
        hidden = hidden | (behind >= sliding_window)
    if mask is not None:
        hidden = hidden | ~mask.bool()[:, None, :]
    hidden = hidden[:, None]
    if module.layer_idx in _hidden:
        hidden = hidden | _hidden[module.layer_idx].repeat_interleave(group, dim=1)
    logits = logits.masked_fill(hidden, -torch.inf)
    if s_aux is not None:
        column = s_aux.double().view(1, -1, 1, 1).expand(*logits.shape[:3], 1)
        logits = torch.cat([logits, column], dim=-1)
    p = logits.softmax(dim=-1).nan_to_num(0.0)[..., :num_kv]
    _weights[module.layer_idx] = p
    return torch.einsum("bhqt,bhtd->bqhd", p, v).to(q.dtype).contiguous(), None


@pytest.fixture
def judge():
    return Judge


@pytest.fixture
def kept_of():
    """cache -> per layer, per row: positions, as `Judge.logits` takes them."""
    return lambda cache: [
        [heads[0] for heads in cache.kept(layer)] for layer in range(len(cache.layers))
    ]


@pytest.fixture
def kept_by_head():
    """cache -> per layer, per row, per KV head: positions, as `Judge.logits` takes them too."""
    return lambda cache: [cache.kept(layer) for layer in range(len(cache.layers))]


@pytest.fixture
def cache_for():
    return agentkv.Cache.for_model
