"""Structural similarity of two images (SSIM), as VisualWebArena's image checks compute it.

Source: Wang, Bovik, Sheikh and Simoncelli, Image Quality Assessment (2004), with a uniform window
of 7 by 7 pixels and unbiased covariances, the defaults of scikit-image that VisualWebArena uses.
"""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_WINDOW = 7
_K1, _K2, _RANGE = 0.01, 0.03, 255.0


def similarity(one: Image.Image, other: Image.Image) -> float:
    """Return the mean structural similarity of two images, 1.0 for equal ones.

    Both are scaled to the larger width and the larger height, and turned into shades of gray.
    """
    size = tuple(max(max(pair), _WINDOW) for pair in zip(one.size, other.size, strict=True))
    x, y = (_gray(image, (size[0], size[1])) for image in (one, other))
    mean_x, mean_y = _means(x), _means(y)
    unbiased = _WINDOW**2 / (_WINDOW**2 - 1)
    var_x = unbiased * (_means(x * x) - mean_x**2)
    var_y = unbiased * (_means(y * y) - mean_y**2)
    covariance = unbiased * (_means(x * y) - mean_x * mean_y)
    c1, c2 = (_K1 * _RANGE) ** 2, (_K2 * _RANGE) ** 2
    return float(
        np.mean(
            (2 * mean_x * mean_y + c1)
            * (2 * covariance + c2)
            / ((mean_x**2 + mean_y**2 + c1) * (var_x + var_y + c2))
        )
    )


def _gray(image: Image.Image, size: tuple[int, int]) -> NDArray[np.float64]:
    scaled = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    return np.asarray(scaled.convert("L"), np.float64)


def _means(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of each window that lies within `values` (H, W)."""
    sums = np.pad(values, ((1, 0), (1, 0))).cumsum(0).cumsum(1)
    w = _WINDOW
    means: NDArray[np.float64] = sums[w:, w:] - sums[:-w, w:] - sums[w:, :-w] + sums[:-w, :-w]
    return means / w**2
