"""`agentkv_lab ocr` reads pictures with known words, and pages of the embedded sites."""

import json
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from agentkv_env.flatten import flatten
from agentkv_env.ocr import Ocr
from agentkv_lab.ocr.grid import GridPicture, count_read, draw_grid
from agentkv_lab.ocr.measure import OcrBench, run_bench
from agentkv_lab.ocr.rows import OcrRow
from agentkv_lab.ocr.site_pages import site_pages
from agentkv_tasks.bench.errors import BenchError


def checkout_called(name: str, folder: Path) -> Path:
    """Return a checkout with the program that is tested."""
    checkout = folder / name
    checkout.mkdir()
    (checkout / "env").symlink_to(Path(__file__).parents[2] / "env")
    return checkout


def test_contenders_read_the_same_pictures(tmp_path: Path) -> None:
    checkout = checkout_called("same", tmp_path)
    bench = OcrBench(
        against=checkout, every=300, site_pages=1, world_seed=75, out=tmp_path / "rows.jsonl"
    )
    run_bench(bench, Console(quiet=True))
    rows = [OcrRow(**json.loads(line)) for line in bench.out.read_text().splitlines()]
    assert {row.label for row in rows} == {"same", "agentkv"}
    num_words = {
        label: sum(row.num_words + row.num_words_rotated for row in rows if row.label == label)
        for label in ("same", "agentkv")
    }
    assert len(set(num_words.values())) == 1 and num_words["agentkv"] > 0
    for row in rows:
        assert row.baseline == "same" and row.page_s > 0
        assert row.num_equal == row.num_pictures  # one program under two names
    with pytest.raises(BenchError, match="has rows; give another --out"):
        run_bench(bench, Console(quiet=True))


def test_without_another_checkout_the_baseline_is_tesseract_alone(tmp_path: Path) -> None:
    bench = OcrBench(every=500, site_pages=0, world_seed=75, out=tmp_path / "rows.jsonl")
    run_bench(bench, Console(quiet=True))
    rows = [OcrRow(**json.loads(line)) for line in bench.out.read_text().splitlines()]
    assert {(row.label, row.baseline) for row in rows} == {("alone", "alone"), ("agentkv", "alone")}


def test_another_checkout_called_like_us_has_a_label_of_its_own(tmp_path: Path) -> None:
    other = checkout_called("agentkv", tmp_path)
    bench = OcrBench(
        against=other, every=500, site_pages=0, world_seed=75, out=tmp_path / "rows.jsonl"
    )
    run_bench(bench, Console(quiet=True))
    rows = [OcrRow(**json.loads(line)) for line in bench.out.read_text().splitlines()]
    assert {row.label for row in rows} == {"before", "agentkv"}


def test_another_checkout_must_have_an_ocr(tmp_path: Path) -> None:
    bench = OcrBench(
        against=tmp_path, every=500, site_pages=0, world_seed=75, out=tmp_path / "rows.jsonl"
    )
    with pytest.raises(BenchError, match=r"holds no env/agentkv_env/ocr\.py"):
        run_bench(bench, Console(quiet=True))


@pytest.mark.parametrize(
    ("ink", "ratio"), [((0, 0, 0), 21.0), ((118, 118, 118), 4.54), ((255, 0, 0), 4.0)]
)
def test_contrast_is_wcag_s(ink: tuple[int, int, int], ratio: float) -> None:
    picture = GridPicture(
        image=Image.new("RGB", (1, 1)), words=(), ink=ink, paper=(255, 255, 255), size=16, angle=0,
        font="", has_card=False,
    )  # fmt: skip
    assert picture.contrast == pytest.approx(ratio, abs=0.005)


def test_words_count_as_often_as_they_are_read() -> None:
    assert count_read(["Tea", "tea", "42"], "tea, 42!") == 2
    assert count_read(["Tea", "Tea"], "Tea Tea Tea") == 2
    assert count_read(["Tea"], "Teal") == 0


@pytest.mark.slow
def test_pictures_of_a_whole_world_reach_tesseract_as_they_are() -> None:
    pictures = [image for page in site_pages(1000077, 10_000) for image in page]
    assert len(pictures) > 100
    assert [flatten(image.convert("L")) for image in pictures] == [None] * len(pictures)


@pytest.mark.slow
def test_of_upright_words_with_a_contrast_of_three_and_16_pixels_95_of_100_are_read() -> None:
    wanted = [each for each in draw_grid(1, every=8) if each.contrast >= 3 and each.size >= 16]
    num_read, num_words = Counter[bool](), Counter[bool]()
    for start in range(0, len(wanted), 8):
        page = {str(number): each for number, each in enumerate(wanted[start : start + 8])}
        found = Ocr(timeout_s=300).read({key: each.image for key, each in page.items()})
        for key, each in page.items():
            said = "\n".join(line.text for line in found[key])
            num_read[each.angle != 0] += count_read(each.words, said)
            num_words[each.angle != 0] += len(each.words)
    assert num_read[False] >= 0.95 * num_words[False]
    assert num_read[True] >= 0.9 * num_words[True]  # letters of large and bold words are misread
