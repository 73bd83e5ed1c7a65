"""Draw pictures from a seed, with text that OCR can read and that the page does not repeat.

All text is at least 18 px high in DejaVu or Liberation Sans (Pillow's own font where neither is
installed). The same arguments give the same bytes on the same machine.
"""

import io
import random
import zlib
from collections.abc import Sequence
from functools import lru_cache

from PIL import Image, ImageDraw, ImageFilter, ImageFont

_INK = (20, 20, 20)
LEAST_TEXT_PX = 18
"""Smallest text size. All text is dark on pale, which OCR reads best."""

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont
Colour = tuple[int, int, int]

_PALETTE: tuple[Colour, ...] = (
    (38, 84, 124), (153, 62, 62), (48, 107, 82), (120, 86, 34), (92, 70, 130), (30, 110, 120),
    (140, 72, 104), (84, 98, 42),
)  # fmt: skip


@lru_cache(maxsize=32)
def font(size: int, bold: bool = False) -> Font:
    """Return a clear font of `size` pixels, at least `LEAST_TEXT_PX`."""
    size = max(size, LEAST_TEXT_PX)
    for name in ("DejaVuSans", "LiberationSans"):
        style = "-Bold" if bold else ("-Regular" if name.startswith("Lib") else "")
        try:
            return ImageFont.truetype(f"{name}{style}.ttf", size)
        except OSError:
            continue
    return ImageFont.load_default(size)


def _random(*key: object) -> random.Random:
    return random.Random(zlib.crc32(repr(key).encode()))


def _colour(*key: object) -> Colour:
    return _random(*key).choice(_PALETTE)


def _pale(colour: Colour, share: float = 0.85) -> Colour:
    red, green, blue = (round(part + (255 - part) * share) for part in colour)
    return red, green, blue


def _png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def _lines(
    draw: ImageDraw.ImageDraw, lines: Sequence[str], *, width: int, top: int, size: int,
    colour: Colour, bold_first: bool = True,
) -> int:  # fmt: skip
    """Draw centered `lines` from `top` down, shrinking wide lines; return the bottom."""
    for index, line in enumerate(lines):
        height = size
        face = font(height, bold_first and index == 0)
        while height > LEAST_TEXT_PX and draw.textlength(line, face) > width - 24:
            height -= 1
            face = font(height, bold_first and index == 0)
        left = (width - draw.textlength(line, face)) / 2
        draw.text((left, top), line, fill=colour, font=face)
        top += round(height * 1.45)
    return top


def poster(lines: Sequence[str], *, key: str, width: int = 420, height: int = 260) -> bytes:
    """Draw a poster in pale colors; the first line is the headline."""
    colour = _colour(key, "poster")
    image = Image.new("RGB", (width, height), _pale(colour, 0.88))
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 0, width, 9), fill=_pale(colour, 0.7))
    draw.rectangle((0, height - 10, width, height), fill=_pale(colour, 0.7))
    size = max(LEAST_TEXT_PX, min(34, round((height - 60) / max(1, len(lines)) / 1.45)))
    used = round(size * 1.45) * len(lines)
    _lines(draw, lines, width=width, top=(height - used) // 2, size=size, colour=_INK)
    return _png(image)


def label(lines: Sequence[str], *, key: str, width: int = 320, height: int = 0) -> bytes:
    """Draw a box label: a headline and lines on pale paper with a colored edge.

    It has no frame, because Tesseract mistakes framed text for a drawing.
    """
    size = 22
    colour = _colour(key, "label")
    height = height or 44 + round(size * 1.45) * len(lines)
    image = Image.new("RGB", (width, height), _pale(colour, 0.92))
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 0, width, 9), fill=_pale(colour, 0.7))
    _lines(draw, lines, width=width, top=24, size=size, colour=_INK)
    return _png(image)


def receipt(lines: Sequence[tuple[str, str]], *, title: str, width: int = 340) -> bytes:
    """Draw a receipt: `title`, then rows with a text on the left and an amount on the right."""
    step = 30
    image = Image.new("RGB", (width, 70 + step * len(lines)), (252, 251, 246))
    draw = ImageDraw.Draw(image)
    top = _lines(draw, [title], width=width, top=12, size=22, colour=_INK) + 6
    for left, right in lines:
        face = font(20)
        draw.text((16, top), left, fill=_INK, font=face)
        draw.text((width - 16 - draw.textlength(right, face), top), right, fill=_INK,
                  font=face)  # fmt: skip
        top += step
    return _png(image)


def scene(kind: str, *, key: str, width: int = 240, height: int = 180, tag: str = "") -> bytes:
    """Draw a photo-like picture: plain shapes on a background, chosen by `kind` and `key`.

    A white tag with the text `tag`, if any, covers the lower edge.
    """
    rng = _random(key, kind)
    colour = _PALETTE[zlib.crc32(kind.encode()) % len(_PALETTE)]
    image = Image.new("RGB", (width, height), _pale(colour, 0.8))
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, height * 3 // 4, width, height), fill=_pale(colour, 0.65))
    second = _colour(key, "second")
    for _ in range(rng.randint(2, 4)):
        wide, high = rng.randint(width // 3, width // 2), rng.randint(height // 3, height // 2)
        left, top = rng.randint(10, width - wide - 10), rng.randint(10, height - high - 14)
        shape = (left, top, left + wide, top + high)
        fill = rng.choice((_pale(colour, 0.45), _pale(second, 0.45), _pale(colour, 0.55)))
        if rng.random() < 0.5:
            draw.rounded_rectangle(shape, radius=16, fill=fill)
        else:
            draw.ellipse(shape, fill=fill)
    image = image.filter(ImageFilter.GaussianBlur(7))  # OCR would read sharp edges as letters
    if tag:
        draw = ImageDraw.Draw(image)
        draw.rectangle((0, height - 48, width, height), fill=(255, 255, 255))
        _lines(draw, [tag], width=width, top=height - 41, size=26, colour=_INK)
    return _png(image)
