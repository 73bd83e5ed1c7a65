"""ARKV: entries in three states."""

from dataclasses import replace
from typing import Annotated, Literal

from agentkv.policies.declare import named
from agentkv.policies.gates import Trimming
from agentkv.policies.parameters import Help
from agentkv.policies.policy import Policy
from agentkv.policies.precision import QuantizeByRank
from agentkv.policies.scorers import MeanAndVariance
from agentkv.policies.selectors import TopK


@named(Trimming)
def arkv(
    base: Policy,
    *,
    window: Annotated[
        int,
        Help(
            "Number of last queries that score the entries, and number of newest entries that "
            "are never dropped (paper: 32)."
        ),
    ] = 32,
    kernel: Annotated[
        int,
        Help(
            "Width of the average pool along the entries, odd; 1 for none (5, as in its code; "
            'the paper says "smoothed").'
        ),
    ] = 5,
    gamma: Annotated[float, Help("Weight of the variance (paper: 263.81).")] = 263.81,
    tau1: Annotated[
        float,
        Help("The entropy enters a layer's quality with the exponent 1 / tau1 (paper: 7.774)."),
    ] = 7.774,
    tau2: Annotated[
        float, Help("The variance enters with the exponent 1 / tau2 (paper: 5.407).")
    ] = 5.407,
    tau3: Annotated[
        float, Help("The kurtosis enters with the exponent 1 / tau3 (paper: 5.528).")
    ] = 5.528,
    format: Annotated[
        str, Help("Storage format of the lower-ranked entries: fp8 (paper), int8, int4 or nf4.")
    ] = "fp8",
    estimate: Annotated[
        Literal["once", "every_trim"],
        Help(
            'When a layer\'s quality is estimated: "once" per sequence, at the end of its '
            "prefill, before the first entry is dropped and the first token is decoded "
            '(paper), or again at "every_trim", over the entries that each head then holds '
            "(agentkv's first behavior)."
        ),
    ] = "once",
    dense: Annotated[
        float | None,
        Help(
            "Share of the budget beyond the window that stays in the model's dtype, in every "
            "layer; None: by the layer's quality (paper). 1 is the paper's baseline base_origin, "
            "which evicts alone, and 0 its base_quant, which quantizes whatever a trim keeps."
        ),
    ] = None,
) -> Policy:
    """Keeps entries by mean and variance of recent attention.

    Lower-ranked entries are quantized.

    Source: ARKV, Algorithm 1 (Lei and Ilager).
    """
    scorer = MeanAndVariance(window, gamma, kernel)
    stored = QuantizeByRank(window, tau1, tau2, tau3, format, estimate, dense)
    dense_only = replace(base, scorer=scorer, selector=TopK(protected=window))
    return dense_only if dense == 1 else replace(dense_only, precision=stored)
