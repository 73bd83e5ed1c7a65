"""A decoder and one of its steps, as compiled code reads them: integers at fixed addresses.

The decoder is the one that Llama, Mistral, Qwen2 and Qwen3 share: in every layer an RMS norm,
rotary attention, a second norm and a gated MLP with SiLU, and after the last one a norm and the
projection to logits. Linear weights are (outputs, inputs), as torch has them.

Shapes: B new tokens, one of each sequence; d hidden size, m inner size of the MLP, V vocabulary; H
key-value heads, G query heads of each, D head size.
"""

(
    NUM_LAYERS,
    HIDDEN,
    INNER,
    NUM_KV_HEADS,
    GROUP,
    HEAD_SIZE,
    VOCABULARY,
    EMBEDDING,
    LAST_NORM,
    HEAD,
    FREQUENCIES,
    LAYERS,
    NUM_NUMBERS,
) = range(13)
"""Numbers of a decoder. The sizes L, d, m, H, G, D and V; then addresses: the embedding (V, d), the
last norm (d,), the projection to logits (V, d), the rotary frequencies (D / 2,) float32, and the
addresses (L, `NUM_WEIGHTS`) of the layers' weights."""

(
    NORM,
    Q_WEIGHT,
    K_WEIGHT,
    V_WEIGHT,
    Q_BIAS,
    K_BIAS,
    V_BIAS,
    Q_NORM,
    K_NORM,
    O_WEIGHT,
    O_BIAS,
    MLP_NORM,
    GATE,
    UP,
    DOWN,
    GATE_BIAS,
    UP_BIAS,
    DOWN_BIAS,
    NUM_WEIGHTS,
) = range(19)
"""Weights of a layer, each by its address; 0 for one that the layer lacks."""

EPSILON, ROTARY_SCALE, NUM_CONSTANTS = range(3)
"""Constants of a decoder, float64: of the norms, and the factor on rotary cosines and sines."""

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
    ACTIVATED,
    COUNTERS,
    NUM_THREADS,
    STEP_NUMBERS,
) = range(21)
"""Numbers of a step. Addresses: decoder; constants; B; ids (B,) and rotary positions (B,), int64;
C caches; the first row of each and B, (C + 1,) int64; layer descriptors (L, C); addresses (L, C)
of (R,) float32 that receive the mass, 0 for none; factors on logits (L,) float64, scale * log2(e);
averages (L, C, 3) float64: keep, gain, starts_at_mass. Results, float32: logits (B, V), new keys
and values (L, B, H, D). Work space, float32: the residual stream (B, d), queries and attended
values (B, H * G, D), activations (B, m). Last: counters (phases, `COUNTER_STRIDE`) int64 that
start at 0, and the number of threads that the work is cut for."""

PHASES_PER_LAYER = 5
"""Phases of a layer: q, k and v; attention; output projection; gate and up; down. The projection to
logits is one more phase."""

COUNTER_STRIDE = 16
"""Numbers per phase: two counters, 64 bytes apart so that threads do not share their cache line."""
