"""Text for terminals: bytes for people, and output that cannot act as control sequences."""

import re
import sys
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


_LONGEST = 1500
"""Characters of a message that are printed."""


def one_line(message: str) -> str:
    """Return `message` on one line, without control characters that a quoted file or page may
    hold."""
    line = plain(" ".join(message.split()))
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} ..."


def note(line: str) -> None:
    """Print a line on stderr that a user should know before work starts; nothing if it is empty."""
    if line:
        print(f"agentkv: note: {one_line(line)}", file=sys.stderr)


def human_bytes(count: float | None) -> str:
    """Format bytes as `812 KiB` or `4.2 MiB`; a dash stands for None."""
    if count is None:
        return "-"
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1000 or unit == "GiB":
            return f"{size:.0f} {unit}" if size >= 100 or unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("the last unit takes all")


UNITS = {"MiB": 1024**2, "GiB": 1024**3}


def in_unit(count: float, unit: str) -> str:
    """Format bytes in one of `UNITS`, without its name: `1,234`, `98.9` or `3.14`."""
    size = count / UNITS[unit]
    return f"{size:,.0f}" if size >= 100 else f"{size:.1f}" if size >= 10 else f"{size:.2f}"


def human_rate(num_tokens: int, seconds: float) -> str:
    """Format tokens per second as `1,234 tokens/s` or `3.1 tokens/s`; a dash for a single token,
    which reading the prompt gives, and for no time."""
    if num_tokens < 2 or seconds <= 0:
        return "-"
    rate = num_tokens / seconds
    return f"{rate:,.0f} tokens/s" if rate >= 10 else f"{rate:.1f} tokens/s"


def plain(text: str) -> str:
    """Return `text` with all control characters made visible, except line breaks and tabs.

    ASCII control characters become their pictures (U+2400 onwards). All other characters that a
    terminal might obey or cannot show become U+FFFD.
    """
    return _CONTROL.sub(_picture, text)


def _picture(found: re.Match[str]) -> str:
    number = ord(found[0])
    return chr(0x2400 + number) if number < 0x20 else "\u2421" if number == 0x7F else "\ufffd"


class Terminal(Console):
    """A rich console that passes every text through `plain`; rich's own styles still apply."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as rich does, with the text of every segment made plain."""
        for segment in super().render(renderable, options):
            if segment.control is None:
                yield Segment(plain(segment.text), segment.style)
            else:
                yield segment
