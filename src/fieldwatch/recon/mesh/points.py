"""Points on a surface that know which way is out: what a surface is made from."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, UInt8

from fieldwatch.recon.mesh.error import MeshError

_UNIT = 1e-3  # how far from 1 the length of a normal may be


@dataclass(frozen=True, kw_only=True, eq=False)
class OrientedPoints:
    """Points of a surface with the direction out of the object there.

    Attributes:
        points: places, in the units of the scene.
        normals: unit vectors, pointing out of the object, so along falling density.
        colours: red, green, blue.

    Raises:
        MeshError: counts differ, a number is not finite, or a normal is not of length 1.
    """

    points: Float64[np.ndarray, "n 3"]
    normals: Float64[np.ndarray, "n 3"]
    colours: UInt8[np.ndarray, "n 3"] | None = None

    def __post_init__(self) -> None:
        counts = {len(self.points), len(self.normals), len(self.normals if self.colours is None else self.colours)}
        if len(counts) > 1:
            raise MeshError(f"points, normals and colours must be equally many, there are {sorted(counts)} of them")
        count = counts.pop()
        wrong = ~np.isfinite(np.concatenate([self.points, self.normals], axis=1)).all(axis=1)
        if wrong.any():
            raise MeshError(
                f"{int(wrong.sum())} of {count} points have a place or a normal that is not finite, the first is "
                f"point {int(wrong.argmax())}: remove them, or look at what made them"
            )
        off = np.abs(np.linalg.norm(self.normals, axis=1) - 1) > _UNIT
        if off.any():
            raise MeshError(
                f"{int(off.sum())} of {len(off)} normals are not of length 1, the first is that of point "
                f"{int(off.argmax())}: divide them by their lengths, and leave out points that have none"
            )

    def __len__(self) -> int:
        return len(self.points)

    def chosen(self, which: Bool[np.ndarray, "n"]) -> "OrientedPoints":
        """Return some of them, in their order."""
        colours = None if self.colours is None else self.colours[which]
        return OrientedPoints(points=self.points[which], normals=self.normals[which], colours=colours)

    @staticmethod
    def joined(*parts: "OrientedPoints") -> "OrientedPoints":
        """Return all points of some sets, one set after the other; coloured if all that have points are.

        Raises:
            MeshError: some sets with points have colours and others have none.
        """
        filled = [part for part in parts if len(part)]
        coloured = [part.colours for part in filled if part.colours is not None]
        if coloured and len(coloured) < len(filled):
            raise MeshError(
                f"{len(coloured)} of {len(filled)} sets of points have colours: give them to all or to none"
            )
        none = np.empty((0, 3))
        return OrientedPoints(
            points=np.concatenate([none, *(part.points for part in filled)]),
            normals=np.concatenate([none, *(part.normals for part in filled)]),
            colours=np.concatenate(coloured) if coloured else None,
        )
