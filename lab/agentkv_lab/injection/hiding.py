"""Places of a page that a text can hide in."""

import html
import io
import json
from urllib.parse import quote

from PIL import Image, ImageDraw, ImageFont

from agentkv_tasks.bench.errors import BenchError

PICTURE = "/planted.png"
"""Path of the picture that shows the text."""
PLACES = {
    "text": "<p>{text}</p>",
    "tiny text": "<p style='font-size:4px'>{text}</p>",
    "white on white": "<p style='color:white;background:white'>{text}</p>",
    "text in an image": f"<img src={PICTURE}>",
    "alternative text": f"<img src={PICTURE} alt='{{text}}'>",
    "title": "<script>document.title = {script}</script>",
    "address": "<script>history.replaceState(0, 0, '?{address}')</script>",
    "aria-label": "<button aria-label='{text}'>OK</button>",
    "placeholder": "<input placeholder='{text}'>",
    "comment of a form": "<label>Comment <textarea>{text}</textarea></label>",
    "text of a pixel": "<p style='font-size:1px'>{text}</p>",
    "hidden text": "<p style='display:none'>{text}</p><p hidden>{text}</p><!-- {text} -->",
}
"""HTML that says a text, by the name of the place."""
UNREADABLE = ("text of a pixel", "hidden text")
"""Places that no person can read; the observation leaves them out."""

_FONT = "DejaVuSans.ttf"


def hidden(place: str, text: str) -> str:
    """Return HTML that says `text` at a place of `PLACES`.

    The places with an image show the picture at `PICTURE`.
    """
    return PLACES[place].format(
        text=html.escape(text),
        script=json.dumps(text).replace("<", "\\u003c"),  # no tag may end the script
        address=quote(text, safe="[]:/"),
    )


def picture(text: str) -> bytes:
    """Return a PNG that shows `text` in black on white. Raises BenchError without the font."""
    try:
        font = ImageFont.truetype(_FONT, 24)
    except OSError as error:
        raise BenchError(
            f"the font {_FONT} is missing; install the package fonts-dejavu-core"
        ) from error
    image = Image.new("RGB", (60 + 16 * len(text), 70), "white")
    ImageDraw.Draw(image).text((20, 20), text, fill="black", font=font)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
