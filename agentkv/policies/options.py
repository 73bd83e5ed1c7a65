"""Parameters that several named policies share: the type and the help text of each.

`Help` is the metadata of a parameter's annotation; `registry.about` reads it. A parameter of one
policy alone is declared in that policy's signature.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from agentkv.policies.gates import Schedule
from agentkv.policies.pool import Pool


@dataclass(frozen=True, slots=True)
class Help:
    """The help text of a parameter."""

    text: str


LeftFactor = Annotated[
    float, Help("Factor on scores of entries of pages that were left (our choice: 0.5).")
]
Slack = Annotated[
    int, Help("Entries tolerated above the budget before eviction runs (our choice: 0).")
]
EvictionSchedule = Annotated[
    Schedule,
    Help(
        '"always" evicts whenever a layer is over its budget; "prefill" evicts only after a '
        "forward of several tokens, so that the cache grows while decoding. Our choice is "
        '"always", because an agent receives further observations; papers that use a window of '
        'queries compress the prompt alone, which is "prefill".'
    ),
]
Interval = Annotated[
    int | None,
    Help("Evict after every `interval` decoded tokens and at no other time; None: by `schedule`."),
]
QueryWindow = Annotated[
    int,
    Help(
        "Number of last queries that score the entries, and number of newest entries that are "
        "never dropped (32, as in the experiments of Ada-KV, EDIE and CriticalKV; kvpress: 64)."
    ),
]
Kernel = Annotated[
    int,
    Help(
        "Width of the pool along the entries, odd; 1 for none (7, as in the experiments of Ada-KV, "
        "EDIE and CriticalKV; SnapKV's own code and kvpress: 5)."
    ),
]
PoolKind = Annotated[
    Pool,
    Help(
        '"max" (as in the experiments of Ada-KV, EDIE and CriticalKV) or "avg" (SnapKV\'s own code '
        "and kvpress)."
    ),
]
Beta = Annotated[
    float,
    Help(
        "The last layer gets 1 / beta of the average layer's entries beyond the window (paper: "
        "20); 1 makes all layers equal, as in `snapkv`."
    ),
]
Floor = Annotated[
    float,
    Help(
        "Fraction of an equal share that every head is guaranteed (our choice: 0.2, as in "
        "Ada-KV's scripts and kvpress; the paper's tables: 0.5)."
    ),
]
SafeguardKind = Annotated[
    Literal["mix", "guarantee"],
    Help(
        '"mix" gives every head `floor` of an equal share and (1 - floor) of the entries it won '
        '(the paper); "guarantee" reserves int(floor * budget) entries for it (kvpress).'
    ),
]
FirstStage = Annotated[
    float,
    Help(
        "Fraction of the entries beyond the window that the score alone selects; score times norm "
        "of the projected value selects the rest (paper: 0.25; kvpress: 0.5)."
    ),
]
Epsilon = Annotated[
    float,
    Help("Added to the score before the product (0.0001 as in kvpress; the paper has none)."),
]
Pooled = Annotated[
    bool,
    Help(
        "Whether the second stage uses the pooled score too (our choice, as in kvpress; the "
        "paper's text uses the raw one)."
    ),
]
Grouping = Annotated[
    Literal["mean_norm", "product_then_mean"],
    Help(
        '"mean_norm" multiplies the mean score of the query group by its mean norm (our choice, '
        'as in kvpress); "product_then_mean" multiplies per query head and then averages.'
    ),
]
Threshold = Annotated[
    float,
    Help(
        "The tight budget applies at this confidence or more (paper: 0.7, with 0.8 as the safer "
        "value)."
    ),
]
Tight = Annotated[
    int | None,
    Help("Entries while the model is confident; None: half of loose (paper: 256 of 512)."),
]
Loose = Annotated[int | None, Help("Entries otherwise; None: the cache's budget.")]
ConfidenceProtected = Annotated[
    int | None,
    Help(
        "Newest entries that are never dropped; None: an eighth of loose, at most 64 (paper: 64 "
        "of 512)."
    ),
]
MassWeight = Annotated[
    float, Help("Weight of attention in the score; recency has the rest (our choice: 0.5).")
]
MassDecay = Annotated[
    float, Help("Decay of the moving average of the attention masses (our choice: 0.9).")
]
ConfidenceWeights = Annotated[
    tuple[float, float, float],
    Help("Weights of entropy, gap and top probability in the confidence (our choice)."),
]
BudgetRecent = Annotated[
    int | None,
    Help(
        "Newest entries that stay in the model's dtype; None: half of loose, at most 256 (paper: "
        "256 of 512)."
    ),
]
Format = Annotated[
    str,
    Help("Storage format of older entries: int8 (paper), fp8, int4 or nf4."),
]
ByTurn = Annotated[
    bool,
    Help(
        "Decide once a turn, after the input that ends it, by the mean confidence of the tokens "
        "decoded before; false: after every token (our choice)."
    ),
]
Sure = Annotated[
    float | None,
    Help(
        "Quantize only after a token whose probability, as the likeliest, is at least this; None: "
        "after every forward (our choice)."
    ),
]
Recent = Annotated[int, Help("Newest entries that stay in the model's dtype (our choice: 64).")]
ErrorWindow = Annotated[
    int,
    Help(
        "Number of last queries that score the entries, and number of newest entries that are "
        "never dropped (paper: 32)."
    ),
]
ErrorAlpha = Annotated[
    float,
    Help(
        "Bounds the score of an entry that draws all attention (paper: 0.1; 0.05 and 0.2 did as "
        "well)."
    ),
]
ErrorKernel = Annotated[
    int, Help("Width of the pool along the entries, odd; 1 for none (paper: 7).")
]
ErrorPool = Annotated[
    Pool, Help('"avg" (the paper\'s appendix, our choice) or "max" (its main text).')
]
LookWhen = Annotated[
    Literal["unsure", "always", "turned", "random"],
    Help(
        'Which tokens look back: "unsure" those with an alarm, "always" all, "turned" those whose '
        'queries differ from those of the token before, "random" a share of them, as a control '
        "(our choice: unsure)."
    ),
]
LookThreshold = Annotated[
    float,
    Help(
        "Probability of the likeliest next token below which a token looks back (our choice: 0.99)."
    ),
]
LookStretch = Annotated[int, Help("Tokens after an alarm that look back too (our choice: 0).")]
LookCalm = Annotated[
    float | None,
    Help(
        "Right after an alarm, a lower probability than this is one too; None: threshold (our "
        "choice: None)."
    ),
]
LookSimilarity = Annotated[
    float,
    Help(
        "Mean cosine of a token's queries and those of the token before, below which it looks back "
        'if when="turned" (our choice: 0.8).'
    ),
]
LookShare = Annotated[
    float, Help('Share of the tokens that look back if when="random" (our choice: 0.1).')
]
LookBlocks = Annotated[int, Help("Blocks that a token fetches in each layer (our choice: 8).")]
LookBlock = Annotated[
    int, Help("Neighboring positions that make a block; 1 for single ones (our choice: 16).")
]
LookPromotes = Annotated[
    bool, Help("Fetched entries stay, as the youngest; false: one token alone reads them.")
]
ColdFormat = Annotated[
    str, Help("Format of the cold tier: int8, fp8, int4, nf4 or dense (our choice: int8).")
]
LookDigests = Annotated[
    bool,
    Help(
        "Looks scan bounds of the keys of each block instead of all cold keys (our choice: false)."
    ),
]
