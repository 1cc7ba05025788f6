"""Detect common mistakes in sets of normal maps before training."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage

from fieldwatch.recon.data.normal_maps.agreement import (
    NormalTransform,
    as_read,
    flipped,
    from_world,
    median_disagreement,
    outward_share,
)
from fieldwatch.recon.data.normal_maps.hull import Hull, visual_hull
from fieldwatch.recon.data.normal_maps.layout import mask_holes
from fieldwatch.recon.data.normal_maps.model import NormalSet, NormalView
from fieldwatch.recon.geometry import normals_from_depth

# Thresholds. Fractions unless a unit is given.
_MAX_ROTATION_ERROR = 1e-4  # largest entry of |R R^T - 1|
_MAX_OFF_UNIT_SHARE = 0.01
_MIN_FACING_SHARE = 0.98
_MIN_COVERED_SHARE = 0.95
_MIN_OUTWARD = 0.6  # agreement with the mask outlines, at most 1; correct sets have 0.9
_MAX_DISAGREEMENT = 35.0  # degrees
_MAX_DEPTH_ANGLE = 10.0  # degrees
_GRAZING_COSINE = 0.3
_FRONTAL_COSINE = 0.8  # a hole whose rim faces the camera with a larger mean cosine is an error of the mask
_RAYS = 400  # per view
_STEPS = 192  # per ray
_MIN_REACH = 0.1  # distance from the origin that an object must reach, so that it is not tiny in the unit sphere
_MAX_SPHERE_MISS_SHARE = 0.001
_MAX_HULL_REACH = 1.15  # above 1, since the hull of few views is larger than the object
_MOST_LEFT_OUT = 40  # views up to which each is left out in turn, to find the one that contradicts the others
_MIN_VIEWS = 4  # fewer have no usual agreement
_TURNED_OUTWARD = 0.3  # agreement below which a single view is suspected
_REWRITE = (
    "No choice of --axes describes the files: write normals with x right, y up, z toward the viewer (red, green, blue)."
)
_CONSEQUENCES = {  # checks that fail as a consequence of another one, and are not reported with it
    "overlap": ("axes", "turned", "cross_view", "depth", "holes"),
    "axes": ("turned", "facing", "cross_view", "depth", "holes"),
    "turned": ("facing", "cross_view", "depth"),
    "rotation": ("hull", "silhouettes", "cross_view"),
    "silhouettes": ("cross_view",),
    "hull": ("silhouettes", "cross_view"),
}


@dataclass(frozen=True, kw_only=True)
class NormalCheck:
    """A problem found in a set of normal maps.

    Attributes:
        name: name of the check: `rotation`, `unit_length`, `facing`, `axes`, `overlap`, `holes`, `hull`,
            `silhouettes`, `cross_view` or `depth`.
        severity: `"error"` (training would fail or learn a wrong surface), `"warning"` (worth inspecting) or `"note"`.
        message: description of the problem with numbers.
        remedy: suggested fix.
    """

    name: str
    severity: Literal["note", "warning", "error"]
    message: str
    remedy: str


def check_normal_maps(normal_set: NormalSet, axes: str | None = None) -> tuple[NormalCheck, ...]:
    """Check a set of normal maps and return the problems found, errors first.

    Args:
        normal_set: maps, masks and cameras.
        axes: axes with which the files were read, ``opengl`` or ``opencv``, so that the remedy names the other ones;
            None or ``auto`` if they were not chosen.

    The checks cover camera rotations, lengths of normals, normals that face away from the camera, the axes of the
    normals (against mask outlines and across views), normals missing in the masks, holes in the masks, the extent of
    the visual hull and its agreement with the masks, the agreement of normals across views, and the agreement of depth
    and normals. Problems that follow from another reported problem are omitted.
    """
    views = normal_set.views
    results = [check(views) for check in (_rotation, _unit_length, _facing, _overlap, _holes, _depth)]
    # Carving is the expensive part, so all checks share one hull.
    hull = visual_hull(views)
    results += [
        _axes(views, hull, axes),
        _turned(views),
        *(check(views, hull) for check in (_bounds, _silhouettes, _cross_view)),
    ]
    checks = [check for check in results if check is not None]
    implied = set[str]().union(*(_CONSEQUENCES.get(check.name, ()) for check in checks))
    # Errors come first, because readers often act on the first line alone.
    ranks = {"error": 0, "warning": 1, "note": 2}
    return tuple(sorted((c for c in checks if c.name not in implied), key=lambda check: ranks[check.severity]))


def _rotation(views: Sequence[NormalView]) -> NormalCheck | None:
    wrong: dict[str, float] = {}
    for view in views:
        rotation = view.camera.world_from_camera[:3, :3].double()
        off = float((rotation @ rotation.T - torch.eye(3, dtype=torch.float64)).abs().max())
        if off > _MAX_ROTATION_ERROR or float(torch.linalg.det(rotation)) < 0:
            wrong[view.name] = off
    if not wrong:
        return None
    return NormalCheck(
        name="rotation",
        severity="error",
        message=f"the poses of views {_listed(list(wrong))} are not rotations (off by {max(wrong.values()):.2g}).",
        remedy="Write poses with orthonormal axes and determinant 1; put scale factors into scale_mat.",
    )


def _unit_length(views: Sequence[NormalView]) -> NormalCheck | None:
    shares = {}
    for view in views:
        length = view.normals[view.valid].double().norm(dim=-1)
        off = float(((length - 1).abs() > 0.02).double().mean()) if len(length) else 0.0
        # Readers normalize the vectors; `off_unit` remembers their lengths in the file.
        shares[view.name] = max(off, view.off_unit)
    return _of_views(
        shares,
        lambda share: share > _MAX_OFF_UNIT_SHARE,
        name="unit_length",
        severity="warning",
        message="of the normals in the mask do not have length 1 (by more than 2 %)",
        remedy="Write unit normals, n = p / 65535 * 2 - 1 in 16-bit PNG; do not resize maps with a filter.",
    )


def _facing(views: Sequence[NormalView]) -> NormalCheck | None:
    shares = {}
    for view in views:
        cosine = (view.normals * view.camera.directions().to(view.normals)).sum(-1)[view.valid]
        shares[view.name] = float((cosine > 0).double().mean()) if len(cosine) else 0.0
    return _of_views(
        shares,
        lambda share: share > 1 - _MIN_FACING_SHARE,
        name="facing",
        # A few normals may face away at silhouettes; more than 10 % indicates wrong axes.
        severity="error" if max(shares.values()) > 0.1 else "warning",
        message="of the normals in the mask face away from the camera",
        remedy="Visible surfaces face the camera. If most normals do not, z has the wrong sign: use other --axes.",
    )


def _axes(views: Sequence[NormalView], hull: Hull, axes: str | None) -> NormalCheck | None:
    """Check the signs of x and y by mask outlines and of z by facing; detect swapped channels and world axes."""
    share = outward_share(views)
    z_values = torch.cat([view.normals[view.valid][:, 2] for view in views])
    if share is None or not len(z_values):
        return None
    # Mask outlines determine the signs of x and y; facing the camera determines that of z.
    signs = (_sign(share[0]), _sign(share[1]), -1.0 if float((z_values > 0).double().mean()) > 0.5 else 1.0)
    best_guess: NormalTransform = flipped(*signs)
    best_share = abs(share[0]) + abs(share[1])
    name = ("x", "y", "z")
    diagnosis = (
        "the normals have " + " and ".join(n for n, sign in zip(name, signs, strict=True) if sign < 0) + " negated"
    )
    other = "opengl" if axes == "opencv" else "opencv"
    remedy = {(1.0, -1.0, -1.0): f"The files use other axes: read them with --axes {other}."}.get(signs, _REWRITE)
    best_world = max(
        (from_world(1, 1, 1), from_world(1, -1, -1)), key=lambda guess: sum(outward_share(views, guess) or (0, 0))
    )
    world_share = sum(outward_share(views, best_world) or (0, 0))
    # World axes must fit clearly better, since for some camera arrangements both fit partly.
    if world_share > max(best_share + 0.2, _MIN_OUTWARD):
        best_guess = best_world
        best_share = world_share
        diagnosis = "the normals are in world axes, not in camera axes"
        remedy = "Name the folder of camera-space normals with --normals, or rotate them by each camera's R."
    elif best_share < _MIN_OUTWARD and (swapped := _swapped_channels(views)):
        best_guess, best_share, diagnosis = swapped
        remedy = _REWRITE
    elif best_share < _MIN_OUTWARD:
        diagnosis = "no choice of signs makes the normals point outward at the outlines of the masks"
        remedy = (
            f"{_REWRITE} Check that masks and normals show the same views: look at them with "
            "`fieldwatch doctor --data FOLDER --picture sheet.png`."
        )
    elif min(signs) > 0:
        return None
    # The angles before and after the correction show whether the diagnosis explains the data.
    angles = [median_disagreement(views, hull, guess) for guess in (as_read, best_guess)]
    across = "" if None in angles else f"; views disagree by {angles[0]:.0f} degrees, after it by {angles[1]:.0f}"
    return NormalCheck(
        name="axes",
        severity="error",
        message=f"{diagnosis} (outline agreement {sum(share):.2f}, after correction {best_share:.2f} of 1{across}).",
        remedy=remedy,
    )


def _reordered(order: Sequence[int], signs: Sequence[float]) -> NormalTransform:
    """Assume that the components stand in another order, with signs."""
    factors = torch.tensor(list(signs))
    return lambda view, normals: normals[:, list(order)] * factors.to(normals)  # noqa: ARG005 - the same for all views


# The other seven ways to turn or mirror an image by quarters.
_IN_PLANE = tuple(
    _reordered(order, (*signs, 1.0))
    for order in ((0, 1, 2), (1, 0, 2))
    for signs in ((1.0, 1.0), (1.0, -1.0), (-1.0, 1.0), (-1.0, -1.0))
    if (order, signs) != ((0, 1, 2), (1.0, 1.0))
)


def _turned(views: Sequence[NormalView]) -> NormalCheck | None:
    """Find single views whose normals are turned or mirrored in the image, unlike those of the others."""
    shares = {view.name: sum(share) for view in views if (share := outward_share([view])) is not None}
    if len(shares) < _MIN_VIEWS or float(np.median(list(shares.values()))) < _MIN_OUTWARD:
        return None
    by_name = {view.name: view for view in views}
    wrong: dict[str, float] = {}
    for name, share in shares.items():
        if share >= _TURNED_OUTWARD:
            continue
        others = [sum(outward_share([by_name[name]], turn) or (0.0, 0.0)) for turn in _IN_PLANE]
        if max(others) > _MIN_OUTWARD:
            wrong[name] = share
    if not wrong or len(wrong) > len(shares) / 2:
        return None
    worst = min(wrong, key=lambda name: wrong[name])
    return NormalCheck(
        name="turned",
        severity="error",
        message=(
            f"the normals of views {_listed(list(wrong))} are turned or mirrored in the image: they do not point "
            f"outward at the outline of the mask (agreement {wrong[worst]:.2f} in view {worst!r}, "
            f"{np.median(list(shares.values())):.2f} in the others)."
        ),
        remedy="Write the normals of these views again, or leave the views out with --exclude and their numbers.",
    )


def _swapped_channels(views: Sequence[NormalView]) -> tuple[NormalTransform, float, str] | None:
    """Find an order and signs of the channels that make the normals point outward at the outlines and to the camera.

    Returns:
        The correction, the agreement with the outlines after it, and what is wrong; None if no order fits.
    """
    best: tuple[float, tuple[int, ...], tuple[float, ...]] = (_MIN_OUTWARD, (0, 1, 2), (1.0, 1.0, 1.0))
    for order in list(permutations(range(3)))[1:]:
        share = outward_share(views, _reordered(order, (1.0, 1.0, 1.0)))
        away = torch.cat([view.normals[view.valid][:, order[2]] for view in views])
        # In OpenCV axes, z of what the camera sees is negative; an order in which it has both signs is wrong.
        facing = float((away < 0).double().mean()) if len(away) else 0.5
        if share is None or max(facing, 1 - facing) < _MIN_FACING_SHARE:
            continue
        signs = (_sign(share[0]), _sign(share[1]), 1.0 if facing > 0.5 else -1.0)
        best = max(best, (abs(share[0]) + abs(share[1]), order, signs))
    share, order, signs = best
    if order == (0, 1, 2):
        return None
    # What was read as x may be y: named by what each channel of the file holds, after the axes were converted.
    names = "xyz"
    holds = ", ".join(
        f"{names[channel]} in place of {names[axis]}" for axis, channel in enumerate(order) if axis != channel
    )
    channels = " (BGR instead of RGB)" if order == (2, 1, 0) else ""
    return _reordered(order, signs), share, f"the channels of the normals are exchanged{channels}: {holds}"


def _overlap(views: Sequence[NormalView]) -> NormalCheck | None:
    shares = {view.name: float(view.valid.sum() / view.mask.sum().clamp_min(1)) for view in views}
    finding = _of_views(
        shares,
        lambda share: share < _MIN_COVERED_SHARE,
        name="overlap",
        severity="error",
        message="of the mask pixels have a normal",
        remedy=(
            "Mask and normals of a view must show the same image, without NaN: check the numbers in their names, or "
            "leave these views out with --exclude."
        ),
        worst=min,
    )
    better_fit = _other_masks(views, [view for view in views if shares[view.name] < _MIN_COVERED_SHARE])
    return (
        finding
        if finding is None or not better_fit
        else replace(finding, message=f"{finding.message[:-1]}; {better_fit}.")
    )


def _other_masks(views: Sequence[NormalView], wrong: Sequence[NormalView]) -> str:
    """Describe the first view whose normals fit the mask of another view better; '' if there is none."""
    for view in wrong:
        fits = {other.name: _iou(view, other) for other in views if other.size == view.size}
        # The best mask is often that of a neighboring view, because indices are shifted by one.
        best = max(fits, key=lambda name: fits[name])
        # Similar silhouettes of neighboring views fit almost equally well, so a margin is required.
        if best != view.name and fits[best] > fits[view.name] + 0.05:
            return (
                f"the mask of {best} fits the normals of {view.name} better (IoU {fits[best]:.2f} instead of "
                f"{fits[view.name]:.2f})"
            )
    return ""


def _iou(view: NormalView, other: NormalView) -> float:
    return float((view.known & other.mask).sum() / (view.known | other.mask).sum().clamp_min(1))


def _holes(views: Sequence[NormalView]) -> NormalCheck | None:
    counts = {view.name: _false_holes(view) for view in views}
    if not (wrong := [name for name, count in counts.items() if count]):
        return None
    return NormalCheck(
        name="holes",
        severity="warning",
        message=(
            f"the masks of views {_listed(wrong)} have holes with {sum(counts.values())} pixels that are not holes of "
            "the object (there are normals inside, or the surface around them faces the camera): the surface would be "
            "carved there."
        ),
        remedy="Read with --fill-holes, which fills holes that contain normals, or write the masks again.",
    )


def _false_holes(view: NormalView) -> int:
    """Count the pixels of holes in the mask that are not holes of the object."""
    holes = mask_holes(view.mask)
    labels, count = cast("tuple[NDArray[np.int32], int]", ndimage.label(holes.numpy()))
    if not count:
        return 0
    rays = torch.nn.functional.normalize(view.camera.directions().to(view.normals), dim=-1)
    cosine = (view.normals * rays).sum(-1)
    total = 0
    # Each hole in its own window: masks may have thousands of specks.
    for number, window in enumerate(ndimage.find_objects(labels), 1):
        around = tuple(slice(max(side.start - 1, 0), side.stop + 1) for side in window)
        hole = torch.from_numpy(labels[around] == number)
        # Around a hole of the object, the surface turns away from the camera.
        rim = torch.from_numpy(ndimage.binary_dilation(hole.numpy())) & view.valid[around]
        faces = bool(rim.any()) and float(cosine[around][rim].mean()) < -_FRONTAL_COSINE
        known = int((hole & view.known[around]).sum())
        total += int(hole.sum()) if faces else known
    return total


def _bounds(views: Sequence[NormalView], hull: Hull) -> NormalCheck | None:
    radii = hull.centers(hull.inside).norm(dim=-1)
    if not len(radii):
        return NormalCheck(
            name="hull",
            severity="error",
            message="the masks have no common point: the visual hull within 1.5 units of the origin is empty.",
            remedy="Check that masks and cameras belong together, and that scale_mat moves the object to the origin.",
        )
    reach = float(radii.max())
    if reach < _MIN_REACH:
        return NormalCheck(
            name="hull",
            severity="error",
            message=f"the object extends only {reach:.2f} from the origin.",
            remedy="Decrease the scale in scale_mat, so that the object fills the unit sphere.",
        )
    # The hull is larger than the object. Only mask rays that miss the sphere prove that the object exceeds it.
    beyond = {view.name: _sphere_miss_share(view) for view in views}
    worst = max(beyond, key=lambda name: beyond[name])
    if beyond[worst] <= _MAX_SPHERE_MISS_SHARE and reach <= _MAX_HULL_REACH:
        return None
    proof = f"; {beyond[worst]:.1%} of the mask of view {worst} lies outside the unit sphere" if beyond[worst] else ""
    return NormalCheck(
        name="hull",
        severity="error" if beyond[worst] > _MAX_SPHERE_MISS_SHARE else "warning",
        message=f"the visual hull extends {reach:.2f} from the origin{proof}: the object must fit the unit sphere.",
        remedy="Increase the scale in scale_mat, or move its center to that of the object.",
    )


def _sphere_miss_share(view: NormalView) -> float:
    """Return the fraction of the rays through a mask that miss the unit sphere."""
    origins, directions = (rays[view.mask] for rays in view.camera.rays())
    # The point of each ray nearest to the origin.
    nearest = origins - (origins * directions).sum(-1, keepdim=True) * directions
    return float((nearest.norm(dim=-1) > 1).double().mean()) if len(origins) else 0.0


def _silhouettes(views: Sequence[NormalView], hull: Hull) -> NormalCheck | None:
    if not bool(hull.inside.any()):
        return None
    # The hull may be half a cell too small, which matters for thin parts.
    dilated = hull.dilated()
    shares = {view.name: _hull_hit_share(view, dilated) for view in views if bool(view.mask.any())}
    if min(shares.values(), default=1.0) < _MIN_COVERED_SHARE and (culprit := _carver(views)):
        return NormalCheck(
            name="silhouettes",
            severity="error",
            message=f"pose, focal length or mask of view {culprit!r} contradict all others, which agree without it.",
            remedy=(
                f"Check number, mask and camera of view {culprit!r}, or leave it out with --exclude and its number."
            ),
        )
    return _of_views(
        shares,
        lambda share: share < _MIN_COVERED_SHARE,
        name="silhouettes",
        severity="error",
        message="of the mask is covered by the visual hull of all masks",
        remedy=(
            "The pose or the mask of a view belongs to another view, or the focal length is wrong: check the numbers "
            "in their names and cameras_sphere.npz, or leave single views out with --exclude."
        ),
        worst=min,
    )


def _carver(views: Sequence[NormalView]) -> str:
    """Return the view without which the masks of all others agree; empty if there is none, or with many views."""
    if not _MIN_VIEWS <= len(views) <= _MOST_LEFT_OUT:
        return ""
    for left_out in views:
        others = [view for view in views if view is not left_out]
        hull = visual_hull(others).dilated()
        if all(_hull_hit_share(view, hull) >= _MIN_COVERED_SHARE for view in others if bool(view.mask.any())):
            return left_out.name
    return ""


def _hull_hit_share(view: NormalView, hull: Hull) -> float:
    """Return the fraction of the rays through a mask, sampled to a few hundred, that intersect the hull."""
    origins, directions = (rays[view.mask] for rays in view.camera.rays())
    # A few hundred rays estimate the fraction accurately enough.
    # A regular step spreads the rays over the whole mask.
    step = max(len(origins) // _RAYS, 1)
    origins = origins[::step]
    directions = directions[::step]
    middle = -(origins * directions).sum(-1, keepdim=True)
    along = middle + torch.linspace(-1.75, 1.75, _STEPS, dtype=middle.dtype) * hull.half
    points = origins[:, None] + along[..., None] * directions[:, None]
    return float(hull.contains(points).any(-1).double().mean())


def _cross_view(views: Sequence[NormalView], hull: Hull) -> NormalCheck | None:
    angle = median_disagreement(views, hull)
    if angle is None or angle <= _MAX_DISAGREEMENT:
        return None
    return NormalCheck(
        name="cross_view",
        severity="error",
        message=f"normals of different views at the same point differ by {angle:.0f} degrees (median).",
        remedy="Check the axes of the normals (--axes), the numbers in their names, and the rotations of the cameras.",
    )


def _depth(views: Sequence[NormalView]) -> NormalCheck | None:
    angles: dict[str, float] = {}
    for view in views:
        if view.depth is None:
            continue
        # Both kinds of normals are compared in camera axes, so the pose is replaced by the identity.
        camera_at_origin = replace(view.camera, world_from_camera=torch.eye(4))
        from_depth, valid = normals_from_depth(view.depth, camera_at_origin, mask=view.valid)
        rays = torch.nn.functional.normalize(camera_at_origin.directions(), dim=-1)
        # At grazing angles, finite differences of depth are inaccurate.
        valid &= (view.normals * rays).sum(-1) < -_GRAZING_COSINE
        cosine = (from_depth * torch.nn.functional.normalize(view.normals, dim=-1)).sum(-1)[valid].double().clamp(-1, 1)
        covered = float((view.depth[view.mask] > 0).double().mean()) if bool(view.mask.any()) else 1.0
        angles[view.name] = 90.0 if covered < 0.5 or not len(cosine) else float(cosine.acos().rad2deg().median())
    if not (wrong := [name for name, angle in angles.items() if angle > _MAX_DEPTH_ANGLE]):
        return None
    return NormalCheck(
        name="depth",
        severity="warning",
        message=(
            f"depth and normals of views {_listed(wrong)} disagree: normals computed from depth differ by "
            f"up to {max(angles.values()):.0f} degrees (median of a view; 90 if most of the depth is missing)."
        ),
        remedy="Depth must be along the optical axis and of the same view: integrate the normals again, or omit depth.",
    )


def _of_views(  # noqa: PLR0913 - the parts of a finding
    shares: dict[str, float],
    wrong: Callable[[float], bool],
    *,
    name: str,
    severity: Literal["warning", "error"],
    message: str,
    remedy: str,
    worst: Callable[..., str] = max,
) -> NormalCheck | None:
    """Return a finding about the views with wrong values that names the worst one, or None."""
    names = [worst_view for worst_view, share in shares.items() if wrong(share)]
    if not names:
        return None
    worst_view = worst(names, key=lambda name_of_view: shares[name_of_view])
    text = f"in {len(names)} of {len(shares)} views, {shares[worst_view]:.1%} {message} (worst view: {worst_view!r})."
    return NormalCheck(name=name, severity=severity, message=text, remedy=remedy)


def _listed(names: Sequence[str]) -> str:
    listed = ", ".join(names[:5])
    return f"{listed}, ... ({len(names)})" if len(names) > 5 else listed


def _sign(value: float) -> float:
    return -1.0 if value < 0 else 1.0
