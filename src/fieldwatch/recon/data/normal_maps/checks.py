"""Detect common mistakes in sets of normal maps before training."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from jaxtyping import Bool
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor

from fieldwatch.recon.data.normal_maps.agreement import (
    NormalTransform,
    median_disagreement,
    outward_share,
    spread_views,
)
from fieldwatch.recon.data.normal_maps.axes import Choices, Convention
from fieldwatch.recon.data.normal_maps.conventions import (
    GOOD,
    Evidence,
    best_convention,
    converted,
    in_file,
    noise_of,
)
from fieldwatch.recon.data.normal_maps.findings import MIN_COVERED_SHARE, MIN_VIEWS, NormalCheck, listed, of_views
from fieldwatch.recon.data.normal_maps.hull import Hull, visual_hull
from fieldwatch.recon.data.normal_maps.hull_checks import bounds, pixel_center, silhouettes
from fieldwatch.recon.data.normal_maps.integrability import integrability_gap
from fieldwatch.recon.data.normal_maps.layout import mask_holes
from fieldwatch.recon.data.normal_maps.model import NormalSet, NormalView
from fieldwatch.recon.geometry import normals_from_depth

# Thresholds. Fractions unless a unit is given.
_MAX_ROTATION_ERROR = 1e-4  # largest entry of |R R^T - 1|
_MAX_OFF_UNIT_SHARE = 0.01
_MIN_FACING_SHARE = 0.98
_MIN_OUTWARD = 0.6  # agreement with the mask outlines, at most 1; correct sets have 0.9
_MAX_DISAGREEMENT = 35.0  # degrees
_MAX_DEPTH_ANGLE = 10.0  # degrees
_GRAZING_COSINE = 0.3
_FRONTAL_COSINE = 0.8  # a hole whose rim faces the camera with a larger mean cosine is an error of the mask
_TURNED_OUTWARD = 0.3  # agreement below which a single view is suspected
_CLEARLY = 0.12  # lead in score of other axes that makes them the right ones
_REWRITE = (
    "No choice of --axes, --space and --channels describes the files: write normals with x right, y up, z toward the "
    "viewer (red, green, blue)."
)
_SAID_NOISE = 1.5  # degrees about each axis from which noise is a finding
_MUCH_NOISE = 8.0  # degrees from which it is a warning
_MAX_GAP = 0.7  # degrees around loops; exact maps have 0.0 to 0.6, and smooth errors of 5 degrees 0.8
_GAP_PER_DEGREE = 0.5  # of a smooth error with one wave over the picture, at most; others leave a third of it
_AWAY_PER_DEGREE = 0.006  # share of normals that noise of a degree turns away from the camera
_SPECK = 16  # largest number of connected pixels that is a speck of a mask
_MAX_SPECKS = 20  # per view; thin parts of an object may be cut into a few pieces
_MAX_SPECK_SHARE = 0.01  # share of a mask that makes specks an error
_CONSEQUENCES = {  # checks that fail as a consequence of another one, and are not reported with it
    "not_finite": ("overlap",),
    "overlap": ("axes", "turned", "cross_view", "depth", "holes", "integrability"),
    "axes": ("turned", "facing", "cross_view", "depth", "holes", "noise", "integrability"),
    "turned": ("facing", "cross_view", "depth", "integrability"),
    "rotation": ("hull", "silhouettes", "cross_view", "pixel_center"),
    "silhouettes": ("cross_view", "pixel_center"),
    "hull": ("silhouettes", "cross_view", "pixel_center"),
}
_NO_NORMALS = NormalCheck(
    name="no_normals",
    severity="note",
    message="there are no normals: the masks alone are trained, and the result is their visual hull.",
    remedy="If there are normals, name their folder with --normals.",
)


def check_normal_maps(normal_set: NormalSet) -> tuple[NormalCheck, ...]:
    """Check a set of normal maps and return the problems found, errors first.

    The checks cover camera rotations, lengths of normals, black masks, specks and holes of masks, NaN, normals that
    face away from the camera, the axes of the normals (against mask outlines and across views), normals missing in the
    masks, the extent of the visual hull and its agreement with the masks, the pixel center, the agreement of normals
    across views, the agreement of depth and normals, noise, and errors that change slowly over the picture. Problems
    that follow from another reported problem are omitted, and what masks or poses would be needed for is not checked in
    sets without them.
    """
    has_normals = any(bool(view.known.any()) for view in normal_set.views)
    results = [_rotation(normal_set.views), _empty(normal_set.views), _specks(normal_set.views)]
    results += [None if has_normals else _NO_NORMALS]
    results += [_holes(normal_set.views)] if has_normals and normal_set.silhouettes else []
    # Specks are outlines without a surface, and like black masks they carve the hull: all other checks do without both.
    cleaned = [_without_specks(view) for view in normal_set.views]
    if seen := tuple(view for view in cleaned if bool(view.mask.any())):
        results += _of_seen(replace(normal_set, views=seen), has_normals=has_normals)
    checks = [check for check in results if check is not None]
    implied = set[str]().union(*(_CONSEQUENCES.get(check.name, ()) for check in checks))
    # Errors come first, because readers often act on the first line alone.
    ranks = {"error": 0, "warning": 1, "note": 2}
    return tuple(sorted((c for c in checks if c.name not in implied), key=lambda check: ranks[check.severity]))


def _of_seen(normal_set: NormalSet, *, has_normals: bool) -> list[NormalCheck | None]:
    """Return the problems of views whose masks show something, without specks."""
    views = normal_set.views
    results: list[NormalCheck | None] = []
    if has_normals:
        results += [check(views) for check in (_unit_length, _not_finite, _depth)]
        results += [_facing(views, _noise_level(normal_set)), _noise(normal_set), _smooth_error(normal_set)]
    if has_normals and normal_set.silhouettes:
        results += [_overlap(views)]
    if normal_set.silhouettes and normal_set.posed:
        # Carving is the expensive part, so all checks share one hull.
        hull = visual_hull(views)
        results += [bounds(views, hull), silhouettes(views, hull), pixel_center(views)]
        results += (
            [_axes(normal_set, hull), _turned(views), _cross_view(views, hull, _noise_level(normal_set))]
            if has_normals
            else []
        )
    elif has_normals and normal_set.silhouettes:
        results += [_axes(normal_set, None), _turned(views)]
    return results


def _noise_level(normal_set: NormalSet) -> float:
    """Return the noise in degrees about each axis, as stated or estimated; 0 if it is unknown."""
    noise = noise_of(normal_set.views) if normal_set.noise is None else normal_set.noise
    return noise or 0.0


def _noise(normal_set: NormalSet) -> NormalCheck | None:
    noise = _noise_level(normal_set)
    if noise < _SAID_NOISE:
        return None
    return NormalCheck(
        name="noise",
        severity="warning" if noise >= _MUCH_NOISE else "note",
        message=(
            f"the normals have about {noise:.1f} degrees of noise from pixel to pixel (about each of two axes), as "
            "maps of estimators have: fine details of the surface will be lost in it."
        ),
        remedy=("More views, or maps of more light directions, average it out; --noise states the level yourself."),
    )


def _smooth_error(normal_set: NormalSet) -> NormalCheck | None:
    """Find errors that change slowly over the picture: normals that are not those of one surface."""
    gap = integrability_gap(normal_set.views, _noise_level(normal_set))
    if gap is None or gap < _MAX_GAP:
        return None
    return NormalCheck(
        name="integrability",
        severity="note",
        message=(
            "the normals of a view are not those of one surface, as if they had errors of at "
            f"least {gap / _GAP_PER_DEGREE:.1f} degrees that change slowly over the picture: the surface cannot be "
            "more accurate than they are."
        ),
        remedy=(
            "Better maps, such as those of photometric stereo, or more views. An object of many parts in few pixels "
            "has such gaps at the edges of its parts, too."
        ),
    )


def _empty(views: Sequence[NormalView]) -> NormalCheck | None:
    black = [view.name for view in views if not bool(view.mask.any())]
    if not black:
        return None
    return NormalCheck(
        name="empty_mask",
        severity="error",
        message=f"the masks of views {listed(black)} ({len(black)} of {len(views)}) are black: they show no object.",
        remedy=f"Paint the object white, or leave these views out with --exclude {' '.join(black[:8])}.",
        correction={"exclude": tuple(black)} if len(black) < len(views) else {},
    )


def _specks(views: Sequence[NormalView]) -> NormalCheck | None:
    """Find isolated white pixels outside of the object; black ones in it are holes."""
    found = {view.name: _small_groups(view.mask) for view in views}
    counts = {name: count for name, (_, count) in found.items() if count > _MAX_SPECKS}
    if not counts:
        return None
    shares = {view.name: float(found[view.name][0].sum() / view.mask.sum()) for view in views if view.name in counts}
    worst = max(counts, key=lambda name: counts[name])
    return NormalCheck(
        name="specks",
        severity="error" if max(shares.values()) > _MAX_SPECK_SHARE else "warning",
        message=(
            f"the masks of views {listed(list(counts))} have specks: in view {worst}, {counts[worst]} groups of at "
            f"most {_SPECK} white pixels beside the object, {shares[worst]:.1%} of the mask."
        ),
        remedy=(
            "Clean the masks, for instance with a median filter, or use --masks normals, which takes the pixels with a "
            "normal as the mask."
        ),
        correction={"masks": "normals"} if all(bool(view.known.any()) for view in views) else {},
    )


def _small_groups(mask: Bool[Tensor, "h w"]) -> tuple[Bool[Tensor, "h w"], int]:
    """Return the pixels of a mask in connected groups of at most `_SPECK` pixels, and the number of groups."""
    labels, count = cast("tuple[NDArray[np.int32], int]", ndimage.label(mask.numpy(), np.ones((3, 3))))
    small = np.bincount(labels.reshape(-1), minlength=count + 1) <= _SPECK
    small[0] = False
    return torch.from_numpy(small[labels]), int(small.sum())


def _without_specks(view: NormalView) -> NormalView:
    """Return a view without white specks beside the object, and without black ones in it, if its mask has many."""
    white, whites = _small_groups(view.mask)
    mask = view.mask & ~white if whites > _MAX_SPECKS else view.mask
    black, blacks = _small_groups(mask_holes(mask))
    return replace(view, mask=mask | black if blacks > _MAX_SPECKS else mask)


def _not_finite(views: Sequence[NormalView]) -> NormalCheck | None:
    shares = {view.name: view.not_finite for view in views}
    worst = max(shares.values())
    lost = tuple(name for name, share in shares.items() if share > 1 - MIN_COVERED_SHARE)
    without = f"leave views out with --exclude {' '.join(lost[:8])}, " if lost else ""
    found = of_views(
        shares,
        lambda share: share > 0,
        name="not_finite",
        severity="error" if worst > 1 - MIN_COVERED_SHARE else "warning",
        message="of the mask pixels are NaN or infinite in the normal map, and count as pixels without a normal",
        remedy=(
            f"Write the maps again with 0 where there is no normal, {without}or use --masks normals, which takes the "
            "pixels with a normal as the mask."
        ),
    )
    return (
        found if found is None or not lost or len(lost) == len(views) else replace(found, correction={"exclude": lost})
    )


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
        message=f"the poses of views {listed(list(wrong))} are not rotations (off by {max(wrong.values()):.2g}).",
        remedy="Write poses with orthonormal axes and determinant 1; put scale factors into scale_mat.",
    )


def _unit_length(views: Sequence[NormalView]) -> NormalCheck | None:
    shares = {}
    for view in views:
        length = view.normals[view.valid].double().norm(dim=-1)
        off = float(((length - 1).abs() > 0.02).double().mean()) if len(length) else 0.0
        # Readers normalize the vectors; `off_unit` remembers their lengths in the file.
        shares[view.name] = max(off, view.off_unit)
    return of_views(
        shares,
        lambda share: share > _MAX_OFF_UNIT_SHARE,
        name="unit_length",
        severity="warning",
        message="of the normals in the mask do not have length 1 (by more than 2 %)",
        remedy="Write unit normals, n = p / 65535 * 2 - 1 in 16-bit PNG; do not resize maps with a filter.",
    )


def _facing(views: Sequence[NormalView], noise: float) -> NormalCheck | None:
    shares = {}
    for view in views:
        rays = view.camera.directions_at(view.valid).to(view.normals)
        cosine = (view.normals[view.valid] * rays).sum(-1)
        shares[view.name] = float((cosine > 0).double().mean()) if len(cosine) else 0.0
    # Noise turns normals near the outline away from the camera.
    allowed = 1 - _MIN_FACING_SHARE + _AWAY_PER_DEGREE * noise
    return of_views(
        shares,
        lambda share: share > allowed,
        name="facing",
        # A few normals may face away at silhouettes; more than 10 % indicates wrong axes.
        severity="error" if max(shares.values()) > 0.1 + _AWAY_PER_DEGREE * noise else "warning",
        message="of the normals in the mask face away from the camera",
        remedy="Visible surfaces face the camera. If most normals do not, z has the wrong sign: use other --axes.",
    )


def _axes(normal_set: NormalSet, hull: Hull | None) -> NormalCheck | None:
    """Check axes, space and channels by mask outlines and facing, and name those that explain the maps."""
    views = spread_views(normal_set.views)
    current = normal_set.convention or Convention()
    raw = [in_file(view, current) for view in views]
    evidence = Evidence(raw)
    if evidence.empty or not evidence.has_outline:
        return None
    now = evidence.score(current)
    space = None if normal_set.posed else "camera"
    best, score, _ = best_convention(raw, Choices(space=space), current, evidence)
    if now.value >= GOOD and (score is None or score.value < now.value + _CLEARLY):
        return None
    correction: dict[str, str] = {}
    if score is None or score.value < GOOD:
        # Outlines whose normals are too flat to have a direction, or agree well where they have one, tell nothing.
        share = outward_share(views)
        if share is None or sum(share) >= _MIN_OUTWARD:
            return None
        diagnosis = "no choice of axes makes the normals point outward at the outlines of the masks"
        remedy = (
            f"{_REWRITE} Check that masks and normals show the same views: look at them with "
            "`fieldwatch doctor --data FOLDER --picture sheet.png`."
        )
        after = now
    else:
        diagnosis = _difference(current, best)
        correction = {"axes": best.named, "space": best.space, "channels": best.channels}
        same = replace(best, pixel_center=current.pixel_center) == current
        if same:
            return None
        # The flag that was given has to be taken back: without it, the space is camera.
        back = " --space camera" if current.space == "world" and best.space == "camera" else ""
        remedy = f"Read the files with {best.flags}{back}."
        after = score
    across = ""
    if hull is not None and after is not now:
        # The angles before and after the correction show whether the diagnosis explains the data.
        corrected = [converted(view, best) for view in raw]
        angles = [median_disagreement(each, hull) for each in (views, corrected)]
        across = "" if None in angles else f"; views disagree by {angles[0]:.0f} degrees, after it by {angles[1]:.0f}"
    return NormalCheck(
        name="axes",
        severity="error",
        message=f"{diagnosis} (agreement {now.value:.2f}, after correction {after.value:.2f} of 1{across}).",
        remedy=remedy,
        correction=correction,
    )


def _difference(current: Convention, best: Convention) -> str:
    """Describe what is wrong with a convention."""
    if best.space != current.space:
        return f"the normals are in {best.space} axes, not in {current.space} axes"
    # From the axes as read to the right ones.
    change = best.matrix @ current.matrix.T
    order = change.abs().argmax(1).tolist()
    if order == [0, 1, 2]:
        names = [name for name, sign in zip("xyz", change.diagonal().tolist(), strict=True) if sign < 0]
        return f"the normals have {' and '.join(names)} negated"
    holds = ", ".join(f"{'xyz'[c]} in place of {'xyz'[a]}" for a, c in enumerate(order) if a != c)
    bgr = " (BGR instead of RGB)" if best.channels != current.channels else ""
    return f"the channels of the normals are exchanged{bgr}: {holds}"


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
    if len(shares) < MIN_VIEWS or float(np.median(list(shares.values()))) < _MIN_OUTWARD:
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
            f"the normals of views {listed(list(wrong))} are turned or mirrored in the image: they do not point "
            f"outward at the outline of the mask (agreement {wrong[worst]:.2f} in view {worst!r}, "
            f"{np.median(list(shares.values())):.2f} in the others)."
        ),
        remedy="Write the normals of these views again, or leave the views out with --exclude and their numbers.",
    )


def _overlap(views: Sequence[NormalView]) -> NormalCheck | None:
    shares = {view.name: float(view.valid.sum() / view.mask.sum().clamp_min(1)) for view in views}
    finding = of_views(
        shares,
        lambda share: share < MIN_COVERED_SHARE,
        name="overlap",
        severity="error",
        message="of the mask pixels have a normal",
        remedy=(
            "Mask and normals of a view must show the same image: check the numbers in their names, leave these views "
            "out with --exclude, or use --masks normals."
        ),
        worst=min,
    )
    better_fit = _other_masks(views, [view for view in views if shares[view.name] < MIN_COVERED_SHARE])
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
            f"the masks of views {listed(wrong)} have holes with {sum(counts.values())} pixels that are not holes of "
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
    valid = view.valid.numpy()
    # All holes at once: masks may have thousands of specks. Around a hole of the object, the surface turns away from
    # the camera; the rim of a hole are the valid pixels that share a side with it.
    rim = torch.from_numpy(np.asarray(ndimage.binary_dilation(labels > 0), np.bool_) & valid)
    cosine = np.zeros(labels.shape)
    rays = torch.nn.functional.normalize(view.camera.directions_at(rim).to(view.normals), dim=-1)
    cosine[rim.numpy()] = (view.normals[rim] * rays).sum(-1).numpy()
    sums = np.zeros(count + 1)
    rims = np.zeros(count + 1)
    padded = np.pad(labels, 1)
    seen = np.zeros((4, *labels.shape), labels.dtype)
    for side, (down, across) in enumerate(((0, 1), (2, 1), (1, 0), (1, 2))):
        neighbor = padded[down : down + labels.shape[0], across : across + labels.shape[1]]
        # A pixel between two arms of the same hole counts once.
        fresh = valid & (neighbor > 0) & ~(seen[:side] == neighbor).any(0)
        seen[side] = neighbor
        np.add.at(rims, neighbor[fresh], 1)
        np.add.at(sums, neighbor[fresh], cosine[fresh])
    faces = (rims > 0) & (sums < -_FRONTAL_COSINE * rims)
    sizes = np.bincount(labels.reshape(-1), minlength=count + 1)
    known = np.bincount(labels[view.known.numpy()], minlength=count + 1)
    return int(np.where(faces, sizes, known)[1:].sum())


def _cross_view(views: Sequence[NormalView], hull: Hull, noise: float) -> NormalCheck | None:
    angle = median_disagreement(views, hull)
    # The noise of both views adds to the angle; the median of a vector with two deviations of 1 is 1.18.
    if angle is None or angle <= math.hypot(_MAX_DISAGREEMENT, 1.18 * math.sqrt(2) * noise):
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
            f"depth and normals of views {listed(wrong)} disagree: normals computed from depth differ by "
            f"up to {max(angles.values()):.0f} degrees (median of a view; 90 if most of the depth is missing)."
        ),
        remedy="Depth must be along the optical axis and of the same view: use --depth None, which integrates anew.",
    )
