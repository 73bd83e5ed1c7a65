"""Read text inside images with Tesseract, each image once and all new images in one run.

Starting Tesseract takes about 0.1 s, reading an image about 20 ms. New images are therefore read
together on one mosaic, and results are cached by the hash of the pixels. Text on colored grounds
is turned into dark text on white first (`flatten`), because Tesseract binarizes the mosaic as a
whole.
"""

import hashlib
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from PIL import Image, ImageOps

from agentkv_env.flatten import flatten
from agentkv_env.user_cache import user_cache

VERSION = "2"
"""Version of the settings below; results of other versions are not used."""

GUTTER = 40  # pixels between images on the mosaic; below 20, Tesseract joins words across images
MOSAIC_WIDTH = 2400
MOSAIC_AREA = 16_000_000  # pixels; larger sets of images are read in several runs
UPSCALED = 1000  # images with no longer side are doubled: 12-16 px text is read far better
MIN_WORD_CONFIDENCE = 30  # percent, Tesseract's own; our choice, as is the next
MIN_LINE_CONFIDENCE = 50
DARK = 110  # images with a lower mean gray level are inverted
STRETCHED = 128  # images with a smaller range of gray levels are stretched to the full range
FAINT = 70  # a line with a smaller gray-level contrast is marked as faint
TIMEOUT_S = 20.0  # for one call of `read`


class OcrMissing(RuntimeError):
    """No Tesseract was found; the message says how to install it."""


@dataclass(frozen=True, slots=True)
class OcrLine:
    """One line of text in an image; the box is in fractions of the image's width and height."""

    text: str
    x: float
    y: float
    width: float
    height: float
    faint: bool


def default_cache() -> Path:
    """Return the folder of results kept between runs: agentkv/ocr in the user's cache folder."""
    return user_cache("ocr")


class Ocr:
    """Reads images with Tesseract and caches the results."""

    def __init__(self, cache: Path | None = None, *, timeout_s: float = TIMEOUT_S) -> None:
        """Cache results in the folder `cache`, made when first needed, or only in memory if None.

        `timeout_s` limits each call of `read`, in seconds.

        Raises:
            OcrMissing: `tesseract` is not on PATH.
        """
        if shutil.which("tesseract") is None:
            raise OcrMissing(
                "no tesseract found, so text inside images cannot be read; install tesseract-ocr "
                "and tesseract-ocr-eng with your system's packages"
            )
        self.cache = cache
        self.timeout_s = timeout_s
        self.num_runs = 0
        """Number of times Tesseract was started."""
        self._known: dict[str, tuple[OcrLine, ...]] = {}
        self._failed: set[str] = set()

    @classmethod
    def find(cls, cache: Path | None = None) -> Self | None:
        """Return an Ocr, or None if there is no Tesseract."""
        try:
            return cls(cache)
        except OcrMissing:
            return None

    def recall(self, key: str) -> tuple[OcrLine, ...] | None:
        """Return the cached lines of the image with this key, or None if it was never read."""
        if key in self._failed:
            return ()
        if key in self._known:
            return self._known[key]
        if self.cache is None:
            return None
        try:
            entries = json.loads(self._path(key).read_text(encoding="utf-8"))
            lines = tuple(OcrLine(**entry) for entry in entries)
        except (OSError, ValueError, TypeError):
            return None  # absent or damaged: read the image again
        self._known[key] = lines
        return lines

    def read(self, images: Mapping[str, Image.Image]) -> dict[str, tuple[OcrLine, ...]]:
        """Return the lines of each image by key; new images are read together and remembered.

        A key identifies the decoded pixels, see `image_key`. An image that Tesseract failed to
        read, or had no time for, is absent and is not tried again.
        """
        until = time.monotonic() + self.timeout_s
        images = {key: image for key, image in images.items() if key not in self._failed}
        found = {key: lines for key in images if (lines := self.recall(key)) is not None}
        new = {key: image for key, image in images.items() if key not in found}
        for batch in _batches(new):
            left_s = until - time.monotonic()
            try:
                read = self._read_batch(batch, left_s) if left_s > 0 else {}
            except (RuntimeError, OSError):  # pytesseract's timeouts and failures
                read = {}
            for key, lines in read.items():
                self._known[key] = found[key] = lines
                self._save(key, lines)
        self._failed.update(new.keys() - found.keys())
        return found

    def _read_batch(
        self, batch: Sequence[tuple[str, Image.Image]], timeout_s: float
    ) -> dict[str, tuple[OcrLine, ...]]:
        import pytesseract  # only here: it imports pandas, and many sessions read no image

        mosaic, cells = _compose_mosaic([image for _, image in batch])
        mosaic.format = "PPM"  # how Tesseract gets it: PNG would take 0.1 s more to compress
        self.num_runs += 1
        with _one_thread():
            words: dict[str, list[Any]] = pytesseract.image_to_data(
                mosaic,
                config="--psm 11",
                output_type=pytesseract.Output.DICT,
                timeout=timeout_s,
            )
        grouped = _words_by_cell(words, cells)
        return {
            key: tuple(_lines(grouped[index], cells[index], image.convert("L")))
            for index, (key, image) in enumerate(batch)
        }

    def _path(self, key: str) -> Path:
        assert self.cache is not None
        name = hashlib.sha256(f"{VERSION}:{key}".encode()).hexdigest()[:32]
        return self.cache / name[:2] / f"{name}.json"

    def _save(self, key: str, lines: tuple[OcrLine, ...]) -> None:
        if self.cache is None:
            return
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Written to a temporary file and renamed, because several workers share the folder.
            with tempfile.NamedTemporaryFile(
                "w", dir=path.parent, delete=False, encoding="utf-8"
            ) as file:
                json.dump([asdict(line) for line in lines], file)
            os.replace(file.name, path)
        except OSError:
            self.cache = None  # an unwritable cache is not tried again


def image_key(image: Image.Image) -> str:
    """Return the key of an image, a hash of its pixels."""
    digest = hashlib.sha256(image.convert("RGB").tobytes()).hexdigest()[:32]
    return f"{digest}-{image.width}x{image.height}"


_environment = threading.Lock()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limit Tesseract to one thread; on two cores its own threading is 2 to 7 times slower."""
    with _environment:
        before = os.environ.get("OMP_THREAD_LIMIT")
        os.environ["OMP_THREAD_LIMIT"] = "1"
        try:
            yield
        finally:
            if before is None:
                del os.environ["OMP_THREAD_LIMIT"]
            else:
                os.environ["OMP_THREAD_LIMIT"] = before


Cell = tuple[int, int, int, int]  # x, y, width, height on the mosaic


@dataclass(frozen=True, slots=True)
class _Word:
    row: tuple[int, int, int]
    """Tesseract's block, paragraph and line."""
    text: str
    confidence: float
    left: int
    top: int
    right: int
    bottom: int


def _prepare(image: Image.Image) -> Image.Image:
    """Return the image in gray, large enough, and dark on light, as all images of a mosaic."""
    grey = image.convert("L")
    flat = flatten(grey)
    if flat is not None:
        return _enlarge(flat)
    grey = _enlarge(grey)
    if grey.resize((1, 1), Image.Resampling.BOX).getpixel((0, 0)) < DARK:  # type: ignore[operator]
        grey = ImageOps.invert(grey)
    low, high = grey.getextrema()
    if high - low < STRETCHED:  # type: ignore[operator]
        grey = ImageOps.autocontrast(grey)
    return grey


def _enlarge(grey: Image.Image) -> Image.Image:
    if max(grey.size) > UPSCALED:
        return grey
    return grey.resize((grey.width * 2, grey.height * 2), Image.Resampling.LANCZOS)


def _batches(images: Mapping[str, Image.Image]) -> Iterator[list[tuple[str, Image.Image]]]:
    batch: list[tuple[str, Image.Image]] = []
    area = 0
    for key, image in images.items():
        size = image.width * image.height * (4 if max(image.size) <= UPSCALED else 1)
        if batch and area + size > MOSAIC_AREA:
            yield batch
            batch, area = [], 0
        batch.append((key, image))
        area += size
    if batch:
        yield batch


def _compose_mosaic(images: Sequence[Image.Image]) -> tuple[Image.Image, list[Cell]]:
    """Arrange the images in rows on white; return the mosaic and the cell of each image."""
    scaled = [_prepare(image) for image in images]
    cells: list[Cell] = []
    x = y = GUTTER
    row_height = width = 0
    for image in scaled:
        if x > GUTTER and x + image.width > MOSAIC_WIDTH:
            x, y, row_height = GUTTER, y + row_height + GUTTER, 0
        cells.append((x, y, image.width, image.height))
        x += image.width + GUTTER
        width = max(width, x)
        row_height = max(row_height, image.height)
    mosaic = Image.new("L", (width, y + row_height + GUTTER), 255)
    for image, cell in zip(scaled, cells, strict=True):
        mosaic.paste(image, cell[:2])
    return mosaic, cells


def _words_by_cell(words: Mapping[str, Sequence[Any]], cells: Sequence[Cell]) -> list[list[_Word]]:
    grouped: list[list[_Word]] = [[] for _ in cells]
    columns = (
        *("text", "conf", "block_num", "par_num", "line_num"),
        *("left", "top", "width", "height"),
    )
    for found in zip(*(words[name] for name in columns), strict=True):
        text, confidence = str(found[0]).strip(), float(found[1])
        block, paragraph, line, left, top, width, height = map(int, found[2:])
        if not text or confidence < MIN_WORD_CONFIDENCE:
            continue
        word = _Word(
            (block, paragraph, line), text, confidence, left, top, left + width, top + height
        )
        x, y = left + width / 2, top + height / 2
        for number, cell in enumerate(cells):
            if cell[0] <= x < cell[0] + cell[2] and cell[1] <= y < cell[1] + cell[3]:
                grouped[number].append(word)
                break
    return grouped


def _lines(words: Sequence[_Word], cell: Cell, grey: Image.Image) -> Iterator[OcrLine]:
    rows: dict[tuple[int, int, int], list[_Word]] = {}
    for word in words:
        rows.setdefault(word.row, []).append(word)
    for row in sorted(rows.values(), key=lambda row: (min(word.top for word in row), row[0].left)):
        text = " ".join(word.text for word in sorted(row, key=lambda word: word.left))
        confidence = sum(word.confidence for word in row) / len(row)
        if confidence < MIN_LINE_CONFIDENCE or not any(letter.isalnum() for letter in text):
            continue
        if len(text) == 1 and confidence < 80:
            continue  # texture read as a letter
        x, y, width, height = cell
        left = (min(word.left for word in row) - x) / width
        top = (min(word.top for word in row) - y) / height
        right = (max(word.right for word in row) - x) / width
        bottom = (max(word.bottom for word in row) - y) / height
        seen = grey.crop(
            (
                round(left * grey.width),
                round(top * grey.height),
                round(right * grey.width),
                round(bottom * grey.height),
            )
        )
        yield OcrLine(text, left, top, right - left, bottom - top, faint=_contrast(seen) < FAINT)


def _contrast(grey: Image.Image) -> int:
    """Return the gray levels between the 2nd and the 98th percentile."""
    counts = grey.histogram()
    total = grey.width * grey.height
    low = high = seen = 0
    for level, count in enumerate(counts):
        if seen < total * 0.02:
            low = level
        if seen < total * 0.98:
            high = level
        seen += count
    return high - low
