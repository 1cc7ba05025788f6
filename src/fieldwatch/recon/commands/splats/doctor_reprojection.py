"""Checks of a sparse model by its own observations: its points are projected again with the stored cameras.

The error that a model stores is the one of its last bundle adjustment. It says nothing of intrinsics, poses or names
that were changed afterwards.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

from fieldwatch.cli.kit import DataFinding
from fieldwatch.recon.data import PhotoSet
from fieldwatch.recon.data.colmap import ColmapModel, RegisteredImage
from fieldwatch.recon.geometry import Camera, inverse_rigid, transform_points

# COLMAP drops observations beyond 4 pixels, so the median of a photo is below; larger photos may be less exact.
_MAX_PIXELS, _MAX_SHARE_OF_SIDE = 4.0, 0.002
# Smallest number of observations by which a photo is judged.
_LEAST = 12
# A correction explains the errors if it leaves less than this fraction of them.
_EXPLAINED = 0.34
# Largest number of photos whose poses are tried for a photo that does not fit its own.
_MOST_POSES = 200
# Correlation of colors between points and photos: necessary to judge a set; too low for one photo, as a fraction of the
# usual one; better by so much in another place; and so low that the photo shows something else.
_USUAL_LIKENESS, _LOW_LIKENESS, _BETTER, _STRANGE = 0.4, 0.5, 0.3, 0.1
# Likeness that a change of a photo has to reach, as a fraction of the usual one, and share of its points that have to
# stay inside.
_AS_USUAL, _INSIDE = 0.7, 0.15
# Usual likeness below which the photos show something else than the points.
_UNLIKE = 0.25
# Magnifications that are tried, from a half to twice.
_ZOOMS = tuple(2 ** (step / 8) for step in range(-8, 9) if step)
# Smallest number of photos that have a usual likeness.
_LEAST_PHOTOS = 4
# Largest number of photos that are decoded.
_MAX_DECODED = 100


@dataclass(frozen=True, kw_only=True, eq=False)
class Observed:
    """The observations of one photo.

    Attributes:
        image: the photo with its pose.
        pixels: where it observes points.
        points: those points in the world.
        colors: their colors, 0 to 255.
    """

    image: RegisteredImage
    pixels: Float[Tensor, "n 2"]
    points: Float[Tensor, "n 3"]
    colors: Float[Tensor, "n 3"]


def observed_points(model: ColmapModel, observations: Mapping[int, NDArray[np.float64]]) -> list[Observed]:
    """Return the observations of every photo that has enough of them.

    Args:
        model: the sparse model.
        observations: as `read_colmap_observations` returns them.
    """
    ids, order = model.points.ids.sort()
    if not len(ids):
        return []
    found: list[Observed] = []
    for image in model.images:
        table = torch.from_numpy(observations.get(image.image_id, np.zeros((0, 3))).copy())
        wanted = table[:, 2].long()
        at = torch.searchsorted(ids, wanted).clamp_max(len(ids) - 1)
        known = ids[at] == wanted
        rows = order[at[known]]
        pixels = table[known, :2]
        # Some programs write observations without positions.
        if len(rows) < _LEAST or len(pixels.unique(dim=0)) < len(pixels) / 2:
            continue
        positions = model.points.positions[rows]
        colors = model.points.colors[rows].double()
        found.append(Observed(image=image, pixels=pixels, points=positions, colors=colors))
    return found


def reprojection_errors(
    model: ColmapModel, observed: Observed, pose: Float[Tensor, "4 4"] | None = None
) -> Float[Tensor, "n"]:
    """Return the distance between observation and projection of each point in pixels; infinite behind the camera.

    Args:
        model: the sparse model, whose lenses are used.
        observed: observations of a photo.
        pose: ``world_from_camera`` to use instead of the photo's own.
    """
    return (_projected(model, observed, pose) - observed.pixels).norm(dim=-1)


def _projected(model: ColmapModel, observed: Observed, pose: Tensor | None = None) -> Float[Tensor, "n 2"]:
    camera_from_world = inverse_rigid(observed.image.world_from_camera if pose is None else pose)
    local = transform_points(camera_from_world, observed.points)
    depth = local[:, 2:]
    pixels = model.lenses[observed.image.camera_id].project(local[:, :2] / depth.clamp_min(1e-12))[0]
    return torch.where(depth > 0, pixels, torch.full_like(pixels, torch.inf))


def reprojection_findings(model: ColmapModel, observed: Sequence[Observed]) -> Iterator[DataFinding]:
    """Compare observations with projections: wrong focal lengths, lens models, poses and single photos."""
    if not observed:
        return
    medians = {each.image.name: float(reprojection_errors(model, each).median()) for each in observed}
    lens = {each.image.name: model.lenses[each.image.camera_id] for each in observed}
    wrong = {
        name: error
        for name, error in medians.items()
        if error > max(_MAX_PIXELS, _MAX_SHARE_OF_SIDE * max(lens[name].width, lens[name].height))
    }
    if not wrong:
        return
    suspects = [each for each in observed if each.image.name in wrong]
    worst = max(wrong, key=lambda name: wrong[name])
    error = f"{wrong[worst]:.0f} pixels" if np.isfinite(wrong[worst]) else "behind the camera"
    count = f"{len(wrong)} of {len(observed)} photos"
    if len(wrong) > len(observed) / 2 and (explained := _systematic(model, suspects)):
        yield explained
        return
    others = {each.image.name: _better_pose(model, each, observed) for each in suspects[:4]}
    fits = "; ".join(f"what {name} observes fits the pose of {other}" for name, other in others.items() if other)
    message = (
        f"{count} do not see the points where their poses put them (median reprojection error of {worst}: {error}): "
        f"{_listed(sorted(wrong, key=lambda name: -wrong[name]))}{'; ' + fits if fits else ''}."
    )
    remedy = (
        "The poses of these photos are wrong, or belong to other photos: export images.bin again from the same COLMAP "
        "model, or remove these photos from it."
    )
    yield DataFinding(name="poses", severity="error", message=message, remedy=remedy)


def _systematic(model: ColmapModel, suspects: Sequence[Observed]) -> DataFinding | None:
    """Return what one factor or a lens explains for most photos: focal length, size of the pictures, distortion."""
    seen = torch.cat([each.pixels for each in suspects])
    put = torch.cat([_projected(model, each) for each in suspects])
    lenses = [model.lenses[each.image.camera_id] for each in suspects for _ in range(len(each.pixels))]
    centers = torch.tensor([[lens.cx, lens.cy] for lens in lenses], dtype=seen.dtype)
    focal = torch.tensor([[lens.fx, lens.fy] for lens in lenses], dtype=seen.dtype)
    front = put.isfinite().all(-1)
    seen, put, centers, focal = seen[front], put[front], centers[front], focal[front]
    if len(seen) < _LEAST:
        return None
    before = float((put - seen).norm(dim=-1).median())
    zoom = _factor(seen - centers, put - centers)
    after_zoom = float((centers + zoom * (put - centers) - seen).norm(dim=-1).median())
    size = _factor(seen, put)
    after_size = float((size * put - seen).norm(dim=-1).median())
    if min(after_zoom, after_size) < _EXPLAINED * before:
        first = lenses[0]
        if after_size < 0.5 * after_zoom:
            return DataFinding(
                name="size",
                severity="warning",
                message=(
                    f"the observations are those of pictures {size:.3g} times as large as the cameras say "
                    f"({first.width}x{first.height}): cameras or observations were rescaled alone."
                ),
                remedy="Use cameras, images and points of one COLMAP model; photos may be scaled, the model must not.",
            )
        return DataFinding(
            name="focal",
            severity="error",
            message=(
                f"the focal length is wrong: {first.fx:.5g} pixels are stored, but the observations suggest about "
                f"{zoom * first.fx:.5g}, which lowers the reprojection error from {before:.1f} to {after_zoom:.2g}."
            ),
            remedy="Restore cameras.bin of the COLMAP model, or run 'colmap bundle_adjuster' to refine the intrinsics.",
        )
    after_lens = _after_radial(seen - centers, put - centers, focal)
    if after_lens < _EXPLAINED * before:
        return DataFinding(
            name="lens",
            severity="error",
            message=(
                f"the lens model is wrong: {lenses[0].model} leaves a reprojection error of {before:.1f} pixels that "
                f"grows with the distance from the center, another distortion {after_lens:.2g}."
            ),
            remedy=(
                "Restore cameras.bin of the COLMAP model with its camera model (OPENCV, SIMPLE_RADIAL, ...), or undo "
                "the distortion with 'colmap image_undistorter' and use its sparse/."
            ),
        )
    return None


def _factor(seen: Float[Tensor, "n 2"], put: Float[Tensor, "n 2"]) -> float:
    """Return the median factor between two sets of points around the same center."""
    length = put.norm(dim=-1)
    far = length >= length.median()
    return float(((seen * put).sum(-1) / length.square().clamp_min(1e-12))[far].median())


def _after_radial(seen: Float[Tensor, "n 2"], put: Float[Tensor, "n 2"], focal: Float[Tensor, "n 2"]) -> float:
    """Return the median error in pixels after the best radial distortion, factor 1 + a r^2 + b r^4."""
    squared = (put / focal).square().sum(-1)
    factor = (seen * put).sum(-1) / put.square().sum(-1).clamp_min(1e-12)
    columns = torch.stack([torch.ones_like(squared), squared, squared.square()], -1)
    # Weighted by the distance from the center, where a factor moves a point by pixels.
    weight = put.norm(dim=-1)
    weight = torch.where((factor > 0.2) & (factor < 5), weight, torch.zeros_like(weight))[:, None]
    fitted = torch.linalg.lstsq(weight * columns, weight * factor[:, None]).solution
    return float(((columns @ fitted) * put - seen).norm(dim=-1).median())


def _better_pose(model: ColmapModel, suspect: Observed, observed: Sequence[Observed]) -> str:
    """Return the photo whose pose fits the observations of another one; empty if there is none."""
    step = -(-len(observed) // _MOST_POSES)
    errors = {
        other.image.name: float(reprojection_errors(model, suspect, other.image.world_from_camera).median())
        for other in observed[::step]
        if other is not suspect
    }
    best = min(errors, key=lambda name: errors[name], default="")
    return best if best and errors[best] < _MAX_PIXELS else ""


def in_picture(pixels: Float[Tensor, "n 2"], depth: Float[Tensor, "n"], width: int, height: int) -> Bool[Tensor, "n"]:
    """Return which points are in front of a camera and inside of its picture."""
    return (depth > 0) & (pixels >= 0).all(-1) & (pixels[:, 0] < width) & (pixels[:, 1] < height)


def content_findings(photos: PhotoSet, observed: Sequence[Observed]) -> Iterator[DataFinding]:
    """Compare the colors of points with the photos that observe them: a photo under another name shows other things.

    Args:
        photos: the photos; at most about a hundred are decoded, evenly spaced.
        observed: their observations.
    """
    by_name = {each.image.name: each for each in observed}
    step = -(-len(photos) // _MAX_DECODED)
    chosen = [i for i in range(0, len(photos), step) if photos.names[i] in by_name]
    own: dict[int, float] = {}
    changed: dict[int, tuple[str, float]] = {}
    for i in chosen:
        image = photos[i].image
        value = _likeness(image, photos.cameras[i], by_name[photos.names[i]])
        if value is not None:
            own[i] = value
            changed[i] = _best_change(image, photos.cameras[i], by_name[photos.names[i]])
    if len(own) < _LEAST_PHOTOS:
        return
    usual = float(np.median([max(own[i], changed[i][1]) for i in own]))
    if usual < _USUAL_LIKENESS:
        yield from _unlike(float(np.median(list(own.values()))), len(own))
        return
    order = sorted(own, key=lambda i: own[i])
    # What is symmetric looks much the same when it is turned.
    turned = [i for i in order if changed[i][1] > max(own[i] + _BETTER, _AS_USUAL * usual)]
    yield from _changed([(photos.names[i], changed[i][0]) for i in turned], len(own))
    low = [i for i in order if own[i] < _LOW_LIKENESS * usual and i not in turned]
    swapped: dict[str, str] = {}
    for i in low[:8]:
        image = photos[i].image
        likeness = {j: _likeness(image, photos.cameras[j], by_name[photos.names[j]]) for j in own if j != i}
        others = {j: value for j, value in likeness.items() if value is not None}
        best = max(others, key=lambda j: others[j], default=i)
        if best != i and others[best] > own[i] + _BETTER:
            swapped[photos.names[i]] = photos.names[best]
    if swapped:
        shown = "; ".join(f"{name} shows what {other} should show" for name, other in swapped.items())
        yield DataFinding(
            name="content",
            severity="error",
            message=f"{len(swapped)} of {len(own)} photos have the pose of another photo: {shown}.",
            remedy="Restore the file names of these photos or their names in images.bin, or remove these photos.",
        )
    strange = [photos.names[i] for i in low if own[i] < _STRANGE and photos.names[i] not in swapped]
    if strange:
        yield DataFinding(
            name="content",
            severity="warning",
            message=(
                f"{len(strange)} of {len(own)} photos do not have the colors of the points that they observe: "
                f"{_listed(strange)}."
            ),
            remedy="Look at these photos: they show something else than their pose says; remove them if so.",
        )


Change: TypeAlias = Callable[[Tensor], Tensor]
"""Where the content of a place of a photo is found in a changed photo; places go from -1 to 1, right and down."""


def _factors(right: float, down: float) -> Change:
    return lambda places: places * torch.tensor([right, down], dtype=places.dtype)


def _quarter(right: float, down: float) -> Change:
    return lambda places: places.flip(-1) * torch.tensor([right, down], dtype=places.dtype)


_CHANGES: Mapping[str, Change] = {
    "upside down": _factors(-1.0, -1.0),
    "mirrored left to right": _factors(-1.0, 1.0),
    "mirrored top to bottom": _factors(1.0, -1.0),
    "turned by a quarter to the right": _quarter(-1.0, 1.0),
    "turned by a quarter to the left": _quarter(1.0, -1.0),
    **{f"magnified {zoom:.2g} times": _factors(zoom, zoom) for zoom in _ZOOMS},
}
"""What may have happened to a photo after its pose was found."""


def _best_change(image: UInt8[Tensor, "h w 3"], camera: Camera, observed: Observed) -> tuple[str, float]:
    """Return the change of a photo that explains its points' colors best, and the correlation of colors then."""
    found = {
        name: value
        for name, change in _CHANGES.items()
        if (value := _likeness(image, camera, observed, change)) is not None
    }
    best = max(found, key=lambda name: found[name], default="")
    return best, found.get(best, -1.0)


def _changed(photos: Sequence[tuple[str, str]], count: int) -> Iterator[DataFinding]:
    """Name the photos that were turned, mirrored or magnified, with their changes."""
    if not photos:
        return
    zoomed = all(change.startswith("magnified") for _, change in photos)
    shown = ", ".join(f"{name} ({change})" for name, change in photos[:5])
    remedy = (
        "Give these photos cameras of their own with the focal length at which they were taken (COLMAP: no shared "
        "intrinsics, then 'colmap bundle_adjuster'), or leave them out: they were zoomed or cropped."
        if zoomed
        else "Turn these photos back (a viewer may have applied or dropped the EXIF orientation), or register the "
        "photos as they are now with COLMAP."
    )
    yield DataFinding(
        name="content",
        severity="error",
        message=(
            f"{len(photos)} of {count} photos were turned, mirrored or magnified after their poses were found, as the "
            f"colors of their points show: {shown}{', ...' if len(photos) > 5 else ''}."
        ),
        remedy=remedy,
    )


def _unlike(usual: float, count: int) -> Iterator[DataFinding]:
    """Warn of photos that show, as a rule, other colors than the points that they observe."""
    if usual < _UNLIKE:
        yield DataFinding(
            name="content",
            severity="warning",
            message=(
                f"the {count} photos hardly have the colors of the points that they observe (correlation {usual:.2f}): "
                "something covers or moves in the photos, or they are not those of the model."
            ),
            remedy="Use the photos with which the model was made: files that were renamed or sorted anew stand at the "
            "poses of others. Mask what moves or occludes the scene in the right ones (people, cars; a masks folder), "
            "or exclude such photos.",
        )


def _likeness(
    image: UInt8[Tensor, "h w 3"], camera: Camera, observed: Observed, change: Change | None = None
) -> float | None:
    """Return the correlation of colors between a photo and points that are observed; None if it is unknown.

    Args:
        image: photo that is looked at.
        camera: camera through which the points are seen, of this photo or of another one.
        observed: what the photo of that camera observes.
        change: change of the photo that is assumed; None for none.
    """
    height, width = image.shape[:2]
    pixels, depth = camera.project(observed.points.to(camera.world_from_camera))
    # The two photos may differ in size.
    size = torch.tensor([width, height])
    pixels = pixels * size / torch.tensor([camera.width, camera.height])
    if change is not None:
        pixels = (change(2 * pixels / size - 1) + 1) / 2 * size
    inside = in_picture(pixels, depth, width, height)
    if int(inside.sum()) < (_LEAST if change is None else max(2 * _LEAST, _INSIDE * len(inside))):
        return None
    column, row = pixels[inside].long().unbind(-1)
    values = torch.stack([image[row, column].double().flatten(), observed.colors[inside].flatten()])
    return None if float(values.std(-1).min()) < 1 else float(torch.corrcoef(values)[0, 1])


def _listed(names: Sequence[str]) -> str:
    listed = ", ".join(names[:5])
    return f"{listed}, ... ({len(names)})" if len(names) > 5 else listed
