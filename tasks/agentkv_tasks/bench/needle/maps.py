"""Heat maps of needles found, by depth and length."""

import math
from collections.abc import Sequence

from agentkv_tasks.bench.needle.rows import NeedleRow
from agentkv_tasks.report.heat import Maps, heat_map


def heat_maps(rows: Sequence[NeedleRow]) -> Maps:
    """Return a map for each place of the question and each policy, in the order of the rows.

    All maps have the depths and lengths of all rows.
    """
    depths = sorted({row.depth for row in rows})
    lengths = sorted({row.length for row in rows})
    maps = []
    for question, label in dict.fromkeys((row.question, row.label) for row in rows):
        found = {
            (row.depth, row.length): row.share
            for row in rows
            if (row.question, row.label) == (question, label)
        }
        maps.append(
            heat_map(
                f"{label}, question {question} the page",
                [[found.get((depth, length), math.nan) for length in lengths] for depth in depths],
                rows=[f"{depth} %" for depth in depths],
                columns=[f"{length:,}" for length in lengths],
                row_title="depth",
                column_title="tokens",
            )
        )
    return Maps("Needles found in %, by depth and length. A darker cell has more.", tuple(maps))
