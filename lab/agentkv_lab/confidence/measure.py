"""`agentkv_lab confidence`: what confidence says about what was forgotten.

Every token of the continuations is predicted twice, with the whole past and under a policy. The
rows hold the confidence of both predictions and their distance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from rich.console import Console

from agentkv.build import make_policy
from agentkv.policies.registry import parameters_of
from agentkv.settings import PolicySettings
from agentkv_lab.confidence.read import Compared, compare_sample
from agentkv_lab.confidence.rows import ConfidenceRow
from agentkv_lab.confidence.table import figures, tables
from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.bench.samples.measure import (
    Measurement,
    SampleBench,
    check_samples,
    measure_samples,
)

_DIGITS = 7
"""Decimals of the figures of a token."""


def run_bench(bench: SampleBench, console: Console) -> list[ConfidenceRow]:
    """Measure, write each row at once, and print the tables and a summary in JSON.

    Raises:
        ValueError: as `measure_samples`; a policy that forgets nothing.
        BrowserMissing: the stream needs a browser, and none was found.
        KeyboardInterrupt: finished rows are written and printed.
    """
    chosen = tuple(looking_always(policy) for policy in bench.settings.policies)
    for policy in chosen:
        if not make_policy(policy).gate.evicts:
            raise BenchError(
                f"--policies {policy.row_name}: it evicts nothing, and every policy is compared "
                "with a full cache; give policies that evict"
            )
    bench = replace(bench, settings=bench.settings.model_copy(update={"policies": chosen}))
    check_samples(bench, ConfidenceRow)
    return measure_samples(
        bench,
        Measurement(
            kind=ConfidenceRow,
            read=compare_sample,
            summarize=_summary,
            tables=tables,
            figures=figures,
        ),
        console,
    )


def looking_always(chosen: PolicySettings) -> PolicySettings:
    """Let every token look back under a named policy that looks back, so that a row knows what
    each look would have changed."""
    if chosen.is_file or "when" not in parameters_of(chosen.name):
        return chosen
    return chosen.model_copy(update={"parameters": {**chosen.parameters, "when": "always"}})


def _summary(found: Sequence[Compared]) -> Mapping[str, Any]:
    tokens = [token for sample in found for token in sample.tokens]
    return {
        "features": [_rounded(token.features) for token in tokens],
        "full_features": [_rounded(token.full_features) for token in tokens],
        "divergence": _rounded([token.divergence for token in tokens]),
        "changed": [token.is_changed for token in tokens],
        "changed_by_look": [token.is_changed_by_look for token in tokens],
        "look_divergence": [
            None if token.look_divergence is None else round(token.look_divergence, _DIGITS)
            for token in tokens
        ],
        "mean_divergence": fmean(token.divergence for token in tokens),
        "changed_share": fmean(token.is_changed for token in tokens),
        "mean_bytes": fmean(sample.mean_bytes for sample in found),
    }


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, _DIGITS) for value in values]
