"""Every preset `paper:NAME` keeps what plain loops over its paper keep, with the paper's constants.

As in `test_reference.py`: the same tiny model twice, in float64 with everything remembered, and
with a real cache; after each forward of two turns both hold the same positions in every layer and
head, and give the same logits.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch

import agentkv
from agentkv.policies.policy import Policy
from agentkv.policies.registry import PRESETS, about
from tests.agentkv.reference import formats, loops, presets
from tests.agentkv.reference.test_reference import INT8, Case, follow_fed, wavered
from tests.agentkv.reference.test_reference import stored as stored_as

BUDGET = 52
WINDOW = (BUDGET, 32, 7)
"""Budget, window and kernel of most papers."""


def once(loop: Callable[[], loops.Policy], family: str = "llama", **more: object) -> Case:
    """A page that is compressed, tokens by which the cache grows, and a page by which it shrinks;
    the first page is longer than three windows, of which EDIE leaves out two at the end."""
    return Case(family, loop, budget=BUDGET, pages=(110, 60), replies=(3, 2), **more)


def are_unequal(policy: presets.EdieTada) -> bool:
    return len(set(map(len, (layer.held[0] for layer in policy.layers)))) > 1


def quantized(policy: presets.ConfKVInt8) -> bool:
    return any(map(len, policy.storage.stored.values()))


ARKV = {"budget": 76, "pages": (90, 51), "replies": (5, 2)}
SURE = {"threshold": 0.45}
"""The paper's 0.7 is more than this model ever is."""
GATED = {"budget": 150, "pages": (100, 150), "replies": (10, 6), "went_all_ways": wavered}
AT_200 = GATED | {"budget": 200}
BY_GATE = {"budget": 150, "tight": 75, "protected": 18, **SURE}
WIKITEXT = {"budget": 200, "tight": 128, "protected": 32, **SURE}

CASES = {
    "paper:conf-kv": Case("mistral", lambda: loops.ConfKV(**BY_GATE), SURE, **GATED),
    # with the paper's half of the entries in 16 bits, 150 entries would fill one block of 64
    "paper:conf-kv-int8": Case(
        "qwen3", lambda: presets.ConfKVInt8(recent=6, **BY_GATE), SURE | {"recent": 6}, **INT8
    ),
    "paper:conf-kv-l": Case(
        "mistral", lambda: presets.ConfKVL(recent=6, **BY_GATE), SURE | {"recent": 6},
        **(GATED | {"went_all_ways": lambda policy: wavered(policy) and quantized(policy)}),
    ),
    "paper:conf-kv-wikitext": Case(
        "mistral", lambda: loops.ConfKV(**WIKITEXT), SURE, **AT_200
    ),
    "paper:conf-kv-int8-wikitext": Case(
        "mistral", lambda: presets.ConfKVInt8(recent=128, **WIKITEXT), SURE, **AT_200
    ),
    "paper:conf-kv-l-wikitext": Case(
        "mistral", lambda: presets.ConfKVL(recent=128, **WIKITEXT), SURE, **AT_200
    ),
    "paper:int8": replace(
        stored_as("qwen3", formats.Int8Max),
        loops=lambda: loops.Quantised(64, formats.Int8Max), parameters={}, pages=(140, 60),
    ),
    "paper:snapkv": once(lambda: presets.SnapKV(*WINDOW)),
    "paper:pyramidkv": once(lambda: presets.Pyramid(*WINDOW, beta=20), "qwen3"),
    "paper:ada-snapkv": once(lambda: presets.AdaSnapKV(*WINDOW, floor=0.5)),
    "paper:ada-pyramidkv": once(lambda: presets.AdaPyramid(*WINDOW, beta=20, floor=0.5)),
    "paper:h2o": once(lambda: loops.H2O(BUDGET), "qwen2"),
    "paper:scissorhands": once(
        lambda: loops.Scissorhands(BUDGET, history=400, protected=10, drop=0.5), "mistral"
    ),
    "paper:streaming": once(lambda: loops.Window(BUDGET, sinks=4)),
    "paper:critical-snapkv": once(lambda: presets.CriticalSnapKV(*WINDOW)),
    "paper:critical-pyramidkv": once(lambda: presets.CriticalPyramid(*WINDOW, beta=20), "qwen2"),
    "paper:critical-ada-snapkv": once(lambda: presets.CriticalAdaSnapKV(*WINDOW, floor=0.5)),
    "paper:edie": once(lambda: presets.Edie(*WINDOW, start=32, end=64)),
    "paper:paasvn": once(lambda: presets.Edie(*WINDOW, measure="paasvn", start=None)),
    "paper:edie-tada": once(lambda: presets.EdieTada(*WINDOW), went_all_ways=are_unequal),
    "paper:arkv": Case(
        "qwen3", lambda: loops.Arkv(76, window=32, kernel=5), **ARKV,
        went_all_ways=lambda policy: min(policy.ratios) < 0.9 and bool(policy.quantized),
    ),
    "paper:base-origin": Case(
        "qwen3", lambda: presets.BaseOrigin(76, window=32, kernel=5), **ARKV
    ),
    "paper:base-quant": Case(
        "qwen3", lambda: presets.BaseQuant(76, window=32, kernel=5), **ARKV,
        went_all_ways=lambda policy: bool(policy.quantized),
    ),
    "paper:repairkv": once(
        lambda: presets.RepairKV(BUDGET, 24), parameters={"repair": 24},
        went_all_ways=lambda policy: policy.repaired == [24, 24, 24],
    ),
    "paper:infllm": once(
        lambda: presets.InfLLM(BUDGET, blocks=2, block=8, count=3, sinks=6),
        parameters={
            "blocks": 2, "block": 8, "representatives": 3, "sinks": 6, "slack": 0, "short": 0,
        },
        went_all_ways=lambda policy: policy.not_last > 2,
    ),
    "paper:louiskv": once(
        lambda: presets.LouisKV(BUDGET, similarity=0.5, blocks=2, block=4),
        parameters={"similarity": 0.5, "blocks": 2, "block": 4, "slack": 0, "short": 0},
        went_all_ways=lambda policy: 0 < sum(policy.looked) < len(policy.looked),
    ),
}  # fmt: skip

SWITCHES = {
    "not-last": ("edie", {"token_weight": "not_last"}, {"start": 0, "end": 64}),
    "without-cosine": ("edie-tada", {"by_shift": False}, {"turns": False}),
}
"""Ablations of EDIE's tables 3 and 4: name, parameters, and those of the loops. The unit tests of
`RemovalError` have the others."""


def test_no_preset_is_without_loops():
    assert set(CASES) == set(PRESETS)


@torch.no_grad()
@pytest.mark.parametrize("name", CASES)
def test_what_a_preset_keeps_is_what_its_paper_says(name):
    follow_fed(CASES[name], name)


@torch.no_grad()
@pytest.mark.parametrize("switch", SWITCHES)
def test_an_ablation_keeps_what_its_paper_says(switch):
    name, parameters, of_loops = SWITCHES[switch]
    loop = presets.EdieTada if name == "edie-tada" else presets.Edie
    follow_fed(once(lambda: loop(*WINDOW, **of_loops), parameters=parameters), f"paper:{name}")
    base, other = agentkv.policy(name), agentkv.policy(name, **parameters)
    assert (base.scorer, base.allocator) != (other.scorer, other.allocator)


SAME = ("arkv", "conf-kv", "h2o", "scissorhands")
"""Policies whose defaults are the paper's, except that we read long prompts in chunks."""


def without(policy: Policy, **gate: object) -> Mapping[str, object]:
    """The parts of a policy, with another gate."""
    names = ("allocator", "scorer", "selector", "precision", "recall")
    parts = {part: getattr(policy, part) for part in names}
    return parts | {"gate": replace(policy.gate, **gate)}


@pytest.mark.parametrize("name", SAME)
def test_a_preset_that_only_reads_prompts_whole_has_the_parts_of_our_default(name):
    preset, ours = agentkv.policy(f"paper:{name}"), agentkv.policy(name)
    assert preset.gate.whole and not ours.gate.whole
    assert without(preset, whole=False) == without(ours)


@pytest.mark.parametrize("name", ["snapkv", "pyramidkv", "edie", "edie-tada"])
def test_a_preset_that_compresses_once_has_the_other_parts_of_our_default(name):
    preset, ours = agentkv.policy(f"paper:{name}"), agentkv.policy(name)
    assert (preset.gate.whole, preset.gate.schedule) == (True, "prefill")
    assert without(preset, whole=False, schedule="always") == without(ours)


@pytest.mark.parametrize(("preset", "ours"), [("streaming", "streaming"), ("int8", "int8-max")])
def test_a_preset_with_our_constants_is_an_alias(preset, ours):
    assert without(agentkv.policy(f"paper:{preset}")) == without(agentkv.policy(ours))


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_names_its_paper_and_explains_itself(name):
    preset = about(name)
    assert preset.source and len(preset.paragraphs[0]) <= 60
    assert preset.parameters.keys() == preset.base.parameters.keys()
    assert agentkv.policy(name).name == name


def test_the_constants_of_a_preset_can_be_changed():
    policy = agentkv.policy("paper:ada-snapkv", floor=0.3)
    assert (policy.allocator.floor, policy.gate.whole) == (0.3, True)
    assert policy.parameters["schedule"] == "prefill"


def test_an_unknown_preset_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown policy 'paper:ada'.* known: paper:ada-pyr"):
        agentkv.policy("paper:ada")
