"""`agentkv_lab ocr`: words read in pictures, by contrast and size, and the time of a page.

The contenders read the same pages and take turns, beginning with another one for each page. Each
has a process of its own and no cache.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image
from rich.console import Console
from rich.progress import Progress

import agentkv_env
from agentkv_lab.ocr import reader
from agentkv_lab.ocr.grid import BANDS, SIZES, GridPicture, count_read, draw_grid
from agentkv_lab.ocr.rows import OcrRow
from agentkv_lab.ocr.site_pages import site_pages
from agentkv_lab.ocr.table import tables
from agentkv_tasks.bench.errors import BenchError
from agentkv_tasks.bench.frame import BenchSettings, measured
from agentkv_tasks.provenance import commit, processor, versions
from agentkv_tasks.run.preflight import tesseract_version

OWN = "agentkv"
"""Label of the contender that is this program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OcrBench(BenchSettings):
    """Settings of the measurement."""

    against: Path | None = None
    """Another checkout, the baseline; None: Tesseract on each picture as it is."""
    seed: int = 0
    """Seed of the grid's words."""
    every: int = 1
    """Every n-th picture of the grid is read."""
    pictures: int = 8
    """Pictures of a page of the grid."""
    world_seed: int
    site_pages: int
    """Pages with pictures of each embedded site; 0: none."""


@dataclass(frozen=True, slots=True)
class _Answer:
    seconds: float
    texts: Sequence[str]


_Answers = Mapping[str, Sequence[_Answer]]  # by label, one for each page


def run_bench(bench: OcrBench, console: Console) -> None:
    """Measure, print the tables, and write the rows and their page.

    Raises:
        BenchError: Tesseract, a font or the checkout is missing, or the file of rows exists.
        KeyboardInterrupt: interrupted; nothing was written.
    """
    version = tesseract_version()
    if version is None:
        raise BenchError("no tesseract found; install tesseract-ocr and tesseract-ocr-eng")
    file = bench.new_file(OcrRow, lambda row: (row.label, row.source, row.contrast, row.size))

    measured(
        console,
        file,
        partial(_measure, bench, version),
        tables=tables,
        resume="; run the same command to begin again",
    )


def _measure(bench: OcrBench, tesseract: str, progress: Progress) -> list[OcrRow]:
    grid = draw_grid(bench.seed, every=bench.every)
    pages = [grid[start : start + bench.pictures] for start in range(0, len(grid), bench.pictures)]
    sites = site_pages(bench.world_seed, bench.site_pages) if bench.site_pages else []
    with ExitStack() as stack:
        readers = {
            label: stack.enter_context(_reader(env, *arguments))
            for label, env, arguments in _contenders(bench)
        }
        bar = progress.add_task("reading", total=len(pages) + len(sites))
        images = [[picture.image for picture in page] for page in pages]
        of_grid = _read(readers, images, lambda: progress.advance(bar))
        of_sites = _read(readers, sites, lambda: progress.advance(bar))
    about = {
        "settings": {
            "seed": bench.seed,
            "every": bench.every,
            "pictures": bench.pictures,
            "site_pages": bench.site_pages,
        },
        "versions": versions(tesseract=tesseract),
        "device": processor(),
        "commit": commit(),
        "command": bench.command,
    }
    rows = [*_grid_rows(grid, of_grid, about)]
    if sites:
        rows += _site_rows(f"world {bench.world_seed}", of_sites, about)
    return rows


def _contenders(bench: OcrBench) -> Iterator[tuple[str, Path, tuple[str, ...]]]:
    """Yield label, folder of agentkv_env and arguments of the reader; the first is the baseline."""
    own = Path(agentkv_env.__file__).parents[1]
    if bench.against is not None:
        env = bench.against / "env"
        if not (env / "agentkv_env" / "ocr.py").is_file():
            raise BenchError(f"--against {bench.against} holds no env/agentkv_env/ocr.py")
        name = bench.against.resolve().name
        yield "before" if name == OWN else name, env, ()
    else:
        yield "alone", own, ("alone",)
    yield OWN, own, ()


@contextmanager
def _reader(env: Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-P", reader.__file__, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(env.resolve())},
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def _read(
    readers: Mapping[str, "subprocess.Popen[str]"],
    pages: Sequence[Sequence[Image.Image]],
    on_page: Callable[[], object],
) -> _Answers:
    labels = list(readers)
    found: dict[str, list[_Answer]] = {label: [] for label in labels}
    for number, page in enumerate(pages):
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for place, image in enumerate(page):
                paths.append(f"{folder}/{place}.png")
                image.save(paths[-1])
            first = number % len(labels)
            for label in [*labels[first:], *labels[:first]]:
                found[label].append(_ask(readers[label], paths))
        on_page()
    return found


def _ask(process: "subprocess.Popen[str]", paths: Sequence[str]) -> _Answer:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(paths) + "\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise BenchError("a process that reads pictures has ended; its error stands above")
    return _Answer(*json.loads(line))


def _grid_rows(
    grid: Sequence[GridPicture], answers: _Answers, about: Mapping[str, Any]
) -> Iterator[OcrRow]:
    for label, (own, base, common) in _compared("grid", answers).items():
        for band, _ in BANDS:
            for size in SIZES:
                chosen = [
                    number
                    for number, picture in enumerate(grid)
                    if picture.band == band and picture.size == size
                ]
                if not chosen:
                    continue
                counts = {False: [0, 0], True: [0, 0]}  # is rotated -> words read, words
                for number in chosen:
                    picture, count = grid[number], counts[grid[number].angle != 0]
                    count[0] += count_read(picture.words, own[number])
                    count[1] += len(picture.words)
                yield OcrRow(
                    label=label,
                    contrast=band,
                    size=size,
                    num_pictures=len(chosen),
                    num_words=counts[False][1],
                    recall=_share(*counts[False]),
                    num_words_rotated=counts[True][1],
                    recall_rotated=_share(*counts[True]),
                    num_equal=sum(own[number] == base[number] for number in chosen),
                    **common,
                    **about,
                )


def _site_rows(source: str, answers: _Answers, about: Mapping[str, Any]) -> Iterator[OcrRow]:
    for label, (own, base, common) in _compared(source, answers).items():
        yield OcrRow(
            label=label,
            contrast="",
            size=0,
            num_pictures=len(own),
            num_words=0,
            recall=None,
            num_words_rotated=0,
            recall_rotated=None,
            num_equal=sum(map(str.__eq__, own, base)),
            **common,
            **about,
        )


def _compared(
    source: str, answers: _Answers
) -> dict[str, tuple[list[str], list[str], dict[str, Any]]]:
    """Return the texts of each contender, those of the baseline, and fields of all its rows."""
    baseline, *_ = answers
    texts = {
        label: [text for answer in read for text in answer.texts] for label, read in answers.items()
    }
    found = {}
    for label, read in answers.items():
        pairs = zip(read, answers[baseline], strict=True)
        common = {
            "source": source,
            "baseline": baseline,
            "num_pages": len(read),
            "page_s": statistics.median(answer.seconds for answer in read),
            "page_ratio": statistics.median(own.seconds / base.seconds for own, base in pairs),
        }
        found[label] = (texts[label], texts[baseline], common)
    return found


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
