"""Split frames into a grid of equal patches with normalized coordinates."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from fieldwatch import InputError


class PatchWindow(NamedTuple):
    """A patch-sized rectangle of a frame, in pixels."""

    top: int
    left: int
    height: int
    width: int

    def cut(self, frames: Shaped[Tensor, "*frames height width"]) -> Shaped[Tensor, "*frames ph pw"]:
        """Return a view of the frames inside the window."""
        return frames[..., self.top : self.top + self.height, self.left : self.left + self.width]


@dataclass(frozen=True)
class PatchGrid:
    """Grid of `rows` x `columns` patches of floor(height / rows) x floor(width / columns) pixels, in row-major order.

    Attributes:
        rows: number of patches from top to bottom.
        columns: number of patches from left to right.
        height: frame height in pixels.
        width: frame width in pixels.

    Raises:
        ValueError: if the grid has no cells or is finer than the pixels.
    """

    rows: int
    columns: int
    height: int
    width: int

    def __post_init__(self) -> None:
        """Check that every patch has at least one pixel."""
        if self.rows < 1 or self.columns < 1:
            msg = f"rows and columns must be at least 1, got a grid of {self.rows} x {self.columns} patches"
            raise InputError(msg)
        if self.rows > self.height or self.columns > self.width:
            msg = (
                f"a grid of {self.rows} x {self.columns} patches is finer than the frame of {self.height} x "
                f"{self.width} pixels (rows x columns, height x width): use fewer patches"
            )
            raise InputError(msg)

    @property
    def patches(self) -> int:
        """Number of patches per frame."""
        return self.rows * self.columns

    @property
    def patch_height(self) -> int:
        """Height of a patch in pixels."""
        return self.height // self.rows

    @property
    def patch_width(self) -> int:
        """Width of a patch in pixels."""
        return self.width // self.columns

    @property
    def dropped(self) -> tuple[int, int]:
        """Pixel rows at the bottom and pixel columns at the right that belong to no patch."""
        return self.height % self.rows, self.width % self.columns

    def split(self, frames: Shaped[Tensor, "frames channels height width"]) -> Shaped[Tensor, "patches channels ph pw"]:
        """Split frames into patches, frame by frame and row by row.

        Raises:
            ValueError: if the frames do not have the size of the grid.
        """
        if frames.shape[-2:] != (self.height, self.width):
            msg = f"expected frames of {self.height} x {self.width} pixels, got shape {tuple(frames.shape)}"
            raise ValueError(msg)
        count, channels = frames.shape[:2]
        covered = frames[..., : self.rows * self.patch_height, : self.columns * self.patch_width]
        # [frame, channel, row, y, column, x] to [frame, row, column, channel, y, x].
        cells = covered.reshape(count, channels, self.rows, self.patch_height, self.columns, self.patch_width)
        return cells.permute(0, 2, 4, 1, 3, 5).reshape(-1, channels, self.patch_height, self.patch_width)

    def join(self, patches: Shaped[Tensor, "patches channels ph pw"]) -> Shaped[Tensor, "frames channels ch cw"]:
        """Join patches to frames, without the `dropped` rows and columns at the bottom and right.

        Raises:
            ValueError: if the patches have another size or do not fill whole frames.
        """
        if patches.shape[-2:] != (self.patch_height, self.patch_width) or len(patches) % self.patches:
            msg = (
                f"expected a multiple of {self.patches} patches of {self.patch_height} x {self.patch_width} pixels, "
                f"got shape {tuple(patches.shape)}"
            )
            raise ValueError(msg)
        channels = patches.shape[1]
        # The inverse permutation of `split`.
        cells = patches.reshape(-1, self.rows, self.columns, channels, self.patch_height, self.patch_width)
        covered = cells.permute(0, 3, 1, 4, 2, 5)
        return covered.reshape(-1, channels, self.rows * self.patch_height, self.columns * self.patch_width)

    def centers(self, frames: int) -> Float[Tensor, "patches 3"]:
        """Return (t, x, y) of every patch of every frame in float64, in the order of `split`.

        t = frame / frames, so the last value is below 1; x and y are patch centers divided by frame width and height.
        """
        t = torch.arange(frames, dtype=torch.float64) / frames
        rows = torch.arange(self.rows, dtype=torch.float64)
        columns = torch.arange(self.columns, dtype=torch.float64)
        y = (rows * self.patch_height + self.patch_height / 2) / self.height
        x = (columns * self.patch_width + self.patch_width / 2) / self.width
        # Time varies slowest and x fastest, as in `split`.
        grid_t, grid_y, grid_x = torch.meshgrid(t, y, x, indexing="ij")
        return torch.stack([grid_t, grid_x, grid_y], dim=-1).reshape(-1, 3)

    def window(self, x: float, y: float) -> PatchWindow:
        """Return the patch-sized window around a center given as fractions of width and height.

        The window is shifted to lie inside the frame. Its corner is int(center - size / 2), so a center returned by
        `centers` selects exactly that patch.
        """
        # Rounding first: 0.7 * 10 - 1 is 5.999999999999999 in floating point and would truncate to 5.
        top = int(round(y * self.height - self.patch_height / 2, 6))
        left = int(round(x * self.width - self.patch_width / 2, 6))
        # Shift windows that extend beyond the frame.
        top = min(max(top, 0), self.height - self.patch_height)
        left = min(max(left, 0), self.width - self.patch_width)
        return PatchWindow(top, left, self.patch_height, self.patch_width)
