"""The door to the terminal: no text of a page, a model or a file can steer it."""

import re
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def plain(text: str) -> str:
    """`text` with control characters made visible: those of ASCII as their pictures (U+2400), all
    else that a terminal might obey, or could not show, as U+FFFD. Line breaks and tabs stay."""
    return _STEERING.sub(_picture, text)


def _picture(found: re.Match[str]) -> str:
    number = ord(found[0])
    return chr(0x2400 + number) if number < 0x20 else "\u2421" if number == 0x7F else "\ufffd"


class Terminal(Console):
    """A console of rich's on which every text is `plain`; only its own styles steer."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control is None:
                yield Segment(plain(segment.text), segment.style)
            else:
                yield segment
