"""What every neural video model takes and gives: `Query` in, `Prediction` out, one `Geometry` for both."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from jaxtyping import Float
from torch import Tensor, nn

from fieldwatch import InputError

Unit = Literal["patch", "frame"]


@dataclass(frozen=True, kw_only=True)
class Query:
    """What to draw: one row per unit (a patch or a whole frame, see `VideoModel.unit`).

    Attributes:
        t: frame index / number of frames, float64, 0 <= t < 1.
        x: patch centre / frame width, float64; 0.5 for whole frames.
        y: patch centre / frame height, float64; 0.5 for whole frames.
        frames: the frames themselves in [0, 1], only for models with `needs_frames`.
    """

    t: Float[Tensor, " units"]
    x: Float[Tensor, " units"]
    y: Float[Tensor, " units"]
    frames: Float[Tensor, "units 3 height width"] | None = None


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What was drawn.

    Attributes:
        rgb: colours, in [0, 1] with the "tanh" and "sigmoid" output maps; a frame or a patch per unit.
        embedding: unit-norm CLIP embedding per patch, row-major (one for a patch unit); None when asked without.
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
        """Refuse sizes that hold no patch."""
        for name in ("frames", "height", "width", "rows", "columns"):
            if getattr(self, name) < 1:
                msg = f"geometry {name} is {getattr(self, name)}, it must be at least 1: check what the loader reports"
                raise InputError(msg)
        if self.height < self.rows or self.width < self.columns:
            msg = (
                f"{self.rows} x {self.columns} patches do not fit into {self.height} x {self.width} pixels: "
                "ask for fewer rows or columns"
            )
            raise InputError(msg)

    @property
    def patch_height(self) -> int:
        """Height of one patch in pixels."""
        return self.height // self.rows

    @property
    def patch_width(self) -> int:
        """Width of one patch in pixels."""
        return self.width // self.columns


class VideoModel(nn.Module, ABC):
    """A video as a network: `forward` draws the queried units, `groups` names the three parts that are watched.

    Attributes:
        unit: what one row of a query is.
        needs_frames: the model encodes the queried frame itself (so a held-out frame is seen when it is drawn).
    """

    unit: ClassVar[Unit]
    needs_frames: ClassVar[bool]

    @abstractmethod
    def forward(self, query: Query, *, embed: bool = True) -> Prediction:
        """Draw the units of `query`; `embed=False` skips the CLIP head and keeps it out of the graph."""

    @abstractmethod
    def groups(self) -> dict[str, nn.Module]:
        """Disjoint modules that hold every parameter: "decoder" (what both heads share), "rgb_head", "clip_head"."""
