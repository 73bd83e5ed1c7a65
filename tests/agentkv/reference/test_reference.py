"""Every named policy keeps what plain loops over its paper keep, token by token.

Both sides run the same tiny model. The reference keeps every token in float64 and overlooks those
that a loop has dropped (`dense.py`, `loops.py`, `formats.py`); the cache really drops them. After
every forward of two turns, which may read several chunks, both must hold the same positions in
every layer and head, and give the same logits, which also shows how what is held is stored.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
import torch
from transformers import (
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
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import agentkv
from agentkv.cache.hf.compat import cache_in
from agentkv.policies.registry import NAMED
from tests.agentkv.reference import formats, loops
from tests.agentkv.reference.dense import Dense
from tests.sampling import sampled

Forward = list[list[int]]
"""The token ids that one forward reads, chunk by chunk."""

VOCAB = 64
CHUNK = 24
NEAR = 1e-5
"""Decisions of the loops that are closer than this, relative, excuse a difference in their layer:
models round norms and rotations to float32, and the cache's scores are float32."""
CLOSE = 2e-5
"""Largest distance of logits up to 10: the cache attends in float32."""
EXCUSED = 2
"""Most layers and forwards of a run that may be excused, of over a hundred."""


def model_of(family: str) -> PreTrainedModel:
    """Three layers; equal families give equal weights, sharp enough that attention has opinions."""
    torch.manual_seed(0)
    sizes = {
        "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
    }  # fmt: skip
    mixed = sizes | {
        "num_hidden_layers": 4,
        "layer_types": ["full_attention", "sliding_attention", "full_attention", "full_attention"],
        "sliding_window": 12,
    }
    if family == "gpt2":
        config = GPT2Config(
            vocab_size=VOCAB, n_positions=160, n_embd=32, n_layer=3, n_head=2,
            bos_token_id=None, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        model = GPT2LMHeadModel(config)
    elif family == "gemma3":
        config = Gemma3TextConfig(**mixed, query_pre_attn_scalar=3)
        model = Gemma3ForCausalLM(config)
    elif family == "gpt_oss":
        config = GptOssConfig(**mixed, num_local_experts=2, num_experts_per_tok=1)
        config._experts_implementation = "eager"  # the grouped one has no float64
        model = GptOssForCausalLM(config)
    elif family == "qwen2":
        del sizes["head_dim"]
        model = Qwen2ForCausalLM(Qwen2Config(**sizes))
    elif family == "mistral":
        model = MistralForCausalLM(MistralConfig(**sizes, sliding_window=None))
    elif family == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**sizes))
    else:
        assert family == "llama"
        model = LlamaForCausalLM(LlamaConfig(**sizes))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() >= 2 and "embed" not in name and "wte" not in name:
                weight.mul_(6)
            if name == "lm_head.weight":
                weight.mul_(4)  # some tokens are sure, others not
            if name.endswith("sinks"):
                weight.normal_()
    return model.double().eval()


@dataclass(frozen=True)
class Case:
    """One policy: its parameters here, the same as loops, and the family it is run on."""

    family: str
    loops: Callable[[], loops.Policy]
    parameters: dict[str, object] = field(default_factory=dict)
    budget: int | None = 28
    pages: tuple[int, int] = (46, 40)
    """Tokens of the page that either turn begins with."""
    replies: tuple[int, int] = (10, 6)
    """Tokens of the reply to either page."""
    compares_layers: bool = False
    """The policy acts between forwards only, so that `feed` reads one chunk per forward."""
    went_all_ways: Callable[[loops.Policy], bool] = lambda policy: True
    """Return True if a run exercised everything special about the policy."""


SMALL = {"window": 6, "kernel": 3}
COMING = {"queries": 18, "horizon": 30, "sinks": 3}
STEEP = SMALL | {"beta": 4}
SURE = {"threshold": 0.45, "tight": 16, "protected": 5}
LOOKS = {"threshold": 0.5, "blocks": 2, "block": 4, "sinks": 3}
INT8_LOOKS = LOOKS | {"threshold": 0.55}
AGED = {"threshold": 0.45, "tight": 60, "protected": 5, "recent": 6}
INT8 = {
    "budget": 150,
    "pages": (100, 150),
    "replies": (14, 8),
    "went_all_ways": lambda p: wavered(p) and packed(p),
}


def stored(family: str, how: type[formats.Int8] | type[formats.ByToken]) -> Case:
    """Nothing goes, and old tokens are quantized."""
    return Case(family, lambda: loops.Quantised(6, how), {"recent": 6}, budget=None)


def wavered(policy: loops.ConfKV) -> bool:
    return 0 < sum(policy.was_sure) < len(policy.was_sure)


def packed(policy: loops.ConfKVInt8) -> bool:
    return any(stored.num_packed for stored in policy.storage.stored.values())


CASES = {
    "full": Case("llama", lambda: loops.Policy(None), budget=None),
    "window": Case("gpt_oss", lambda: loops.Window(28)),
    "window-by-span": Case(
        "qwen2",
        lambda: loops.WindowBySpan(28, left=0.5, replies=3.0),
        {"left": 0.5, "replies": 3.0},
    ),
    "streaming": Case("gemma3", lambda: loops.Window(28, sinks=3), {"sinks": 3}),
    "lookback": Case(
        "llama",
        lambda: loops.Lookback(28, **LOOKS),
        {**LOOKS, "format": "dense", "slack": 0, "short": 0},
        went_all_ways=lambda policy: 4 < sum(policy.looked) < len(policy.looked) - 4,
    ),
    "h2o": Case("gpt2", lambda: loops.H2O(28)),
    "scissorhands": Case(
        "qwen2",
        lambda: loops.Scissorhands(28, history=20, protected=4, drop=0.5),
        {"history": 20, "protected": 4},
    ),
    "lazy-eviction": Case(
        "mistral",
        lambda: loops.LazyEviction(28, threshold=0.02, window=5),
        {"threshold": 0.02, "protected": 5, "slack": 4},
        pages=(58, 51),
        went_all_ways=lambda p: {0, 1, 2, 3, 4} < {p.longest(*token) for token in p.times},
    ),
    "keydiff": Case("qwen3", lambda: loops.KeyDiff(28)),
    "expected-attention": Case(
        "gemma3",
        lambda: loops.ExpectedAttention(28, **COMING, frequencies=loops.frequencies(1e6, 8)),
        COMING,
    ),
    "triattention": Case(
        "llama",
        lambda: loops.TriAttention(
            28, queries=18, horizon=40, protected=4, frequencies=loops.frequencies(1e4, 8)
        ),
        {"queries": 18, "horizon": 40, "protected": 4, "slack": 0},
    ),
    "tova": Case("mistral", lambda: loops.Tova(28)),
    "r-kv": Case(
        "gpt2",
        lambda: loops.RKV(28, **SMALL),
        SMALL | {"slack": 0},
        went_all_ways=lambda p: p.num_alike > 99,
    ),
    "snapkv": Case("gpt_oss", lambda: loops.SnapKV(28, **SMALL), SMALL),
    "snapkv-by-phase": Case(
        "qwen2",
        lambda: loops.SnapKVByPhase(28, **SMALL),
        SMALL,
        went_all_ways=lambda policy: policy.num_mixed > 50,
    ),
    "snapkv-by-span": Case(
        "llama",
        lambda: loops.SnapKVBySpan(28, **SMALL, left=0.3, replies=2.0),
        SMALL | {"left": 0.3, "replies": 2.0},
    ),
    "pyramidkv": Case("qwen3", lambda: loops.Pyramid(28, **STEEP), STEEP),
    "ada-snapkv": Case("gemma3", lambda: loops.AdaSnapKV(28, **SMALL, floor=0.2), SMALL),
    "ada-pyramidkv": Case("mistral", lambda: loops.AdaPyramid(28, **STEEP, floor=0.2), STEEP),
    "critical-snapkv": Case("gpt2", lambda: loops.CriticalSnapKV(28, **SMALL), SMALL),
    "critical-pyramidkv": Case("qwen2", lambda: loops.CriticalPyramid(28, **STEEP), STEEP),
    "critical-ada-snapkv": Case(
        "llama", lambda: loops.CriticalAdaSnapKV(28, **SMALL, floor=0.2), SMALL
    ),
    # many tokens, so that whole numbers of them show the ratio
    "arkv": Case(
        "qwen3",
        lambda: loops.Arkv(66, window=6, kernel=5),
        {"window": 6},
        budget=66,
        pages=(90, 51),
        compares_layers=True,
        went_all_ways=lambda policy: min(policy.ratios) < 0.9 and bool(policy.quantized),
    ),
    "edie": Case("gemma3", lambda: loops.Edie(28, **SMALL), SMALL),
    "edie-tada": Case(
        "llama",
        lambda: loops.EdieTada(28, **SMALL),
        SMALL,
        pages=(58, 51),
        compares_layers=True,
    ),
    "conf-kv": Case("mistral", lambda: loops.ConfKV(28, **SURE), SURE, went_all_ways=wavered),
    "conf-kv-int8": Case("gpt_oss", lambda: loops.ConfKVInt8(150, **AGED), AGED, **INT8),
    "conf-kv-l": Case("qwen2", lambda: loops.ConfKVL(150, **AGED), AGED, **INT8),
    "streaming-int8": Case(
        "llama",
        lambda: loops.WindowInt8(150, sinks=3, recent=6),
        {"sinks": 3, "recent": 6},
        budget=150,
        pages=(100, 150),
        went_all_ways=lambda policy: all(map(len, policy.storage.stored.values())),
    ),
    "lookback-int8": Case(
        "llama",
        lambda: loops.LookbackInt8(150, recent=6, **INT8_LOOKS),
        {**INT8_LOOKS, "recent": 6, "format": "dense", "slack": 0, "short": 0},
        budget=150,
        pages=(100, 150),
        replies=(14, 8),
        went_all_ways=lambda policy: (
            all(map(len, policy.storage.stored.values()))
            and 4 < sum(policy.looked) < len(policy.looked) - 4
        ),
    ),
    "lookback-int4": Case(
        "llama",
        lambda: loops.LookbackInt4(150, recent=6, blocks=2, block=4, sinks=3, draw=0.02),
        {
            **{"recent": 6, "blocks": 2, "block": 4, "sinks": 3, "draw": 0.02},
            **{"format": "dense", "slack": 0, "short": 0},
        },
        budget=150,
        pages=(100, 150),
        replies=(14, 8),
        went_all_ways=lambda policy: (
            all(map(len, policy.storage.stored.values())) and sum(policy.looked) > 4
        ),
    ),
    "int8": stored("qwen3", formats.Int8),
    "int8-max": stored("qwen2", formats.Int8Max),
    "fp8": stored("llama", formats.Fp8),
    "int4": stored("gemma3", formats.Int4),
    "nf4": stored("mistral", formats.Nf4),
}


def bounded(
    name: str, bound: int, make: Callable[..., loops.Lookback], **parameters: object
) -> Case:
    """A case whose cold tier is bounded."""
    case = CASES[name]
    return replace(
        case,
        loops=lambda: make(case.budget, cold=bound, **parameters),
        parameters={**case.parameters, "cold": bound},
        went_all_ways=lambda policy: policy.num_forgotten > 99 and sum(policy.looked) > 3,
    )


DRAWN = {"recent": 6, "blocks": 2, "block": 4, "sinks": 3, "draw": 0.02}
BOUNDED = {
    "lookback": bounded("lookback", 24, loops.Lookback, **LOOKS),
    "lookback-int8": bounded("lookback-int8", 50, loops.LookbackInt8, recent=6, **INT8_LOOKS),
    "lookback-int4": bounded("lookback-int4", 50, loops.LookbackInt4, **DRAWN),
}
"""Policies that look back, whose cold tiers forget."""


def test_no_named_policy_is_without_loops():
    assert set(CASES) == set(NAMED)


class Reference:
    """A dense model under a policy in loops."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.dense = Dense(model_of(case.family))
        self.policy = case.loops()
        self.excused = 0
        self.margins: list[float] = []
        """Per layer: the closest decision of the latest forward, relative."""

    def forward(self, chunks: Forward) -> torch.Tensor:
        """The last token's logits (V,). Only the last chunk has logits: the gate acts once."""
        margins = []
        for number, ids in enumerate(chunks, 1):
            self.policy.before(len(ids))
            logits = self.dense.forward(ids)
            is_last = number == len(chunks)
            self.policy.step(self.dense.layers, len(ids), logits if is_last else None)
            margins.append(self.policy.margins)
        logits = self.policy.look_back(self.dense, ids[-1], logits)
        margins.append(self.policy.margins)
        self.margins = [min(of_layer) for of_layer in zip(*margins, strict=True)]
        return torch.from_numpy(logits)

    def read_ahead(self, chunks: Forward) -> None:
        """Show the policy the input of the next forward."""
        ids = [id for chunk in chunks for id in chunk]
        self.policy.margins = self.margins
        if len(ids) > 1:
            self.policy.read_ahead(self.dense, ids)

    def assert_held(self, kept: list[list[list[int]]], where: str) -> None:
        """Compare with the cache's, per layer and head; after a near tie, go on as the cache."""
        for number, layer in enumerate(self.policy.layers):
            mine, theirs = map(sorted, layer.held), kept[self.dense.layers.index(layer)]
            mine = list(mine)
            if mine != theirs:
                only = [
                    f"{sorted(set(a) - set(b))} against {sorted(set(b) - set(a))}"
                    for a, b in zip(mine, theirs, strict=True)
                ]
                assert self.margins[number] < NEAR, (
                    f"{where}, layer {number}: only the paper's against only the cache's, per "
                    f"head: {'; '.join(only)}. The closest decision was by "
                    f"{self.margins[number]:.1e}"
                )
                self.excused += 1
                layer.held[:] = [list(held) for held in theirs]


def kept_by(cache: agentkv.Cache) -> list[list[list[int]]]:
    return [[head.tolist() for head in cache.kept(n)[0]] for n in range(len(cache.layers))]


def page_of(case: Case, turn: int) -> list[int]:
    generator = torch.Generator().manual_seed(turn)
    return torch.randint(1, VOCAB, (case.pages[turn],), generator=generator).tolist()


class Watched:
    """A model with a cache, and what the cache held after every forward and its gate."""

    def __init__(self, case: Case, name: str) -> None:
        self.model = model_of(case.family)
        policy = agentkv.policy(name, **case.parameters)
        self.cache = agentkv.Cache.for_model(
            self.model, policy=policy, budget=case.budget, chunk=CHUNK
        )
        self.held: list[list[list[list[int]]]] = []
        self.logits: list[torch.Tensor] = []
        """Logits of the last token of every forward, (V,)."""
        self.sizes: list[int] = []
        self.model.register_forward_pre_hook(self._before, with_kwargs=True)
        self.model.register_forward_hook(self._after, with_kwargs=True)

    def _before(self, module: object, args: tuple, kwargs: dict) -> None:
        if cache_in(kwargs) is not self.cache:
            return  # a second pass
        if self.sizes:
            self.held.append(kept_by(self.cache))
        self.sizes.append((args[0] if args else kwargs["input_ids"]).shape[1])
        kind = "page" if self.sizes[-1] > 1 else "reply"
        self.cache.label(f"{kind} {len(self.sizes)}", self.sizes[-1])

    def _after(self, module: object, args: tuple, kwargs: dict, output: object) -> None:
        if cache_in(kwargs) is self.cache:
            self.logits.append(output.logits[0, -1])

    def end(self) -> None:
        self.held.append(kept_by(self.cache))
        self.cache.check()


@torch.no_grad()
@pytest.mark.parametrize("name", CASES)
def test_what_feed_keeps_is_what_the_paper_says(name):
    case = CASES[name]
    follow_fed(case, name)


@torch.no_grad()
@pytest.mark.parametrize("name", BOUNDED)
def test_what_a_bounded_cold_tier_holds_is_what_the_loops_hold(name):
    watched, reference = follow_fed(BOUNDED[name], name)
    assert not reference.excused
    for layer, own in zip(watched.cache.cache_layers, reference.policy.layers, strict=True):
        assert layer.cold.storage.positions(0).tolist() == reference.policy.tier[own]


def follow_fed(case: Case, name: str) -> tuple[Watched, Reference]:
    """Feed two turns to a cache and to the loops."""
    watched, reference = Watched(case, name), Reference(case)
    forwards: list[Forward] = []
    for turn, length in enumerate(case.replies):
        page = page_of(case, turn)
        logits = watched.cache.feed(watched.model, torch.tensor([page]))
        size = len(page) if watched.cache.prefill == "whole" else CHUNK
        chunks = [page[n : n + size] for n in range(0, len(page), size)]
        forwards += [[chunk] for chunk in chunks] if case.compares_layers else [chunks]
        for _ in range(length):
            forwards.append([[int(logits[0].argmax())]])
            logits = watched.cache.feed(watched.model, torch.tensor(forwards[-1]))
    watched.end()
    assert watched.sizes == [sum(map(len, chunks)) for chunks in forwards]
    follow(reference, watched, forwards)
    return watched, reference


@torch.no_grad()
@pytest.mark.parametrize("name", sampled(CASES, every=6))
def test_what_generate_keeps_is_what_the_paper_says(name):
    case = CASES[name]
    watched, reference = Watched(case, name), Reference(case)
    forwards, ids = [], torch.zeros(1, 0, dtype=torch.long)
    for turn, length in enumerate(case.replies):
        fed = watched.cache.seen
        ids = torch.cat([ids, torch.tensor([page_of(case, turn)])], dim=1)
        ids = watched.model.generate(
            ids, past_key_values=watched.cache, logits_processor=[watched.cache.gate()],
            attention_mask=torch.ones_like(ids), max_new_tokens=length, do_sample=False,
        )  # fmt: skip
        fed = fed if isinstance(fed, int) else int(fed[0])
        whole = ids[0].tolist()
        forwards += [[whole[fed:-length]], *([[token]] for token in whole[-length:-1])]
    watched.end()
    assert watched.sizes == [sum(map(len, chunks)) for chunks in forwards]
    follow(reference, watched, forwards)


def follow(reference: Reference, watched: Watched, forwards: list[Forward]) -> None:
    said = None
    for number, chunks in enumerate(forwards):
        size = sum(map(len, chunks))
        where = f"forward {number} of {size} tokens"
        if size == 1:
            assert said == chunks[0][0], f"{where}: another token"
        logits = reference.forward(chunks)
        off = float((watched.logits[number] - logits).abs().max())
        assert off < CLOSE, f"{where}: logits are off by {off:.1e}"
        said = int(logits.argmax())
        if number + 1 < len(forwards):
            reference.read_ahead(forwards[number + 1])
        reference.assert_held(watched.held[number], where)
    assert reference.excused <= EXCUSED
    assert reference.case.went_all_ways(reference.policy), "this run shows less than it is to show"
