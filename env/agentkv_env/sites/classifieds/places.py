"""The pickup places of listings, as text for the page and as a map."""

import io
from dataclasses import dataclass

from PIL import Image, ImageDraw

from agentkv_env.sites import images
from agentkv_env.sites.names import Names
from agentkv_env.sites.region import Region

_WIDTH, _HEIGHT = 420, 250
_STREETS_IN_A_TOWN = 2
_NEIGHBOURS = (
    "the bakery|the church|the library|the mill|the post office|the school|the station|"
    "the town hall"
).split("|")
_GROUND, _ROAD, _HOUSE, _INK = (236, 243, 232), (255, 255, 255), (222, 206, 190), (20, 20, 20)


@dataclass(frozen=True, slots=True)
class Spot:
    """The place of a listing; only the map shows `house` and `parking`."""

    street: str
    next_to: str
    bus: int
    house: int
    parking: int
    """Distance to the next parking place, in meters."""


def streets(names: Names, region: Region) -> dict[str, tuple[str, ...]]:
    """Generate the streets of each town."""
    return {
        place: tuple(names.street() for _ in range(_STREETS_IN_A_TOWN)) for place in region.places
    }


def draw(names: Names, streets: tuple[str, ...]) -> Spot:
    """Generate a place on one of `streets`."""
    rng = names.rng
    return Spot(
        street=names.pick(streets),
        next_to=names.pick(_NEIGHBOURS),
        bus=rng.randint(2, 39),
        house=rng.randint(22, 97),
        parking=rng.randint(4, 39) * 10,
    )


def picture(spot: Spot) -> bytes:
    """Draw the map: two roads, a house and three lines of large text."""
    image = Image.new("RGB", (_WIDTH, _HEIGHT), _GROUND)
    draw = ImageDraw.Draw(image)
    bend = 40 + spot.house * 3 % 200
    draw.line((bend, 0, bend + 60, _HEIGHT), fill=_ROAD, width=40)
    draw.line((0, 60, _WIDTH, 60), fill=_ROAD, width=48)
    face = images.font(24, bold=True)
    lines = (
        (spot.street, 46),
        (f"HOUSE {spot.house}", 112),
        (f"PARKING {spot.parking} METRES", 178),
    )
    for text, top in lines:
        left = (_WIDTH - draw.textlength(text, face)) / 2
        # A background under the words, because OCR takes a road's edge for a part of a letter.
        colour = _ROAD if top == 46 else _GROUND
        draw.rectangle((left - 12, top - 8, _WIDTH - left + 12, top + 38), fill=colour)
        draw.text((left, top), text, fill=_INK, font=face)
    draw.rectangle((_WIDTH - 58, 92, _WIDTH - 18, 132), fill=_HOUSE)
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()
