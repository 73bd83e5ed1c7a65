"""Pictures with text on colored grounds become dark on white; others stay as they are."""

import io

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from agentkv_env.flatten import flatten
from agentkv_env.sites.images import label, poster, receipt, scene

LINES = ["Two words", "and 42 more"]


def grey(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("L")


@pytest.mark.parametrize("key", ["a", "b", "c", "d", "e", "f"])
def test_pictures_of_the_embedded_sites_stay_as_they_are(key: str) -> None:
    for drawn in (
        poster(LINES, key=key),
        label(LINES, key=key),
        receipt([("Tea", "4.20"), ("Cup", "9.00")], title=key),
        scene("Kettle", key=key),
        scene("Kite", key=key, tag="CLUB 3.50"),
    ):
        assert flatten(grey(drawn)) is None


def written(ink: int, paper: int, size: int = 20) -> Image.Image:
    image = Image.new("L", (260, 90), paper)
    font = ImageFont.truetype("DejaVuSans.ttf", size)
    ImageDraw.Draw(image).text((14, 14), "Some words", fill=ink, font=font)
    return image


@pytest.mark.parametrize(("ink", "paper"), [(0, 130), (255, 60), (40, 180), (230, 110), (150, 255)])
def test_ink_becomes_black_and_its_ground_white(ink: int, paper: int) -> None:
    drawn = written(ink, paper)
    levels, flat = np.asarray(drawn), flatten(drawn)
    assert flat is not None
    found = np.asarray(flat)
    assert found[levels == ink].max() < 60 and found[levels == paper].min() > 200


def test_each_ground_has_its_own_ink() -> None:
    both = Image.new("L", (260, 180))
    both.paste(written(0, 140), (0, 0))
    both.paste(written(255, 90), (0, 90))
    flat = flatten(both)
    assert flat is not None
    upper, lower = np.asarray(flat)[:80], np.asarray(flat)[100:]
    levels = np.asarray(both)
    for part, seen, ink in ((upper, levels[:80], 0), (lower, levels[100:], 255)):
        assert part[seen == ink].max() < 60 and part[seen != ink].mean() > 200


@pytest.mark.parametrize("text", ["SATURDAY", "DINNER"])
def test_large_letters_are_ink(text: str) -> None:
    drawn = Image.new("L", (440, 100), 70)
    font = ImageFont.truetype("DejaVuSans.ttf", 64)
    ImageDraw.Draw(drawn).text((10, 4), text, fill=255, font=font)
    flat = flatten(drawn)
    assert flat is not None
    assert np.asarray(flat)[np.asarray(drawn) == 255].max() < 60


def test_pictures_without_an_even_ground_stay_as_they_are() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (120, 200), dtype=np.uint8)
    assert flatten(Image.fromarray(noise)) is None


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (300, 1), (40, 14)])
def test_a_picture_may_be_as_small_as_it_likes(size: tuple[int, int]) -> None:
    assert flatten(Image.new("L", size, 120)) is None
    halves = Image.new("L", size, 120)
    halves.paste(0, (0, 0, (size[0] + 1) // 2, (size[1] + 1) // 2))
    assert flatten(halves) is None
