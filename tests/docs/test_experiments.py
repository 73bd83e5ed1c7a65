"""The page of experiments: every claim has rows, or says what it lacks."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/experiments.md").read_text(encoding="utf-8")
RESULTS = ROOT / "lab" / "results"
FEWEST = 60


def claims() -> list[list[str]]:
    """Cells of the rows of all tables whose first column is `claim`."""
    found: list[list[str]] = []
    is_inside = False
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not cells or cells[0] == "claim":
            is_inside = bool(cells)
        elif is_inside and set(line) - set("|-: "):
            found.append(cells)
    return found


def is_lacking(cells: list[str]) -> bool:
    return cells[2].startswith("lacks: ")


def test_the_introduction_counts_the_claims_and_those_without_rows() -> None:
    found = claims()
    lacking = sum(map(is_lacking, found))
    assert len(found) - lacking >= FEWEST
    introduction = " ".join(PAGE.partition("\n## ")[0].split())
    assert f"It holds {len(found)} claims. {lacking} say what they lack" in introduction


def test_a_claim_has_a_verdict_and_committed_rows_or_says_what_it_lacks() -> None:
    for cells in claims():
        assert len(cells) == 5, cells
        _, ran, saw, verdict, rows = cells
        folders = re.findall(r"`([^`]+)`", rows)
        if is_lacking(cells):
            assert (ran, verdict, folders) == ("", "", []), cells
        else:
            assert saw and verdict and folders, cells
        for folder in folders:
            assert (RESULTS / folder / "README.md").is_file(), folder


def test_no_claim_stands_twice() -> None:
    continued = ("The same", "On ")
    titles = [cells[0] for cells in claims() if not cells[0].startswith(continued)]
    assert [title for title in titles if titles.count(title) > 1] == []
