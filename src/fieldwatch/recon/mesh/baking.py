"""Textures baked from photos: every texel takes its colour from the photos that see its place on the surface."""

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
_BLOCK = 1 << 18  # texels that are looked at together
_OUTLIER_DEVIATIONS = 3 * 1.4826
"""Median absolute deviations that a colour may lie from the median: three standard deviations of a normal law."""
_MIN_DEVIATION = 12.0
"""Levels of 255 that it may in any case: photos are never equal."""


@dataclass(frozen=True, kw_only=True)
class BakingOptions:
    """How photos become a texture.

    Attributes:
        blend: `mean` averages the worthiest photos of a texel, `best` takes the one worthiest: sharper where shape or
            cameras are not exact, with visible seams between photos.
        views: photos kept per texel, for `mean`.
        power: of the cosine of the angle at which a surface is seen.
        margin: pixels around depth jumps and borders that count less, as shapes and masks are never exact.

    Raises:
        MeshError: a number out of bounds.
    """

    blend: Blend = "mean"
    views: int = 6
    power: float = 2.0
    margin: float = 4.0

    def __post_init__(self) -> None:
        if not (1 <= self.views <= MAX_VIEWS and 0 <= self.power < np.inf and 0 <= self.margin < np.inf):
            msg = (
                f"views, power and margin are {self.views}, {self.power:g} and {self.margin:g}: wanted are 1 to "
                f"{MAX_VIEWS} views, and finite numbers not below 0"
            )
            raise MeshError(msg)


@dataclass(frozen=True, kw_only=True, eq=False)
class BakedTexture:
    """A textured mesh, and what is known about its texture.

    Attributes:
        mesh: with its texture.
        seen: share of the texels inside faces that a photo showed; the others are filled from around them.
        views: photos that went into such a texel, in the mean.
        photos: how many photos there were.
        blank: photos that showed nothing of the mesh.
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
    """Bake photos into the texture of a mesh that has been laid out.

    Texel by texel, not pixel by pixel as SuGaR does: each texel's place on the surface is looked up in every photo that
    sees it, so that there are no holes between pixels and no order of writing matters. Of the photos that see a place,
    the worthiest ones are kept: near, from the front, far from borders. Colours far from their weighted median (an
    occluder that is not in the mesh, another exposure) are dropped, the others averaged by worth. Texels that no photo
    sees take the colours of the nearest seen ones on the surface; those between charts are filled so that neither
    bilinear sampling nor smaller copies of the picture bring in foreign colours.

    Photos are taken one at a time. About 40 + 10 * `how.views` bytes are held per texel.

    Args:
        mesh: with `uvs`; its faces turned outwards.
        photos: gone through once.
        size: texels along a side of the picture.
        options: colours are chosen and blended; None stands for `BakingOptions()`.
        on_photo: called after each photo.

    Raises:
        MeshError: no texture coordinates, no photos, or none that shows the mesh.
    """
    options = options or BakingOptions()
    texels = find_texels(mesh, size)
    best = _BestColours(len(texels), 1 if options.blend == "best" else options.views)
    count = blank = 0
    for photo in photos:
        texel_count = _add_photo(mesh, texels, PhotoSampler(mesh, photo, margin=options.margin), best, options.power)
        count = count + 1
        blank = blank + (not texel_count)
        if on_photo is not None:
            on_photo()
    if count == blank:
        why = "there are none" if not count else f"none of the {count} shows a front of it"
        msg = (
            f"the mesh cannot be baked from photos: {why}; do mesh and cameras belong together, does it face outwards?"
        )
        raise MeshError(msg)
    is_seen = best.seen
    colours = fill_unseen(mesh, texels, best.blended(), is_seen)
    counted = texels.inside if texels.inside.any() else np.ones_like(texels.inside)
    return BakedTexture(
        mesh=replace(mesh, texture=pad_texture(texels, colours)),
        seen=float(is_seen[counted].mean()),
        views=float(best.number[counted].mean()),
        photos=count,
        blank=blank,
    )


def _add_photo(mesh: Triangles, texels: Texels, camera: PhotoSampler, best: "_BestColours", power: float) -> int:
    """Take what a photo shows of the texels; returns of how many it shows something."""
    candidates = np.flatnonzero(camera.facing(mesh)[texels.faces])
    total = 0
    for start in range(0, len(candidates), _BLOCK):
        rows = candidates[start : start + _BLOCK]
        samples = camera.sample(texels.points(mesh, rows), mesh.normals[texels.faces[rows]], power=power)
        best.add(rows[samples.rows], samples.colours, samples.worth)
        total += len(samples.rows)
    return total


class _BestColours:
    """The worthiest colours of each texel.

    Args:
        texels: how many there are.
        views: colours kept of each.
    """

    def __init__(self, texels: int, views: int) -> None:
        self._worth: Float32[np.ndarray, "t v"] = np.zeros((texels, views), np.float32)
        # Half precision: the largest array here, and exact to an eighth of a level.
        self._colours: Float16[np.ndarray, "t v 3"] = np.zeros((texels, views, 3), np.float16)

    def add(
        self, rows: Int64[np.ndarray, "k"], colours: Float32[np.ndarray, "k 3"], worth: Float32[np.ndarray, "k"]
    ) -> None:
        """Take colours of different texels, in place of each one's least worthy."""
        # Replace the least worthy color kept so far, if this one is worthier.
        slot = self._worth[rows].argmin(1)
        better = worth > self._worth[rows, slot]
        rows = rows[better]
        slot = slot[better]
        self._worth[rows, slot] = worth[better]
        self._colours[rows, slot] = colours[better]

    @property
    def seen(self) -> Bool[np.ndarray, "t"]:
        """Whether there is a colour."""
        return np.asarray((self._worth > 0).any(1))

    @property
    def number(self) -> Int64[np.ndarray, "t"]:
        """How many colours are kept of each texel."""
        return (self._worth > 0).sum(1)

    def blended(self) -> Float32[np.ndarray, "t 3"]:
        """Return one colour for each texel; 0 where there is none."""
        colours = np.zeros((len(self._worth), 3), np.float32)
        for start in range(0, len(colours), _BLOCK):
            rows = slice(start, start + _BLOCK)
            colours[rows] = blended_colours(
                self._colours[rows].astype(np.float64), self._worth[rows].astype(np.float64)
            )
        return colours


def blended_colours(
    colours: Float64[np.ndarray, "n v 3"], worth: Float64[np.ndarray, "n v"]
) -> Float32[np.ndarray, "n 3"]:
    """Return mean colours by worth, of those near the median; 0 where nothing has worth.

    A colour is near if in each channel it is within three robust standard deviations of the median (by the median
    absolute deviation), or within 12 levels. In medians colours count by the square root of their worth.

    Args:
        colours: 0 to 255.
        worth: 0 stands for no colour.
    """
    votes = np.sqrt(worth)  # one near photo shall not outvote several that are farther away
    middle = _weighted_median(colours, votes)
    # Median absolute deviation per channel: robust against a minority of occluded photos.
    off = np.abs(colours - middle[:, None])
    allowed = np.maximum(_OUTLIER_DEVIATIONS * _weighted_median(off, votes), _MIN_DEVIATION)
    near_worth = worth * (off <= allowed[:, None]).all(2)
    all_dropped = near_worth.sum(1) == 0  # medians of channels may be of no colour at all
    near_worth[all_dropped] = worth[all_dropped]
    total = near_worth.sum(1)[:, None]
    mean = (near_worth[..., None] * colours).sum(1)
    return np.divide(mean, total, out=np.zeros_like(mean), where=total > 0).astype(np.float32)


def _weighted_median(
    values: Float64[np.ndarray, "n v 3"], worth: Float64[np.ndarray, "n v"]
) -> Float64[np.ndarray, "n 3"]:
    """The least value of each channel at which half of the worth is reached."""
    order = values.argsort(axis=1, kind="stable")
    ranked = np.take_along_axis(values, order, 1)
    weights = np.take_along_axis(np.broadcast_to(worth[..., None], values.shape), order, 1)
    reached = weights.cumsum(1) * 2 >= weights.sum(1, keepdims=True)
    return np.take_along_axis(ranked, reached.argmax(1)[:, None], 1)[:, 0]
