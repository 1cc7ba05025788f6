"""Check masks and cameras of normal maps against the visual hull, which needs no normals."""

from collections.abc import Sequence

import torch

from fieldwatch.recon.data.normal_maps.findings import MIN_COVERED_SHARE, MIN_VIEWS, NormalCheck, of_views
from fieldwatch.recon.data.normal_maps.hull import Hull, visual_hull
from fieldwatch.recon.data.normal_maps.model import NormalView
from fieldwatch.recon.data.normal_maps.silhouettes import silhouette_coherence

# Thresholds. Fractions unless a unit is given.
_RAYS = 400  # per view
_STEPS = 192  # per ray
_MIN_REACH = 0.1  # distance from the origin that an object must reach, so that it is not tiny in the unit sphere
_MAX_SPHERE_MISS_SHARE = 0.001
_MAX_HULL_REACH = 1.15  # above 1, since the hull of few views is larger than the object
_MOST_LEFT_OUT = 40  # views up to which each is left out in turn, to find the one that contradicts the others
_MAX_SHIFT = 0.35  # pixels of all principal points, between none and half a pixel


def bounds(views: Sequence[NormalView], hull: Hull) -> NormalCheck | None:
    """Check that the visual hull is not empty, and neither tiny nor larger than the unit sphere."""
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
    origins, directions = view.camera.rays_at(view.mask)
    # The point of each ray nearest to the origin.
    nearest = origins - (origins * directions).sum(-1, keepdim=True) * directions
    return float((nearest.norm(dim=-1) > 1).double().mean()) if len(origins) else 0.0


def silhouettes(views: Sequence[NormalView], hull: Hull) -> NormalCheck | None:
    """Check that the visual hull of all masks covers each mask, and name a view that contradicts all others."""
    if not bool(hull.inside.any()):
        return None
    # The hull may be half a cell too small, which matters for thin parts.
    dilated = hull.dilated()
    shares = {view.name: _hull_hit_share(view, dilated) for view in views if bool(view.mask.any())}
    if min(shares.values(), default=1.0) < MIN_COVERED_SHARE and (culprit := _carver(views)):
        return NormalCheck(
            name="silhouettes",
            severity="error",
            message=f"pose, focal length or mask of view {culprit!r} contradict all others, which agree without it.",
            remedy=(
                f"Check number, mask and camera of view {culprit!r}, or leave it out with --exclude and its number."
            ),
        )
    return of_views(
        shares,
        lambda share: share < MIN_COVERED_SHARE,
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
    if not MIN_VIEWS <= len(views) <= _MOST_LEFT_OUT:
        return ""
    for left_out in views:
        others = [view for view in views if view is not left_out]
        hull = visual_hull(others).dilated()
        if all(_hull_hit_share(view, hull) >= MIN_COVERED_SHARE for view in others if bool(view.mask.any())):
            return left_out.name
    return ""


def _hull_hit_share(view: NormalView, hull: Hull) -> float:
    """Return the fraction of the rays through a mask, sampled to a few hundred, that intersect the hull."""
    # A few hundred rays estimate the fraction accurately enough, and a regular step spreads them over the whole mask.
    places = view.mask.flatten().nonzero()[:, 0]
    chosen = torch.zeros(view.mask.numel(), dtype=torch.bool)
    chosen[places[:: max(len(places) // _RAYS, 1)]] = True
    origins, directions = view.camera.rays_at(chosen.reshape(view.mask.shape))
    middle = -(origins * directions).sum(-1, keepdim=True)
    along = middle + torch.linspace(-1.75, 1.75, _STEPS, dtype=middle.dtype) * hull.half
    points = origins[:, None] + along[..., None] * directions[:, None]
    return float(hull.contains(points).any(-1).double().mean())


def pixel_center(views: Sequence[NormalView]) -> NormalCheck | None:
    """Check that the silhouettes fit best without moving the principal points."""
    coherence = silhouette_coherence(views)
    if coherence is None or abs(coherence.best) < _MAX_SHIFT or coherence.at(0.0) < 1.5 * min(coherence.missed):
        return None
    half = abs(abs(coherence.best) - 0.5) < 0.2
    other = "whole" if coherence.best > 0 else "half"
    return NormalCheck(
        name="pixel_center",
        severity="warning",
        message=(
            f"the silhouettes fit best with principal points moved by {coherence.best:+.2f} pixels: they miss each "
            f"other by {coherence.at(0.0):.2f} pixels now, and by {min(coherence.missed):.2f} then."
        ),
        remedy=(
            "Read the intrinsics with the other pixel center "
            f"(--pixel-center {other}); half a pixel costs half of the accuracy."
            if half
            else "Check cx and cy in the intrinsics, and that maps were not cropped or shifted."
        ),
        correction={"pixel_center": other} if half else {},
    )
