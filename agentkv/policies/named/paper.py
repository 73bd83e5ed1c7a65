"""Presets: the constants and schedules of papers, where these differ from our defaults.

Our defaults suit an agent, which receives one page after another: a long page is read in chunks,
and a layer is cut whenever it holds too much. Most papers read a prompt whole and compress it once,
after its last token. Where a page follows in a later turn, it is compressed in the same way (our
choice; the papers have one prompt).

The equations are those of the policy that a preset builds on; its own text says what is our choice.
`tests/agentkv/reference/test_presets.py` holds every preset against loops over its paper.
"""

from typing import Any

from agentkv.policies.declare import preset
from agentkv.policies.named.arkv import arkv
from agentkv.policies.named.attention import h2o, scissorhands
from agentkv.policies.named.conf_kv import conf_kv, conf_kv_int8, conf_kv_l
from agentkv.policies.named.edie import edie, edie_tada
from agentkv.policies.named.lookback import lookback
from agentkv.policies.named.newest import streaming
from agentkv.policies.named.snapkv import (
    ada_pyramidkv,
    ada_snapkv,
    critical_ada_snapkv,
    critical_pyramidkv,
    critical_snapkv,
    pyramidkv,
    snapkv,
)
from agentkv.policies.named.stored import int8_max

_ONCE: dict[str, Any] = {"whole": True, "schedule": "prefill"}
"""A prompt is read whole and compressed once; then the cache grows."""

# ---- CONF-KV (arXiv 2605.24786)

PAPER_CONF_KV = preset(
    conf_kv,
    """`conf-kv` with prompts read whole.

    With a budget of 512 entries: 256 entries while the model is confident, 64 of them protected.
    The paper does not say how a prompt is read; its formulas and their weights are missing (our
    choice).

    Source: CONF-KV (arXiv 2605.24786), section "Baselines and configurations", NIAH and VWA.
    """,
    whole=True,
)
PAPER_CONF_KV_INT8 = preset(
    conf_kv_int8,
    """`paper:conf-kv` with older entries in `int8-max`.

    With a budget of 512 entries, the newest 256 stay in 16 bits. Scales belong to blocks of 64
    entries (our choice; the paper does not say over which entries a scale goes).

    Source: CONF-KV (arXiv 2605.24786), section "Tiled attention and mixed precision".
    """,
    whole=True,
    format="int8-max",
)
PAPER_CONF_KV_L = preset(
    conf_kv_l,
    """`paper:conf-kv-int8`, more in shallow layers.

    The formula and its two constants are missing: a line from 1.25 to 0.75 of the budget (our
    choice).

    Source: CONF-KV-L (arXiv 2605.24786), section "Pyramidal layer budgets".
    """,
    whole=True,
    format="int8-max",
)
_WIKITEXT: dict[str, Any] = {"whole": True, "tight": 128, "protected": 32}
PAPER_CONF_KV_WIKITEXT = preset(
    conf_kv,
    """`paper:conf-kv` with the 128 entries of WikiText.

    Give it a budget of 256 entries. This number, the 32 protected entries and the 128 entries in 16
    bits of the variants are our choice, since the paper's are missing.

    Source: CONF-KV (arXiv 2605.24786), section "Threshold and budget".
    """,
    name="conf-kv-wikitext",
    **_WIKITEXT,
)
PAPER_CONF_KV_INT8_WIKITEXT = preset(
    conf_kv_int8,
    """`paper:conf-kv-wikitext`, older entries in 8 bits.

    Source: CONF-KV (arXiv 2605.24786), sections "Threshold and budget" and "Tiled attention and
    mixed precision".
    """,
    name="conf-kv-int8-wikitext",
    **_WIKITEXT,
    recent=128,
    format="int8-max",
)
PAPER_CONF_KV_L_WIKITEXT = preset(
    conf_kv_l,
    """`paper:conf-kv-l` with the 128 entries of WikiText.

    Source: CONF-KV-L (arXiv 2605.24786), sections "Threshold and budget" and "Pyramidal layer
    budgets".
    """,
    name="conf-kv-l-wikitext",
    **_WIKITEXT,
    recent=128,
    format="int8-max",
)
PAPER_INT8 = preset(
    int8_max,
    """`int8-max`: the storage of the paper.

    Blocks of 64 entries and 64 newest entries in 16 bits are our choice.

    Source: CONF-KV (arXiv 2605.24786), section "Tiled attention and mixed precision", without its
    eviction.
    """,
    name="int8",
)

# ---- Ada-KV (arXiv 2407.11550), and the baselines of all five papers

PAPER_SNAPKV = preset(
    snapkv,
    """`snapkv` that compresses a prompt once.

    Window 32, kernel 7 and max pooling are our defaults too.

    Source: SnapKV (arXiv 2404.14469) as configured by Ada-KV (arXiv 2407.11550), section 4.1.
    """,
    **_ONCE,
)
PAPER_PYRAMIDKV = preset(
    pyramidkv,
    """`pyramidkv` that compresses a prompt once.

    Source: PyramidKV (arXiv 2406.02069) as configured by Ada-KV (arXiv 2407.11550), section 4.1.
    """,
    **_ONCE,
)
PAPER_ADA_SNAPKV = preset(
    ada_snapkv,
    """`ada-snapkv`, floor 0.5, once per prompt.

    Heads are key-value heads (our choice; the paper has query heads).

    Source: Ada-KV (arXiv 2407.11550), algorithms 2 and 3, section 4.1.
    """,
    **_ONCE,
    floor=0.5,
)
PAPER_ADA_PYRAMIDKV = preset(
    ada_pyramidkv,
    """`ada-pyramidkv`, floor 0.5, once per prompt.

    Source: Ada-KV (arXiv 2407.11550), algorithms 2 and 3, section 4.1.
    """,
    **_ONCE,
    floor=0.5,
)
PAPER_H2O = preset(
    h2o,
    """`h2o` with prompts read whole.

    All queries of the prompt count before the first entry goes.

    Source: H2O (arXiv 2306.14048), algorithm 1.
    """,
    whole=True,
)
PAPER_SCISSORHANDS = preset(
    scissorhands,
    """`scissorhands` with prompts read whole.

    Source: Scissorhands (arXiv 2305.17118), algorithm 2, constants as commonly quoted.
    """,
    whole=True,
)
PAPER_STREAMING = preset(
    streaming,
    """`streaming`, whose constants are the paper's.

    Positions stay those of the sequence (our choice; the paper counts positions in the cache).

    Source: StreamingLLM (arXiv 2309.17453).
    """,
)

# ---- CriticalKV (arXiv 2502.03805)

_ALGORITHM_2: dict[str, Any] = {
    **_ONCE,
    "pooled": False,
    "epsilon": 0.0,
    "gqa": "product_then_mean",
}
PAPER_CRITICAL_SNAPKV = preset(
    critical_snapkv,
    """`critical-snapkv` as its algorithms 1 and 2 say.

    The second stage multiplies weights that are not pooled, and nothing is added to them. Each
    query head has its own products, which are averaged over the group (our choice; the paper does
    not mention groups).

    Source: CriticalKV (arXiv 2502.03805), algorithms 1 and 2, section 4.2.
    """,
    **_ALGORITHM_2,
)
PAPER_CRITICAL_PYRAMIDKV = preset(
    critical_pyramidkv,
    """`paper:critical-snapkv`, layers as in `pyramidkv`.

    Source: CriticalKV (arXiv 2502.03805), algorithms 1 and 2, section 4.2.
    """,
    **_ALGORITHM_2,
)
PAPER_CRITICAL_ADA_SNAPKV = preset(
    critical_ada_snapkv,
    """`paper:critical-snapkv` with competing heads.

    Source: CriticalKV (arXiv 2502.03805), algorithms 1 and 2, section 4.2, with Ada-KV's floor.
    """,
    **_ALGORITHM_2,
    floor=0.5,
)

# ---- EDIE and TADA

_EDIE = "EDIE (Task-Aware Dynamic KV Cache Eviction via Error-Driven Importance Estimation)"
PAPER_EDIE = preset(
    edie,
    f"""`edie` that compresses a prompt once.

    The mean pool is its appendix's; the main text says max. Its baseline Ada-KV has a mean pool and
    a floor of 0.2.

    Source: {_EDIE}, equations 9 to 11, section 4.1, appendix A.
    """,
    **_ONCE,
)
PAPER_PAASVN = preset(
    edie,
    f"""Attention times the norm of the value, for `edie`.

    A prompt is compressed once, and query weights are all 1.

    Source: {_EDIE}, equation 4, table 2.
    """,
    name="paasvn",
    **_ONCE,
    importance="paasvn",
    token_weight="none",
)
PAPER_EDIE_TADA = preset(
    edie_tada,
    f"""`edie-tada` that compresses a prompt once.

    The first context is shared out equally (our choice).

    Source: {_EDIE}, equations 9 to 18, section 4.1, appendix A.
    """,
    **_ONCE,
)

# ---- ARKV

PAPER_ARKV = preset(
    arkv,
    """`arkv` with prompts read whole.

    Ratios are estimated before the first entry goes. The pool of 5 is its code's.

    Source: ARKV, Algorithm 1, section V (Lei and Ilager).
    """,
    whole=True,
)
PAPER_BASE_ORIGIN = preset(
    arkv,
    """`paper:arkv` that evicts alone.

    Source: ARKV, section V.C (Lei and Ilager), as Base_origin.
    """,
    name="base-origin",
    whole=True,
    dense=1.0,
)
PAPER_BASE_QUANT = preset(
    arkv,
    """`paper:arkv` with all but the window in fp8.

    Entries are quantized when a trim keeps them (our choice; below the limit the paper's baseline
    equals the full cache).

    Source: ARKV, section V.C (Lei and Ilager), as Base_quant.
    """,
    name="base-quant",
    whole=True,
    dense=0.0,
)

# ---- RepairKV

PAPER_REPAIRKV = preset(
    lookback,
    """`lookback` whose entries come back at turns alone.

    No token looks back. Before an input is read, its tokens score what was evicted, and the best 96
    positions take the places of the oldest entries, half of them at most. The paper evicts by
    SnapKV, once; eviction by age at every step is our choice, and inputs of at most 1,024 tokens.

    Source: RepairKV (OpenReview LsrmZrp7tW); bursts as in its public code.
    """,
    name="repairkv",
    threshold=0.0,
    short=1024,
    format="dense",
    repair=96,
    reads="hot",
    slack=0,
)

# ---- InfLLM and LouisKV

PAPER_INFLLM = preset(
    lookback,
    """`lookback` by representatives of blocks.

    The first 128 entries and the newest stay. Every token that is read alone also reads the 16
    blocks of 128 positions whose four representatives are closest to its queries, in each layer;
    they do not stay. Ours: entries keep their positions (the paper gives all distant ones the same
    distance), the latest 32 queries choose representatives for each key-value head (the paper:
    those of the whole window, for each query head), and of a long input only the last token looks.

    Source: InfLLM (arXiv 2402.04617), section 3; numbers as in its public settings.
    """,
    name="infllm",
    sinks=128,
    when="always",
    blocks=16,
    block=128,
    promotes=False,
    format="dense",
    representatives=4,
    reads="hot",
)
PAPER_LOUISKV = preset(
    lookback,
    """`lookback` at boundaries, where queries turn.

    A token whose queries differ from those of the token before fetches blocks of 16 positions,
    which stay until they are the oldest. Ours: blocks (the paper clusters a prompt's keys, 16 to a
    cluster), and 0.8 as the cosine of a boundary.

    Source: LouisKV (arXiv 2510.11292), of which we read descriptions alone.
    """,
    name="louiskv",
    when="turned",
    format="dense",
)
