"""Build the nodes of a page from the walk's result and from the text in its images."""

import base64
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from PIL import Image

from agentkv_env.ocr import Ocr, OcrLine, image_key
from agentkv_env.page import Box, Cell, Node
from agentkv_env.sanitize import clean

Found = Mapping[str, Any]  # a node as scripts/walk.js writes it


class ImageTextReader:
    """Reads the text in a page's images, from their pixels or from a crop of the screenshot."""

    def __init__(self, ocr: Ocr) -> None:
        self._ocr = ocr
        self._crops: dict[tuple[object, ...], str] = {}  # position in a document -> image key
        self._images: dict[str, Image.Image] = {}  # collected images, not read yet
        self._num_missed = 0

    def collect(
        self,
        nodes: Iterable[Found],
        *,
        document: str,
        pixels: Callable[[str, int], str],
        screenshot: Callable[[], bytes],
        viewport: tuple[int, int],
    ) -> dict[tuple[str, int], str]:
        """Return image keys by (frame, picture number) for `read`, asking the browser for pixels.

        Args:
            nodes: nodes of the walk; those without a picture are skipped.
            document: token of the document; each position in it is cropped once.
            pixels: returns the PNG data URL of a picture, or "" if it may not be read.
            screenshot: returns a PNG of the viewport, empty if there is none; called at most once.
            viewport: width and height in pixels.
        """
        keys: dict[tuple[str, int], str] = {}
        images = self._images
        images.clear()
        shot: Image.Image | None = None
        self._num_missed = 0
        for node in nodes:
            if "p" not in node:
                continue
            picture = (node["frame"], node["p"])
            key = node["h"]
            if key and key not in images and self._ocr.recall(key) is None:
                if data := pixels(*picture):
                    images[key] = _decode(data)
                else:
                    key = ""
            if not key:
                box = _visible_part(node["b"], viewport)
                if box[2] - box[0] < 2 or box[3] - box[1] < 2:
                    continue
                place = (document, *picture, *node["b"])
                if place not in self._crops:
                    if self._num_missed:
                        self._num_missed += 1
                        continue
                    if shot is None:
                        png = screenshot()
                        if not png:
                            self._num_missed = 1
                            continue
                        shot = Image.open(io.BytesIO(png))
                    crop = _pad_crop(shot.crop(box), box, node["b"])
                    self._crops[place] = image_key(crop)
                    images[self._crops[place]] = crop
                key = self._crops[place]
            keys[picture] = key
        return keys

    def read(
        self, keys: Mapping[tuple[str, int], str]
    ) -> tuple[dict[tuple[str, int], tuple[OcrLine, ...]], int]:
        """Return the lines by (frame, picture number), and the number of unreadable new pictures.

        The boxes of lines are fractions of the picture. Makes no browser calls.
        """
        new = self._ocr.read(self._images)
        num_unread = self._num_missed + len(self._images.keys() - new.keys())
        self._images.clear()
        lines = {
            picture: new[key] if key in new else self._ocr.recall(key) or ()
            for picture, key in keys.items()
        }
        return lines, num_unread


def _decode(url: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB")


def _visible_part(box: Sequence[int], viewport: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom of the part of `box` inside the viewport."""
    x, y, width, height = box
    return max(0, x), max(0, y), min(viewport[0], x + width), min(viewport[1], y + height)


def _pad_crop(
    crop: Image.Image, shown: tuple[int, int, int, int], box: Sequence[int]
) -> Image.Image:
    """Paste the crop at its place on white, so that fractions refer to the whole picture."""
    if crop.size == (box[2], box[3]):
        return crop.convert("RGB")
    whole = Image.new("RGB", (box[2], box[3]), "white")
    whole.paste(crop, (shown[0] - box[0], shown[1] - box[1]))
    return whole


def build_nodes(
    found: Iterable[Found],
    read: Mapping[tuple[str, int], Sequence[OcrLine]],
    viewport: tuple[int, int],
) -> Iterator[Node]:
    """Yield the nodes in reading order, the lines of an image right after the image.

    A line that only repeats the name of the image, or of the link with it, is left out.
    """
    name = ""
    rows: dict[tuple[str, int], int] = {}
    for node in found:
        cell = None
        if place := node.get("w"):
            row = rows.setdefault((node["frame"], place[0]), len(rows) + 1)
            cell = Cell(row, place[1], is_header=bool(place[2]))
        if not node.get("q"):
            name = _letters(node["n"])
            yield Node(
                kind=node["k"],
                role=node["r"],
                name=clean(node["n"], is_code=node["r"] == "code"),
                box=Box(*node["b"]),
                id=node.get("i"),
                value=clean(node.get("v", "")),
                options=tuple(map(clean, node.get("o", ()))),
                states=tuple(node.get("s", ())),
                uses=tuple(node.get("u", ())),
                reveals=tuple(map(clean, node.get("x", ()))),
                cell=cell,
                cells=tuple(map(clean, node.get("l", ()))),
            )
        for line in read.get((node["frame"], node.get("p", 0)), ()):
            box = _line_box(line, node["b"])
            left, top, right, bottom = _visible_part(
                (box.x, box.y, box.width, box.height), viewport
            )
            if left < right and top < bottom and not (name and _letters(line.text) == name):
                states = ("faint",) if line.faint else ()
                yield Node("ocr", "text", clean(line.text), box, states=states, cell=cell)


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text)).casefold()


def _line_box(line: OcrLine, image: Sequence[int]) -> Box:
    x, y, width, height = image
    return Box(
        x=round(x + line.x * width),
        y=round(y + line.y * height),
        width=round(line.width * width),
        height=round(line.height * height),
    )
