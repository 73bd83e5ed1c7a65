"""A decoder and one of its steps, as compiled code reads them: integers at fixed addresses.

A step takes one new token of each sequence, or some new tokens of the one sequence of a cache.

In every layer a decoder attends, and has an MLP. Norms stand before or after each of the two, what
they return is added to the residual stream, and a norm and the projection to logits follow the last
layer. Linear weights are (outputs, inputs), as torch has them. Where a weight is in a block format
of `weights`, the address of its numbers stands for it, negated.

Shapes: B new tokens, one of each sequence or all of one; d hidden size, m inner size of the MLP, V
vocabulary; H key-value heads, G query heads of each, D head size, of which P pairs of channels
turn.
"""

(
    NUM_LAYERS,
    HIDDEN,
    INNER,
    NUM_KV_HEADS,
    GROUP,
    HEAD_SIZE,
    VOCABULARY,
    WEIGHT_DTYPE,
    EMBEDDING,
    NORMS_EMBEDDING,
    IS_CENTERED,
    LAST_NORM,
    LAST_NORM_BIAS,
    HEAD,
    HEAD_BIAS,
    LAYERS,
    NUM_NUMBERS,
) = range(17)
"""Numbers of a decoder. The sizes L, d, m, H, G, D and V; the dtype of weights that are in no block
format, a number of `layout.DTYPES`; the address of the embedding (V, d); whether the last norm also
norms the embeddings; whether norms subtract the mean; addresses of the last norm (d,), of the
projection to logits (V, d) and of the biases of both, and of the layers' numbers
(L, `NUM_LAYER_NUMBERS`)."""

(
    NORM,
    NORM_BIAS,
    Q_WEIGHT,
    Q_BIAS,
    K_WEIGHT,
    K_BIAS,
    V_WEIGHT,
    V_BIAS,
    Q_NORM,
    Q_NORM_BIAS,
    K_NORM,
    K_NORM_BIAS,
    O_WEIGHT,
    O_BIAS,
    ATTENDED_NORM,
    ATTENDED_NORM_BIAS,
    MLP_NORM,
    MLP_NORM_BIAS,
    GATE,
    GATE_BIAS,
    UP,
    UP_BIAS,
    DOWN,
    DOWN_BIAS,
    LAST_MLP_NORM,
    LAST_MLP_NORM_BIAS,
    FREQUENCIES,
    NUM_PAIRS,
    PAIR_STEP,
    PAIR_DISTANCE,
    HEAD_NORM,
    HEAD_NORM_STEP,
    IS_PARALLEL,
    ACTIVATION,
    NUM_LAYER_NUMBERS,
) = range(35)
"""Numbers of a layer. Weights by their addresses, each before its bias; 0 for one that the layer
lacks. A norm stands before attention and before the MLP, and one after each, which norms what is
added to the stream. A layer without `UP` has no gate: the activations of `GATE` are all. Then the
rotation: the address of the frequencies (P,) and the factor on cosines and sines, float32; P; a
pair is channels i * step and i * step + distance. Then where queries and keys are normed, a
`*_HEADS`, with the step of the weights from head to head, 0 if heads share them; whether the MLP
reads the stream as it was before attention; and an activation."""

NO_HEADS, EACH_HEAD, ALL_HEADS, TURNED_HEADS = range(4)
"""Where queries and keys are normed: nowhere, head by head, over all heads at once, or head by head
once they are turned."""

SILU, GELU_TANH, RELU_SQUARED = range(3)
"""Activations."""

EPSILON, NORM_OFFSET, EMBEDDING_SCALE, RESIDUAL_SCALE, QKV_LIMIT, NUM_CONSTANTS = range(6)
"""Constants of a decoder, float64: of the norms, and what they add to their weights; the factor on
embeddings; the factor on what a layer adds to the residual stream; the largest size of queries,
keys and values, 0 for none."""

(
    DECODER,
    CONSTANTS,
    NUM_ROWS,
    IDS,
    POSITIONS,
    NUM_CACHES,
    FIRST_ROWS,
    LAYER_DESCRIPTORS,
    MASSES,
    FACTORS,
    EMAS,
    LOGITS,
    NEW_KEYS,
    NEW_VALUES,
    STREAM,
    QUERIES,
    MIXED,
    ADDED,
    ACTIVATED,
    COUNTERS,
    QUERY_SCALES,
    LOOK,
    NUM_THREADS,
    NUM_TOKENS,
    NUM_LOGITS,
    STEP_NUMBERS,
) = range(26)
"""Numbers of a step. Addresses: decoder; constants; B; ids (B,) and rotary positions (B,), int64; C
caches; the first row of each and B, (C + 1,) int64; layer descriptors (L, C); addresses (L, C) of
(R,) float32 that receive the mass, 0 for none; factors on logits (L,) float64, scale * log2(e);
averages (L, C, 3) float64: keep, gain, starts_at_mass. Results, float32: logits (`NUM_LOGITS`, V)
of the last tokens, new keys and values (L, B, H, D). Work space, float32: the residual stream (B,
d), queries and attended values (B, H * G, D), what is added to the stream (B, d), activations (B,
m). Last: counters (phases, `COUNTER_STRIDE`) int64 that start at 0; the address of factors (B,)
float32 on queries, 0 for none; the address of the numbers of a look, 0 for none; the number of
threads that the work is cut for; how many of the tokens are of one sequence, 1 or B; and how many
logits are wanted. With several tokens of one sequence, masses and averages are not looked at."""

(
    COLD_TIERS,
    DIGESTS,
    LOANS,
    SEGMENTS,
    OLDEST,
    NUM_BLOCKS,
    BLOCK_SIZE,
    LEAST_SHARE,
    APPENDS,
    MOST_COLD,
    SHARES,
    MOST_HOT,
    HOT_LOGITS,
    MOST_PICKED,
    FETCHED,
    PICKS,
    PICKED_POSITIONS,
    PICK_COUNTS,
    RULES,
    OUTCOMES,
    LOOK_NUMBERS,
) = range(21)
"""Numbers of a look: a step that computes the newest tokens of B sequences of one cache with cold
entries besides, again or, if it appends, for the first time. It writes keys and values over those
of the newest entries, which an appending step has begun, and keeps no statistic. A segment's
numbers stand at its first head.

Addresses of (L,) int64: descriptors of the cold tiers, 0 for a layer without one, and of the tables
of their digests, 0 where all keys are scanned, and of the numbers of their loans. Addresses of
(L, B) int64: first segment of each sequence, and lowest position that it may fetch. How many
blocks, positions of a block, and the bits of the float32 share that a block must draw. Whether the
step appends, 1 or 0. The most entries of a segment of a cold tier, and the address of
work space for their shares, (B, H, most) float32. The most entries of a hot segment, and the
address of work space for their logits, (B, H, G, most) float32. The most entries that a segment
fetches, and the addresses of work space for these, (B, H, 2, most, D) float32, keys before values,
and of results, (L, B, H, most) int64: their numbers, and their positions. The address of their
counts, (L, B, H) int64. Addresses of the rules that segments are settled by, (L, B, `NUM_RULES`)
int64, and of what came of it, (L, B) int64."""

MOST_HELD, TARGET, FIRST_TO_GO, RECENT, COLD_BOUND, NUM_RULES = range(6)
"""The rule for settling a segment after a look; the segment has all heads of its layer.

A segment with more than `MOST_HELD` hot entries, fetched ones included, evicts down to `TARGET`,
from entry `FIRST_TO_GO` on. A `MOST_HELD` of -1 leaves fetched entries to the caller. Then the
segment quantizes all but `RECENT` dense entries, in blocks of 64; -1: none. A segment that would
have more than `COLD_BOUND` cold entries is left to the caller."""

SETTLED, HAS_EVICTED, IS_LOOSE = 1, 2, 4
"""What settling a segment did, added up: the segment is settled, which lack of capacity or the
bound of its cold entries prevents; entries were evicted; a table of the layer has unused capacity
to return."""

LOOK_PHASES = 4
"""Phases of a layer's attention in a second pass: scoring, choosing, attending, settling."""

PHASES_PER_LAYER = 7 + LOOK_PHASES
"""Phases of a layer at most: q, k and v; their norm over all heads; attention, which takes two for
several tokens of a sequence, or a look; output projection and its norm; gate and up; down and its
norm. The projection to logits is one more phase."""

COUNTER_STRIDE = 16
"""Numbers per phase: two counters, 64 bytes apart so that threads do not share their cache line."""
