"""Which colors are those of the object, and which those of its surroundings."""

from collections.abc import Iterable

import numpy as np
from jaxtyping import Bool, Float32
from scipy.ndimage import gaussian_filter

_BINS = 24
_SPREAD = 1.0  # standard deviation by which colors are blurred, bins
_LEAST = 1e-5  # density of colors that were never seen, as a fraction of all
_MOST_ODDS = 4.0


class ColorModel:
    """Histograms of the colors inside and outside of masks, blurred.

    Args:
        pictures: colors from 0 to 1, pixels of the object, and pixels of its surroundings, photo by photo.
    """

    def __init__(
        self,
        pictures: Iterable[
            tuple[
                Float32[np.ndarray, "height width 3"],
                Bool[np.ndarray, "height width"],
                Bool[np.ndarray, "height width"],
            ]
        ],
    ) -> None:
        counts = np.zeros((2, _BINS**3))
        for image, inside, outside in pictures:
            bins = _bins(image)
            for side, chosen in enumerate((outside, inside)):
                counts[side] += np.bincount(bins[chosen], minlength=_BINS**3)
        shares = [
            gaussian_filter(side.reshape(_BINS, _BINS, _BINS) / max(side.sum(), 1), _SPREAD).ravel() for side in counts
        ]
        odds = np.log(shares[1] + _LEAST) - np.log(shares[0] + _LEAST)
        self._odds = odds.clip(-_MOST_ODDS, _MOST_ODDS).astype(np.float32)

    def odds(self, image: Float32[np.ndarray, "height width 3"]) -> Float32[np.ndarray, "height width"]:
        """Return the log odds of the object for every pixel."""
        return self._odds[_bins(image)]


def _bins(image: Float32[np.ndarray, "height width 3"]) -> np.ndarray:
    cells = (image * _BINS).astype(np.int64).clip(0, _BINS - 1)
    return (cells[..., 0] * _BINS + cells[..., 1]) * _BINS + cells[..., 2]
