"""Texture baking: the color of each texel is blended from the photos that see its surface point."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float16, Float32, Float64, Int64

from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.filling import fill_unseen, pad_texture
from fieldwatch.recon.mesh.photo_sampler import PhotoSampler, TexturePhoto
from fieldwatch.recon.mesh.texels import Texels, find_texels
from fieldwatch.recon.mesh.triangles import Triangles

Blend = Literal["mean", "best"]
MAX_VIEWS = 64
_BLOCK = 1 << 18  # texels per batch
_OUTLIER_DEVIATIONS = 3 * 1.4826
"""Accepted distance from the median, in median absolute deviations: three standard deviations of a Gaussian."""
_MIN_DEVIATION = 12.0
"""Distance from the median that is always accepted, in levels of 255: photos never match exactly."""


@dataclass(frozen=True, kw_only=True)
class BakingOptions:
    """Settings of texture baking.

    Attributes:
        blend: `mean` averages the samples with the largest weights; `best` takes the single best one, which is sharper
            if shape or cameras are inexact, but leaves visible seams between photos.
        views: number of samples kept per texel for `mean`.
        power: exponent of the cosine of the viewing angle in the weight of a sample.
        margin: width in pixels of the band around depth jumps and borders with reduced weight.

    Raises:
        MeshError: a value is out of range.
    """

    blend: Blend = "mean"
    views: int = 6
    power: float = 2.0
    margin: float = 4.0

    def __post_init__(self) -> None:
        if not (1 <= self.views <= MAX_VIEWS and 0 <= self.power < np.inf and 0 <= self.margin < np.inf):
            msg = (
                f"views must be from 1 to {MAX_VIEWS}, power and margin finite and at least 0, got {self.views}, "
                f"{self.power:g} and {self.margin:g}"
            )
            raise MeshError(msg)


@dataclass(frozen=True, kw_only=True, eq=False)
class BakedTexture:
    """A textured mesh with statistics of its texture.

    Attributes:
        mesh: mesh with the baked texture.
        seen: fraction of the texels inside faces that a photo shows; the others are filled from their surroundings.
        views: mean number of samples kept per texel.
        photos: number of photos.
        blank: number of photos that show nothing of the mesh.
    """

    mesh: Triangles
    seen: float
    views: float
    photos: int
    blank: int


def bake_texture(
    mesh: Triangles,
    photos: Iterable[TexturePhoto],
    *,
    size: int = 2048,
    options: BakingOptions | None = None,
    on_photo: Callable[[], None] | None = None,
) -> BakedTexture:
    """Bake photos into the texture of an unwrapped mesh.

    Baking iterates over texels, not over pixels as SuGaR does: the surface point of each texel is projected into every
    photo that sees it. This leaves no holes between pixels, and the result does not depend on the order of writing. The
    samples with the largest weights are kept: close, frontal and far from borders. Samples far from the weighted median
    (an occluder that is not in the mesh, another exposure) are dropped, the others averaged by weight. Texels that no
    photo sees take the colors of the nearest seen texels on the surface. Texels between charts are filled such that
    neither bilinear sampling nor mipmaps mix in foreign colors.

    One photo is in memory at a time. About 40 + 10 * `options.views` bytes are held per texel.

    Args:
        mesh: mesh with `uvs` and outward faces.
        photos: photos to bake; iterated once.
        size: side of the square texture in texels.
        options: settings; None uses `BakingOptions()`.
        on_photo: called after each photo.

    Raises:
        MeshError: the mesh has no texture coordinates, there are no photos, or none of them shows the mesh.
    """
    options = options or BakingOptions()
    texels = find_texels(mesh, size)
    # `best` keeps a single sample, so blending it is the identity.
    best = _BestColors(len(texels), 1 if options.blend == "best" else options.views)
    count = blank = 0
    for photo in photos:
        texel_count = _add_photo(mesh, texels, PhotoSampler(mesh, photo, margin=options.margin), best, options.power)
        count = count + 1
        blank = blank + (not texel_count)
        if on_photo is not None:
            on_photo()
    if count == blank:
        why = "there are none" if not count else f"none of the {count} shows a front face"
        msg = (
            f"the mesh cannot be textured from photos: {why}; check that it belongs to these cameras and faces outward"
        )
        raise MeshError(msg)
    is_seen = best.seen
    colors = fill_unseen(mesh, texels, best.blended(), is_seen)
    # Statistics count the texels inside faces; border texels exist for sampling only.
    counted = texels.inside if texels.inside.any() else np.ones_like(texels.inside)
    return BakedTexture(
        mesh=replace(mesh, texture=pad_texture(texels, colors)),
        seen=float(is_seen[counted].mean()),
        views=float(best.number[counted].mean()),
        photos=count,
        blank=blank,
    )


def _add_photo(mesh: Triangles, texels: Texels, camera: PhotoSampler, best: "_BestColors", power: float) -> int:
    """Add the samples of a photo to all texels that it sees; return their number."""
    # Back faces and faces behind the camera are rejected once per face, not per texel.
    candidates = np.flatnonzero(camera.facing(mesh)[texels.faces])
    total = 0
    for start in range(0, len(candidates), _BLOCK):
        rows = candidates[start : start + _BLOCK]
        samples = camera.sample(texels.points(mesh, rows), mesh.normals[texels.faces[rows]], power=power)
        best.add(rows[samples.rows], samples.colors, samples.worth)
        total += len(samples.rows)
    return total


class _BestColors:
    """The samples with the largest weights of each texel.

    Args:
        texels: number of texels.
        views: number of samples kept per texel.
    """

    def __init__(self, texels: int, views: int) -> None:
        self._worth: Float32[np.ndarray, "t v"] = np.zeros((texels, views), np.float32)
        # Half precision: the largest array here, and exact to an eighth of a level.
        self._colors: Float16[np.ndarray, "t v 3"] = np.zeros((texels, views, 3), np.float16)

    def add(
        self, rows: Int64[np.ndarray, "k"], colors: Float32[np.ndarray, "k 3"], worth: Float32[np.ndarray, "k"]
    ) -> None:
        """Add at most one sample per texel; it replaces the sample with the smallest weight."""
        # Replace the kept sample with the smallest weight, if the new weight is larger.
        slot = self._worth[rows].argmin(1)
        better = worth > self._worth[rows, slot]
        rows = rows[better]
        slot = slot[better]
        self._worth[rows, slot] = worth[better]
        self._colors[rows, slot] = colors[better]

    @property
    def seen(self) -> Bool[np.ndarray, "t"]:
        """Whether each texel has a sample."""
        return np.asarray((self._worth > 0).any(1))

    @property
    def number(self) -> Int64[np.ndarray, "t"]:
        """Number of samples kept per texel."""
        return (self._worth > 0).sum(1)

    def blended(self) -> Float32[np.ndarray, "t 3"]:
        """Blend the samples of each texel into one color; 0 for texels without samples."""
        colors = np.zeros((len(self._worth), 3), np.float32)
        for start in range(0, len(colors), _BLOCK):
            rows = slice(start, start + _BLOCK)
            colors[rows] = blended_colors(self._colors[rows].astype(np.float64), self._worth[rows].astype(np.float64))
        return colors


def blended_colors(
    colors: Float64[np.ndarray, "n v 3"], worth: Float64[np.ndarray, "n v"]
) -> Float32[np.ndarray, "n 3"]:
    """Return the weighted mean of the colors near the median; 0 for rows without any weight.

    A color is near if each channel is within three robust standard deviations (from the median absolute deviation) or
    12 levels of the median. In medians, colors count by the square root of their weight.

    Args:
        colors: RGB colors, 0 to 255.
        worth: weights; 0 marks an unused slot.
    """
    votes = np.sqrt(worth)  # one close photo must not outvote several distant ones
    middle = _weighted_median(colors, votes)
    # Median absolute deviation per channel: robust against a minority of occluded photos.
    off = np.abs(colors - middle[:, None])
    allowed = np.maximum(_OUTLIER_DEVIATIONS * _weighted_median(off, votes), _MIN_DEVIATION)
    near_worth = worth * (off <= allowed[:, None]).all(2)
    # The medians of the channels may come from different colors, with no color near all three: then keep all.
    all_dropped = near_worth.sum(1) == 0
    near_worth[all_dropped] = worth[all_dropped]
    total = near_worth.sum(1)[:, None]
    mean = (near_worth[..., None] * colors).sum(1)
    return np.divide(mean, total, out=np.zeros_like(mean), where=total > 0).astype(np.float32)


def _weighted_median(
    values: Float64[np.ndarray, "n v 3"], worth: Float64[np.ndarray, "n v"]
) -> Float64[np.ndarray, "n 3"]:
    """Return the smallest value of each channel at which half of the total weight is reached."""
    order = values.argsort(axis=1, kind="stable")
    ranked = np.take_along_axis(values, order, 1)
    weights = np.take_along_axis(np.broadcast_to(worth[..., None], values.shape), order, 1)
    reached = weights.cumsum(1) * 2 >= weights.sum(1, keepdims=True)
    return np.take_along_axis(ranked, reached.argmax(1)[:, None], 1)[:, 0]
