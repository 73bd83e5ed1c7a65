"""`agentkv bench ppl`."""

from typing import TYPE_CHECKING

from agentkv.defaults import POLICY
from agentkv_tasks.cli.bench.samples import samples_command

if TYPE_CHECKING:
    from rich.console import Console

    from agentkv_tasks.bench.samples.measure import SampleBench


def _ppl(samples: "SampleBench", console: "Console") -> None:
    """Measure the perplexity of continuations at equal bytes.

    Policies with a budget get the bytes of a window of --entries. The table says which share of the
    gap between that window and a full cache each of them closes; `--policies full` alone measures a
    model. The continuations are replies of the solutions of vwa75 in the embedded world, or the
    ends of parts of a text file, which are spread over all of it and do not overlap. They are the
    same at all lengths.
    """
    from agentkv_tasks.bench.ppl.measure import run_bench

    run_bench(samples, console)


ppl = samples_command(
    "ppl", ("full", "window", "streaming-int8", "conf-kv-int8", POLICY, "int4"), _ppl
)
