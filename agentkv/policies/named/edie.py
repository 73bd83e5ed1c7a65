"""EDIE and TADA: what would change if an entry went, and which layers need more."""

from dataclasses import replace
from typing import Annotated

from agentkv.policies.allocators import EnergyAllocator
from agentkv.policies.declare import named
from agentkv.policies.gates import Fixed
from agentkv.policies.parameters import Help
from agentkv.policies.policy import Policy
from agentkv.policies.pool import Pool
from agentkv.policies.scorers import Importance, RemovalError, TokenWeight
from agentkv.policies.selectors import TopK


@named(Fixed)
def edie(
    base: Policy,
    *,
    window: Annotated[
        int,
        Help(
            "Number of last queries that score the entries, and number of newest entries that are "
            "never dropped (paper: 32)."
        ),
    ] = 32,
    alpha: Annotated[
        float,
        Help(
            "Bounds the score of an entry that draws all attention (paper: 0.1; 0.05 and 0.2 did "
            "as well)."
        ),
    ] = 0.1,
    kernel: Annotated[
        int, Help("Width of the pool along the entries, odd; 1 for none (paper: 7).")
    ] = 7,
    pool: Annotated[
        Pool, Help('"avg" (the paper\'s appendix, our choice) or "max" (its main text).')
    ] = "avg",
    importance: Annotated[
        Importance,
        Help(
            'Importance of an entry to a query: "error" (the paper), or what its table 2 compares '
            'this with: "paasvn", attention times the norm of the value, and "aas", attention.'
        ),
    ] = "error",
    token_weight: Annotated[
        TokenWeight,
        Help(
            "Weight of a query: the most attention that it gives to an entry. "
            '"middle" leaves out the first w entries and the last 2w, with w the window (the '
            'paper). "not_first" leaves out the first, "not_last" the last, and "all" none (its '
            'table 3). "none" gives every query the weight 1 (its ablation without token weights).'
        ),
    ] = "middle",
) -> Policy:
    """Keeps entries that the last outputs depend on most.

    Those are the ones whose removal would change the output of the last queries most.

    Source: EDIE (Task-Aware Dynamic KV Cache Eviction via Error-Driven Importance Estimation).
    """
    scorer = RemovalError(window, alpha, kernel, pool, importance, token_weight)
    return replace(base, scorer=scorer, selector=TopK(protected=window))


@named(edie)
def edie_tada(
    base: Policy,
    *,
    least: Annotated[
        int, Help("Entries per head that every layer keeps beyond the window (our choice: 0).")
    ] = 0,
    decay: Annotated[
        float | None,
        Help("Decay of a moving average over contexts; None: the plain mean of the paper."),
    ] = None,
    key: Annotated[
        str,
        Help(
            "Name of the stream of contexts whose energies count, such as a site (our choice: "
            "one stream for all)."
        ),
    ] = "",
    by_shift: Annotated[
        bool,
        Help(
            "Multiply the error of a layer by how far its attention turns the residual stream; "
            "false: the paper's ablation without cosine dissimilarity (paper: true)."
        ),
    ] = True,
) -> Policy:
    """`edie` with budgets per layer by energies seen earlier.

    The budgets are in proportion to the energies of earlier contexts.

    Inside a layer the heads compete. A context is a forward of several tokens, every context counts
    (paper), and the first is shared out equally (our choice).

    Source: EDIE with TADA (the same paper).
    """
    return replace(base, allocator=EnergyAllocator(least, decay, key, by_shift))
