"""Sharpness of pictures, and the choice of sharp frames that are spread evenly over a film."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, UInt8

_EDGE = 0.15  # fraction of a window, at each end, whose frames are not chosen
_NEIGHBORS = 5  # frames on each side that a frame's sharpness is compared with


def gradient_energy(luma: UInt8[np.ndarray, "height width"]) -> float:
    """Return the mean squared difference of adjacent pixels; motion blur and defocus lower it."""
    values = luma.astype(np.int16)
    across = np.square(np.diff(values, axis=1), dtype=np.int32)
    down = np.square(np.diff(values, axis=0), dtype=np.int32)
    return float(across.mean() + down.mean())


def window_of(index: int, total: int, count: int) -> int | None:
    """Return which of `count` equal windows of a film a frame is in; the sharpest frame of each is used.

    Frames at the edge of a window return None, because the sharpest frames of two windows could be adjacent otherwise.

    Args:
        index: index of the frame.
        total: number of frames of the film.
        count: number of windows.
    """
    position = (index + 0.5) * count / total
    window = min(int(position), count - 1)
    # Windows of fewer than four frames have no frames to spare.
    if total >= 4 * count and abs(position - window - 0.5) > 0.5 - _EDGE:
        return None
    return window


def relative_sharpness(energies: Sequence[float]) -> Float64[np.ndarray, " frames"]:
    """Return each frame's gradient energy divided by the median of its neighbors in the sequence, itself included."""
    values = np.asarray(energies, np.float64)
    medians = [np.median(values[max(i - _NEIGHBORS, 0) : i + _NEIGHBORS + 1]) for i in range(len(values))]
    return values / np.maximum(medians, np.finfo(np.float64).tiny)
