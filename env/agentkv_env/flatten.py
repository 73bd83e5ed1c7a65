"""Turn a picture with text on colored grounds into dark text on white.

Tesseract chooses one threshold for all it sees and loses text on a ground in the middle of the
range. A picture is therefore sampled, and neighboring samples of nearly equal gray form regions.
Large regions at the border and regions that hold others are grounds; the rest is ink. Every pixel
becomes as dark as it differs from the ground around it, and the ink of each ground is stretched to
the full range.

Shapes: H rows and W columns of samples, N regions.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

Array = npt.NDArray[Any]

NUM_SAMPLES = 16_000  # of a picture; every second pixel of one with 250 x 250
LINK = 10  # gray levels between neighboring samples of one region
INK = 40  # gray levels between ink and its ground; 3:1 in WCAG's terms is 80 or more
SAFE_GROUND = 200  # dark ink on grounds of this level or more is read without help ...
SAFE_INK = 110  # ... if it is this many levels darker
GROUND_SHARE = 0.08  # of the picture; larger regions are grounds
NUM_HELD = 4  # this many regions inside make a region a ground; a letter holds two and soft edges
MIN_REGION = 4  # samples of a region that counts; smaller ones are soft edges
MAX_HOLDERS = 40  # this many of the largest regions are asked what they hold
MIN_INK = 10  # samples
MIN_RANGE = 48  # gray levels that are stretched to the full range at most, or noise becomes ink


def flatten(grey: Image.Image) -> Image.Image | None:
    """Return dark ink on white, or None for a picture that is better left as it is.

    Left are pictures without text, pictures with dark text on a light ground, and photographs
    without large even regions.

    Args:
        grey: a picture of mode L.
    """
    pixels = np.asarray(grey)
    step = max(2, round((pixels.size / NUM_SAMPLES) ** 0.5))
    samples = pixels[::step, ::step].astype(np.int16)  # (H, W)
    if not _has_edges(samples):
        return None
    regions = _Regions.find(samples)
    is_ground = regions.are_grounds()
    known = is_ground[regions.labels]
    if known.mean() < 0.5:
        return None
    nearest = _nearest(known)
    ground = samples.ravel()[nearest]
    owner = regions.labels.ravel()[nearest]
    distance = np.abs(samples - ground)
    ink = (distance >= INK) & ~regions.are_lines()[regions.labels]
    if ink.sum() < MIN_INK:
        return None
    is_weak = np.percentile(distance[ink], 70) < SAFE_INK
    if not is_weak and (ink & (ground < SAFE_GROUND)).sum() <= 0.1 * ink.sum():
        return None
    gain = np.zeros(len(is_ground), np.float32)
    gain[:] = _gain(distance[ink])
    for number in np.flatnonzero(is_ground):
        own = distance[ink & (owner == number)]
        if own.size >= MIN_INK:
            gain[number] = _gain(own)
    return Image.fromarray(_darken(pixels, step, ground, gain[owner]), "L")


def _has_edges(samples: Array) -> bool:
    """Return False for pictures without text at once, because finding regions takes time."""
    return any(np.abs(np.diff(samples, axis=axis)).max(initial=0) >= INK for axis in (0, 1))


def _gain(distances: Array) -> float:
    return 255 / max(MIN_RANGE, float(np.percentile(distances, 80)))


@dataclass(frozen=True, slots=True)
class _Regions:
    """Regions of linked samples."""

    labels: Array
    """Region of each sample (H, W)."""
    area: Array
    """Samples of each region (N); some regions have none."""
    box: Array
    """First column, first row, last column, last row of each region (4, N)."""

    @classmethod
    def find(cls, samples: Array) -> "_Regions":
        """Link neighbors, first to runs in rows, then runs to regions."""
        height, width = samples.shape
        starts = np.ones((height, width), bool)
        starts[:, 1:] = np.abs(np.diff(samples, axis=1)) > LINK
        runs = np.cumsum(starts).reshape(height, width) - 1
        linked = np.abs(np.diff(samples, axis=0)) <= LINK
        above, below = runs[:-1][linked], runs[1:][linked]
        is_new = np.ones(len(above), bool)
        is_new[1:] = (np.diff(above) != 0) | (np.diff(below) != 0)
        above, below = above[is_new], below[is_new]
        root = np.arange(runs[-1, -1] + 1)
        while True:
            lower = np.minimum(root[above], root[below])
            before = root.copy()
            np.minimum.at(root, root[above], lower)
            np.minimum.at(root, root[below], lower)
            while (shorter := root[root]).sum() < root.sum():
                root = shorter
            if np.array_equal(root, before):
                break
        first = np.flatnonzero(starts)
        row, left = np.divmod(first, width)
        length = np.diff(first, append=height * width)
        box = np.array([width, height, -1, -1])[:, None].repeat(len(root), axis=1)
        np.minimum.at(box[0], root, left)
        np.minimum.at(box[1], root, row)
        np.maximum.at(box[2], root, left + length - 1)
        np.maximum.at(box[3], root, row)
        area = np.bincount(root, length, minlength=len(root))
        return cls(root[runs], area, box)

    def are_grounds(self) -> Array:
        """Return for each region whether it is large and at the border, or holds others (N)."""
        height, width = self.labels.shape
        left, top, right, bottom = self.box
        is_large = self.area >= GROUND_SHARE * self.labels.size
        is_at_side = (left == 0) | (right == width - 1)
        found: Array = is_large & (is_at_side | (top == 0) | (bottom == height - 1))
        some = np.flatnonzero(self.area >= MIN_REGION)
        inner_left, inner_top, inner_right, inner_bottom = self.box[:, some]
        for number in some[np.argsort(-self.area[some])][:MAX_HOLDERS]:
            held = (inner_left > left[number]) & (inner_right < right[number])
            held &= (inner_top > top[number]) & (inner_bottom < bottom[number])
            found[number] |= held.sum() >= NUM_HELD
        return found

    def are_lines(self) -> Array:
        """Return for each region whether it spans half of the picture: a rule, a frame (N)."""
        height, width = self.labels.shape
        left, top, right, bottom = self.box
        are: Array = (right - left >= width / 2) | (bottom - top >= height / 2)
        return are


def _nearest(known: Array) -> Array:
    """Return for each sample the flat index of the nearest known one in its row or column (H, W).

    Where there is none, it is the first known one.
    """
    height, width = known.shape
    own = np.arange(known.size).reshape(height, width)
    before, after = np.where(known, own, -1), np.where(known, own, known.size)
    best = np.full(known.shape, np.flatnonzero(known)[0])
    distance = np.full(known.shape, height + width)
    for axis, unit in ((1, 1), (0, width)):
        low = np.maximum.accumulate(before, axis=axis)
        high = np.flip(np.minimum.accumulate(np.flip(after, axis), axis=axis), axis)
        for found, is_there in ((low, low >= 0), (high, high < known.size)):
            far = np.abs(found - own) // unit
            is_nearer = is_there & (far < distance)
            best[is_nearer], distance[is_nearer] = found[is_nearer], far[is_nearer]
    return best


def _darken(pixels: Array, step: int, ground: Array, gain: Array) -> Array:
    """Return each pixel's distance from its ground, from white to black.

    A pixel lies between four samples and is compared with each, so that it finds its own ground at
    the edge of another. Soft edges of grounds would remain as lines, so they are painted white.
    """
    row, column = (np.arange(size) // step for size in pixels.shape)
    below, right = (
        np.minimum(low + 1, size - 1) for low, size in zip((row, column), ground.shape, strict=True)
    )
    levels = pixels.astype(np.int16)
    distance = np.abs(levels - ground[row][:, column])
    for rows, columns in ((row, right), (below, column), (below, right)):
        np.minimum(distance, np.abs(levels - ground[rows][:, columns]), out=distance)
    is_edge = np.zeros(ground.shape, bool)
    is_edge[:, :-1] |= np.abs(np.diff(ground, axis=1)) > INK
    is_edge[:-1] |= np.abs(np.diff(ground, axis=0)) > INK
    is_edge[:-1, :-1] |= np.abs(ground[1:, 1:] - ground[:-1, :-1]) > INK
    dark = np.minimum(distance * gain[row][:, column], 255)
    dark[is_edge[row][:, column]] = 0
    light: Array = (255 - dark).astype(np.uint8)
    return light
