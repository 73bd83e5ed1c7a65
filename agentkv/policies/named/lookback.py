"""Policies that fetch evicted entries back."""

from dataclasses import replace
from typing import Annotated, Literal

from agentkv.policies.declare import named
from agentkv.policies.gates import Slack
from agentkv.policies.named.newest import streaming
from agentkv.policies.named.stored import Recent, with_older
from agentkv.policies.parameters import Help, require_one_of
from agentkv.policies.policy import Policy
from agentkv.policies.recall import Always, AtRandom, LookBack, Turned, Unsure, Unsurest
from agentkv.policies.slots import Occasion
from agentkv_kernels.formats import BLOCK

When = Annotated[
    Literal["unsure", "unsurest", "always", "turned", "random"],
    Help(
        'Which tokens look back: "unsure" those with an alarm, "unsurest" the least sure share of '
        'them, "always" all, in their one pass through the model, "turned" those whose queries '
        'differ from those of the token before, "random" a share of them, as a control (our '
        "choice)."
    ),
]
ColdFormat = Annotated[
    str, Help("Format of the cold tier: int8, fp8, int4, nf4 or dense (our choice).")
]
Draw = Annotated[
    float,
    Help(
        "A block is fetched only if one of its entries would receive at least this share of "
        "attention (our choice)."
    ),
]


@named(streaming)
def lookback(
    base: Policy,
    *,
    when: When = "unsure",
    threshold: Annotated[
        float,
        Help(
            "Probability of the likeliest next token below which a token looks back (our choice: "
            "0.99)."
        ),
    ] = 0.99,
    stretch: Annotated[int, Help("Tokens after an alarm that look back too (our choice: 0).")] = 0,
    calm: Annotated[
        float | None,
        Help(
            "Right after an alarm, a lower probability than this is one too; None: threshold (our "
            "choice: None)."
        ),
    ] = None,
    similarity: Annotated[
        float,
        Help(
            "Mean cosine of a token's queries and those of the token before, below which it looks "
            'back if when="turned" (our choice: 0.8).'
        ),
    ] = 0.8,
    share: Annotated[
        float,
        Help(
            'Share of the tokens that look back if when="unsurest" or "random" (our choice: 0.1).'
        ),
    ] = 0.1,
    blocks: Annotated[int, Help("Blocks that a token fetches in each layer (our choice: 8).")] = 8,
    block: Annotated[
        int, Help("Neighboring positions that make a block; 1 for single ones (our choice: 16).")
    ] = 16,
    promotes: Annotated[
        bool, Help("Fetched entries stay, as the youngest; false: one token alone reads them.")
    ] = True,
    format: ColdFormat = "int8",
    digests: Annotated[
        bool,
        Help(
            "Looks scan bounds of the keys of each block instead of all cold keys (our choice: "
            "false)."
        ),
    ] = False,
    representatives: Annotated[
        int,
        Help(
            "Looks compare blocks by the keys of so many of their entries; 0: by all keys, or by "
            "digests (InfLLM: 4; our choice: 0)."
        ),
    ] = 0,
    reads: Annotated[
        Literal["hot", "all"],
        Help(
            'What an input attends to while it is read: "hot" entries, or "all", cold ones too '
            "(our choice: all)."
        ),
    ] = "all",
    short: Annotated[
        int,
        Help(
            'Longest input that is repaired; with reads="hot" and without repair, all its tokens '
            "may look back, and are read one at a time (our choice: 64)."
        ),
    ] = 64,
    draw: Draw = 0.0,
    repair: Annotated[
        int,
        Help(
            "Positions that come back before a short input is read, those that its tokens would "
            "attend to most (RepairKV: 96; our choice: 0)."
        ),
    ] = 0,
    cold: Annotated[
        int | None,
        Help(
            "Most cold entries of each layer and head, fetched ones that stay included: beyond it, "
            "those that were evicted first are forgotten; None: no bound (our choice: None)."
        ),
    ] = None,
    slack: Slack = BLOCK - 1,
) -> Policy:
    """Keeps the newest entries hot, and fetches others back.

    All other entries are cold; a token that is unsure fetches some of them back. An input of
    several tokens attends to all entries while it is read, so that it is encoded as under a full
    cache.

    An unsure token is computed a second time, with the blocks of cold entries that draw most of its
    attention. The budget counts hot entries alone. By default a whole block of 64 entries turns
    cold at once, because the cold tier shares scales in such blocks.

    Source: our choice, after ArkVale (NeurIPS 2024) and CONF-KV (arXiv 2605.24786).
    """
    occasions: dict[str, Occasion] = {
        "unsure": Unsure(threshold, stretch, calm),
        "unsurest": Unsurest(share),
        "always": Always(),
        "turned": Turned(similarity),
        "random": AtRandom(share),
    }
    occasion = occasions[require_one_of("when", when, tuple(occasions))]
    recall = LookBack(
        occasion,
        blocks,
        block,
        promotes,
        format,
        digests=digests,
        representatives=representatives,
        reads=reads,
        short=short,
        draw=draw,
        repair=repair,
        cold=cold,
    )
    return replace(base, recall=recall)


@named(lookback)
def lookback_int8(base: Policy, *, recent: Recent = 64) -> Policy:
    """`lookback` with older hot entries in int8; recommended.

    Source: our choice; see `lookback`, and the storage of CONF-KV (arXiv 2605.24786).
    """
    return with_older(base, "int8", recent)


@named(lookback)
def lookback_int4(
    base: Policy,
    *,
    when: When = "always",
    draw: Draw = 0.1,
    format: ColdFormat = "int4",
    recent: Recent = 64,
) -> Policy:
    """`lookback` in 4 bits, hot and cold; every token may fetch.

    The same bytes hold twice as many hot entries as in int8. A token fetches only blocks that draw
    much of its attention, in its one pass through the model.

    Source: our choice; see `lookback` and `int4`. `draw` was chosen on the validation part of
    WikiText-2 with SmolLM2.
    """
    return with_older(base, "int4", recent)
