"""Oriented point clouds, the input of surface reconstruction."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, UInt8

from fieldwatch.recon.mesh.error import MeshError

_UNIT = 1e-3  # tolerance of the length of a normal


@dataclass(frozen=True, kw_only=True, eq=False)
class OrientedPoints:
    """Surface points with outward normals.

    Attributes:
        points: positions in world units.
        normals: unit normals that point out of the object, in the direction of decreasing density.
        colors: sRGB color of each point, 0 to 255.

    Raises:
        MeshError: the lengths of the arrays differ, a value is not finite, or a normal is not of unit length.
    """

    points: Float64[np.ndarray, "n 3"]
    normals: Float64[np.ndarray, "n 3"]
    colors: UInt8[np.ndarray, "n 3"] | None = None

    def __post_init__(self) -> None:
        # A set of lengths: more than one element means that the arrays differ.
        counts = {len(self.points), len(self.normals), len(self.normals if self.colors is None else self.colors)}
        if len(counts) > 1:
            raise MeshError(f"points, normals and colors must have the same length, got {sorted(counts)}")
        count = counts.pop()
        wrong = ~np.isfinite(np.concatenate([self.points, self.normals], axis=1)).all(axis=1)
        if wrong.any():
            raise MeshError(
                f"{int(wrong.sum())} of {count} points have a position or a normal that is not finite, the first is "
                f"point {int(wrong.argmax())}: remove them, or check the step that made them"
            )
        off = np.abs(np.linalg.norm(self.normals, axis=1) - 1) > _UNIT
        if off.any():
            raise MeshError(
                f"{int(off.sum())} of {len(off)} normals are not of length 1, the first is that of point "
                f"{int(off.argmax())}: normalize them, and remove points whose normal is zero"
            )

    def __len__(self) -> int:
        return len(self.points)

    def chosen(self, which: Bool[np.ndarray, "n"]) -> "OrientedPoints":
        """Return the selected points in their order."""
        colors = None if self.colors is None else self.colors[which]
        return OrientedPoints(points=self.points[which], normals=self.normals[which], colors=colors)

    @staticmethod
    def joined(*parts: "OrientedPoints") -> "OrientedPoints":
        """Concatenate point clouds; the result has colors if all clouds that are not empty have them.

        Raises:
            MeshError: some clouds that are not empty have colors and others have none.
        """
        filled = [part for part in parts if len(part)]
        colors = [part.colors for part in filled if part.colors is not None]
        if colors and len(colors) < len(filled):
            raise MeshError(f"{len(colors)} of {len(filled)} point clouds have colors: give colors to all or to none")
        # np.concatenate needs at least one array: no clouds give an empty one.
        none = np.empty((0, 3))
        return OrientedPoints(
            points=np.concatenate([none, *(part.points for part in filled)]),
            normals=np.concatenate([none, *(part.normals for part in filled)]),
            colors=np.concatenate(colors) if colors else None,
        )
