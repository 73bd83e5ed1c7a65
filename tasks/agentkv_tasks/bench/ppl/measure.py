"""`agentkv bench ppl`: perplexity of continuations at matched bytes."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from rich.console import Console

from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.bench.ppl.read import Continuation, read_sample
from agentkv_tasks.bench.ppl.rows import PerplexityRow
from agentkv_tasks.bench.ppl.table import WINDOW, figures, tables
from agentkv_tasks.bench.samples.measure import (
    Measurement,
    SampleBench,
    check_samples,
    measure_samples,
)
from agentkv_tasks.bench.tables import FULL


def run_bench(bench: SampleBench, console: Console) -> list[PerplexityRow]:
    """Measure, write each row at once, and print the table and a summary in JSON.

    Raises:
        ValueError: as `measure_samples`; policies to compare without a window or a full cache.
        BrowserMissing: the stream needs a browser, and none was found.
        KeyboardInterrupt: finished rows are written and printed.
    """
    labels = [policy.row_name for policy in bench.settings.policies]
    ends = (FULL, WINDOW)
    missing = [name for name in ends if name not in labels]
    # with nothing between the ends there is no share, and one end alone measures a model
    if missing and not set(labels) <= set(ends):
        raise BenchError(
            f"--policies {','.join(labels)} lacks {' and '.join(missing)}; the shares say where a "
            "policy lies between a window and a full cache, so give both"
        )
    check_samples(bench, PerplexityRow)
    return measure_samples(
        bench,
        Measurement(
            kind=PerplexityRow,
            read=read_sample,
            summarize=_summary,
            tables=tables,
            figures=figures,
        ),
        console,
    )


def _summary(found: Sequence[Continuation]) -> Mapping[str, Any]:
    nll = [each for sample in found for each in sample.nll]
    return {
        "sample_nll": [fmean(sample.nll) for sample in found],
        "nll": fmean(nll),
        "mean_bytes": fmean(sample.mean_bytes for sample in found),
        "peak_bytes": max(sample.peak_bytes for sample in found),
        "index_bytes": fmean(sample.index_bytes for sample in found),
        "cold_bytes": fmean(sample.cold_bytes for sample in found),
        "look_share": sum(sample.num_looks for sample in found) / len(nll),
        "look_bytes": sum(sample.look_bytes for sample in found) / len(nll),
    }
