"""The pictures of the README and of the page of benchmarks are drawn from the committed rows."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from agentkv_lab import lengths
from agentkv_lab.picture import RUNS, picture
from agentkv_tasks.report.pool import read_runs
from agentkv_tasks.results import Row

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return [row for run in read_runs(RUNS).values() for row in run]


def test_the_committed_pictures_are_what_the_rows_give() -> None:
    assert (ROOT / "docs" / "success.svg").read_text(encoding="utf-8") == picture()
    assert (ROOT / "docs" / "lengths.svg").read_text(encoding="utf-8") == lengths.picture()


def test_every_policy_has_its_name_in_the_picture() -> None:
    drawn = picture()
    for name in ("full", "int4", "lookback-int8", "window", "conf-kv-l", "last page only"):
        assert f">{name}</text>" in drawn


def test_a_task_counts_under_every_policy_in_the_band_of_the_full_cache(rows: list[Row]) -> None:
    found = lengths.bands(rows)
    full = {(row.world_seed, row.task_id): row for row in rows if row.policy == "full"}
    assert sum(band.num_episodes for band in found["full"]) == len(full) == 225
    for policy, by_length in found.items():
        assert [band.num_episodes for band in by_length] == [
            band.num_episodes for band in found["full"]
        ]
        long = [
            row.success
            for row in rows
            if row.policy == policy
            and (full[row.world_seed, row.task_id].kv_seen_tokens or 0) >= lengths.BANDS[-1][0]
        ]
        assert (by_length[-1].num_successes, by_length[-1].num_episodes) == (sum(long), len(long))


def test_a_policy_without_a_task_in_a_band_is_refused(rows: list[Row]) -> None:
    short = [replace(row, kv_seen_tokens=500) for row in rows[:50]]
    with pytest.raises(ValueError, match="has no task in one of the bands"):
        lengths.bands(short)


def test_a_higher_point_is_a_larger_share(rows: list[Row]) -> None:
    found = lengths.bands(rows)
    full, int4, *_ = re.findall(r'points="([^"]+)"', lengths.chart(found))
    for policy, points in (("full", full), ("int4", int4)):
        heights = [float(point.split(",")[1]) for point in points.split()]
        shares = [band.value for band in found[policy]]
        order = sorted(range(len(shares)), key=lambda place: shares[place])
        assert [heights[place] for place in order] == sorted(heights, reverse=True)
