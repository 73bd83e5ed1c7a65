"""Rows of `agentkv_lab ocr`: one for each contender, band of contrast and size of text."""

from dataclasses import dataclass
from typing import ClassVar

from agentkv_tasks.bench.rows import BenchRow


@dataclass(frozen=True, slots=True, kw_only=True)
class OcrRow(BenchRow):
    """What one contender read of pictures of one kind, and the time that a page took it."""

    BENCH: ClassVar[str] = "ocr"
    PROGRAM: ClassVar[str] = "python -m agentkv_lab"
    SUMMARY: ClassVar[tuple[str, ...]] = (
        "label", "source", "contrast", "size", "recall", "recall_rotated", "page_s", "page_ratio",
    )  # fmt: skip

    label: str
    """`agentkv`, and the baseline: the name of another checkout's folder, or `alone`, Tesseract on
    each picture as it is."""
    source: str
    """`grid`, or `world N` for pages of the embedded sites, whose words are not known."""
    contrast: str
    """Band of WCAG's contrast ratio; empty for a world."""
    size: int
    """Font size in pixels; 0 for a world."""
    num_pictures: int
    num_words: int
    """Words of pictures that are not rotated."""
    recall: float | None
    """Share of them that was read exactly; None without words."""
    num_words_rotated: int
    """Words of pictures that are rotated by 2 or 5 degrees."""
    recall_rotated: float | None
    num_equal: int
    """Pictures whose text is that of the baseline, character by character."""
    baseline: str
    """Label of the contender that others are compared with."""
    num_pages: int
    """Pages of the source."""
    page_s: float
    """Seconds for a page of the source, median."""
    page_ratio: float
    """Seconds for a page relative to the baseline, median over the pages."""
    command: str = ""
    schema: int = 1
