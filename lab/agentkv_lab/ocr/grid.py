"""Pictures with known words, over colors, sizes, fonts and rotations."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from PIL import Image, ImageColor, ImageDraw, ImageFont

from agentkv_tasks.bench.errors import BenchError

Color = tuple[int, int, int]

SIZES = (12, 16, 20, 28, 40)
"""Font sizes in pixels."""
ANGLES = (0, 0, 2, -2, 5)
"""Rotations in degrees; a picture that is not rotated is drawn twice, in two fonts."""
FONTS = (
    *("DejaVuSans", "LiberationSans-Regular", "DejaVuSans-Bold", "LiberationSerif-Regular"),
    *("DejaVuSerif", "LiberationSans-Bold"),
)
BANDS = (("below 2", 2.0), ("2 to 3", 3.0), ("3 to 4.5", 4.5), ("4.5 to 7", 7.0), ("from 7", 99.0))
"""Names of the bands of contrast, and the ratio below which each ends. WCAG asks for 3 in large
text and in graphics, for 4.5 in other text, and for 7 where contrast is enhanced."""

_RANDOM_PAIRS = 12
_PAIRS = (
    *(("black", f"#{level:02x}{level:02x}{level:02x}") for level in range(120, 256, 15)),
    *(("white", f"#{level:02x}{level:02x}{level:02x}") for level in (0, 50, 65, 80, 95, 105, 119)),
    *(("white", paper) for paper in ("#007bff", "#dc3545", "#343a40", "#28a745", "#6c757d")),
    *(("white", paper) for paper in ("#17a2b8", "navy", "purple")),
    *(("black", paper) for paper in ("orange", "skyblue", "gold", "#17a2b8", "tomato")),
    *(("black", "limegreen"), ("yellow", "black"), ("red", "white"), ("blue", "yellow")),
    *(("gold", "indigo"), ("darkred", "bisque"), ("darkorange", "midnightblue")),
    *(("#767676", "white"), ("#336699", "#cce0ff"), ("#222222", "#777777"), ("#dddddd", "#777777")),
    *(("#aaaaaa", "white"), ("#999999", "#555555"), ("red", "lime"), ("#e0e0e0", "#b0b0b0")),
)  # fmt: skip
_WORDS = (
    "about active after autumn balance before better bright build camera careful center change "
    "choice coffee corner create daily delivery design discount dinner early energy evening every "
    "family festival final fresh garden gentle grand green guide handle harbor health honest "
    "journey kitchen large laundry learn library light market member modern morning mountain music "
    "never notice number offer office orange order paper party people picture planet pocket "
    "present quality quick reason return river saturday school season second service simple spring "
    "station storage street student summer sunday table ticket today travel under update valley "
    "village visit voucher water weather weekend welcome window winter wonder yellow young"
).split()


@dataclass(frozen=True, slots=True, kw_only=True)
class GridPicture:
    """A picture, its words, and how they are drawn."""

    image: Image.Image
    words: Sequence[str]
    ink: Color
    paper: Color
    size: int
    """Font size in pixels."""
    angle: int
    """Rotation in degrees."""
    font: str
    has_card: bool
    """A white card with a word in black stands above."""

    @property
    def contrast(self) -> float:
        """Contrast ratio of ink and paper, 1 to 21; source: WCAG 2.2."""
        darker, lighter = sorted(map(_luminance, (self.ink, self.paper)))
        return (lighter + 0.05) / (darker + 0.05)

    @property
    def band(self) -> str:
        """Name of the contrast's band."""
        return next(name for name, end in BANDS if self.contrast < end)


def draw_grid(seed: int, *, every: int = 1) -> list[GridPicture]:
    """Return the pictures in an order drawn from `seed`, as are words and some of the colors.

    Args:
        every: keep every n-th picture.

    Raises:
        BenchError: a font is not installed.
    """
    rng = random.Random(seed)
    pictures = list(_draw(rng))
    rng.shuffle(pictures)
    return pictures[::every]


def count_read(words: Sequence[str], text: str) -> int:
    """Return how many of the words stand in a text, each as often as it is there.

    Case counts; punctuation around a word of the text does not.
    """
    left = [word.strip(".,:;!'\"|-_‘’“”—") for word in text.split()]
    found = 0
    for word in words:
        if word in left:
            left.remove(word)
            found += 1
    return found


def _draw(rng: random.Random) -> Iterator[GridPicture]:
    pairs = [(_rgb(ink), _rgb(paper)) for ink, paper in _PAIRS]
    pairs += [(_any_color(rng), _any_color(rng)) for _ in range(_RANDOM_PAIRS)]
    number = 0
    for ink, paper in pairs:
        for size in SIZES:
            for angle in ANGLES:
                font = FONTS[number % len(FONTS)]
                has_card = number % 3 == 0 and not angle
                yield _picture(rng, ink, paper, size, angle, font, has_card)
                number += 1


def _picture(
    rng: random.Random,
    ink: Color,
    paper: Color,
    size: int,
    angle: int,
    font: str,
    has_card: bool,
) -> GridPicture:
    face = _face(font, size)
    lines = [[_word(rng), _word(rng)], [_word(rng), _word(rng)]]
    if rng.random() < 0.5:
        lines[1][1] = str(rng.randint(1000, 9999))
    step, width = round(1.5 * size), max(face.getlength(" ".join(line)) for line in lines)
    image = Image.new("RGB", (round(width) + 2 * size, 2 * step + 3 * size // 2), paper)
    draw = ImageDraw.Draw(image)
    for number, line in enumerate(lines):
        draw.text((size, size + number * step), " ".join(line), fill=ink, font=face)
    if angle:
        image = image.rotate(angle, Image.Resampling.BICUBIC, expand=True, fillcolor=paper)
    if has_card:
        lines.append([_word(rng)])
        top = step + size
        card = Image.new("RGB", (image.width, image.height + top), "white")
        ImageDraw.Draw(card).text((size, size // 2), lines[-1][0], fill="black", font=face)
        card.paste(image, (0, top))
        image = card
    return GridPicture(
        image=image,
        words=tuple(word for line in lines for word in line),
        ink=ink,
        paper=paper,
        size=size,
        angle=angle,
        font=font,
        has_card=has_card,
    )


def _word(rng: random.Random) -> str:
    word = rng.choice(_WORDS)
    return rng.choice((word, word.capitalize(), word.upper()))


def _face(font: str, size: int) -> ImageFont.FreeTypeFont:
    try:
        return ImageFont.truetype(f"{font}.ttf", size)
    except OSError as error:
        raise BenchError(
            f"the font {font} is missing; install the packages fonts-dejavu-extra and "
            "fonts-liberation"
        ) from error


def _rgb(name: str) -> Color:
    red, green, blue, *_ = ImageColor.getrgb(name)
    return red, green, blue


def _any_color(rng: random.Random) -> Color:
    return rng.randrange(256), rng.randrange(256), rng.randrange(256)


def _luminance(color: Color) -> float:
    """Return the relative luminance, 0 to 1; source: WCAG 2.2."""
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (value / 255 for value in color)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
