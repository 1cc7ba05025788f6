"""Interface of all neural video models: `Query` in, `Prediction` out, for a `VideoGeometry`."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from jaxtyping import Float
from torch import Tensor, nn

from fieldwatch import InputError

Unit = Literal["patch", "frame"]


@dataclass(frozen=True, kw_only=True)
class Query:
    """Units to render, one per row (a patch or a whole frame, see `VideoModel.unit`).

    Attributes:
        t: frame index / number of frames, float64, 0 <= t < 1.
        x: x of the patch center / frame width, float64; 0.5 for whole frames.
        y: y of the patch center / frame height, float64; 0.5 for whole frames.
        frames: the frames themselves in [0, 1], only for models with `needs_frames`.
    """

    t: Float[Tensor, " units"]
    x: Float[Tensor, " units"]
    y: Float[Tensor, " units"]
    frames: Float[Tensor, "units 3 height width"] | None = None


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Rendered units.

    Attributes:
        rgb: colors, in [0, 1] with the "tanh" and "sigmoid" output maps; a frame or a patch per unit.
        embedding: unit-norm CLIP embedding per patch, row-major (one for a patch unit); None if not requested.
    """

    rgb: Float[Tensor, "units 3 height width"]
    embedding: Float[Tensor, "units patches dim"] | None


@dataclass(frozen=True, kw_only=True)
class VideoGeometry:
    """Size of the video and of its patch grid, in frames and pixels.

    A patch is floor(height / rows) x floor(width / columns); the remaining pixels belong to no patch.
    """

    frames: int
    height: int
    width: int
    rows: int = 2
    columns: int = 4

    def __post_init__(self) -> None:
        """Check that all sizes are positive and that patches are not empty."""
        for name in ("frames", "height", "width", "rows", "columns"):
            if getattr(self, name) < 1:
                msg = f"geometry {name} must be at least 1, got {getattr(self, name)}: check the output of the loader"
                raise InputError(msg)
        # A patch has at least one pixel on each side.
        if self.height < self.rows or self.width < self.columns:
            msg = (
                f"{self.rows} x {self.columns} patches do not fit into {self.height} x {self.width} pixels: "
                "use fewer rows or columns"
            )
            raise InputError(msg)

    @property
    def patch_height(self) -> int:
        """Height of a patch in pixels."""
        return self.height // self.rows

    @property
    def patch_width(self) -> int:
        """Width of a patch in pixels."""
        return self.width // self.columns


class VideoModel(nn.Module, ABC):
    """A video as a network: `forward` renders the queried units, `groups` returns its three monitored parts.

    Attributes:
        unit: unit of one row of a query.
        needs_frames: whether the model encodes the queried frame itself (and so sees held-out frames when rendering
            them).
    """

    unit: ClassVar[Unit]
    needs_frames: ClassVar[bool]

    @abstractmethod
    def forward(self, query: Query, *, embed: bool = True) -> Prediction:
        """Render the units of ``query``; ``embed=False`` skips the CLIP head and keeps it out of the graph."""

    @abstractmethod
    def groups(self) -> dict[str, nn.Module]:
        """Return disjoint modules with all parameters: "decoder" (shared by both heads), "rgb_head", "clip_head"."""
