"""Pose refinement: Gauss-Newton on the normals of all pixels and on the outline of the silhouette.

If the pose is multiplied by [Exp(r) | t] from the left, a point x on a ray moves to x + r x x + t, and along the ray
back to the surface. Its normal N changes with the surface's curvature S = dN/dx there. In camera axes the normal
becomes R^T (N - r x N + S P (r x x + t)) with P = I - d g^T / (g d), where d is the ray and g the gradient of the
field. A ray through the outline of the silhouette touches the surface: the minimum of the field along it is 0, and
changes by N (r x x + t). Both are exact to first order, so ten steps suffice where an optimizer with a learning rate
needs hundreds.
"""

import math

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from fieldwatch.recon.data import NormalView
from fieldwatch.recon.geometry import exponential, rigid
from fieldwatch.recon.pipelines.normals.registration_search import APART, PoseCandidate
from fieldwatch.recon.pipelines.normals.registration_shape import RasterizedMesh, Shape, filled, pixel_numbers, unit
from fieldwatch.recon.pipelines.normals.view_errors import angles_between

PIXELS = 2500
BORDER = 300
"""Maximum number of pixels and outline rays per step."""
_GRAZING = 0.12  # cosine between ray and normal below which a pixel is dropped: its point slides along the surface
_SURE = (0.01, 0.3)  # minimum assumed spread of the residuals: of normals (radians), of the outline (pixels)
_CREASE = 2.0  # multiple of the median change of normal per pixel above which a pixel is down-weighted
_FARTHEST = 0.15  # maximum step length, in radians and units
_DAMPING = 1e-4
_DONE = 1e-5
# Number of points along an outline ray, at first and then between the neighbors of the best point.
_ALONG = 48
_CLOSER = 9
_EDGE = 1.0  # half the edge of the box around the origin that may contain the surface

Normal = tuple[Float64[Tensor, "6 6"], Float64[Tensor, "6"]]


def refine_pose(shape: Shape, view: NormalView, start: Float64[Tensor, "4 4"], steps: int) -> PoseCandidate:
    """Refine a pose.

    Args:
        shape: surface of the model.
        view: observed view; the pose of its camera is ignored.
        start: initial ``world_from_camera``, close enough that most pixels see the right part of the surface.
        steps: maximum number of steps.

    Returns:
        The last pose, or the best one so far if its score is better by more than a tenth.
    """
    fit = _Fit(shape, view)
    pose = start
    best = fit.score(start)
    for _ in range(steps):
        change = fit.step(pose)
        # Applied from the left, so that r rotates about the origin of the scene's sphere and not about the camera.
        pose = rigid(exponential(change[None, :3])[0], change[3:]) @ pose
        current = fit.score(pose)
        best = current if current.score <= best.score else best
        if float(change.abs().max()) < _DONE:
            break
    last = fit.score(pose)
    # Scores use the mesh, steps the field itself, which is finer: a slightly worse final score is not significant.
    return last if last.score <= 1.1 * best.score + 0.05 else best


class _Fit:
    """A view and a surface, with everything that does not depend on the pose.

    Args:
        shape: surface of the model.
        view: observed view.
    """

    def __init__(self, shape: Shape, view: NormalView) -> None:
        self._shape = shape
        self._camera = view.camera.to("cpu", torch.float64)
        self._whole = filled(view.mask)
        self._known = view.valid
        self._counts = view.mask | ~self._whole
        self._normals = view.normals.double()
        self._rays = unit(self._camera.directions())
        self._border = _border_rays(self._whole, view)
        self._last: tuple[Tensor, RasterizedMesh] | None = None

    def score(self, pose: Float64[Tensor, "4 4"]) -> PoseCandidate:
        """Score how well a pose explains the view."""
        rasterized = self._seen(pose)
        filled_mask = filled(rasterized.mask)
        both = rasterized.mask & self._known
        angles = angles_between(rasterized.normals[both] @ pose[:3, :3], self._normals[both])
        only_one = (self._whole ^ filled_mask) & self._counts
        union = (self._whole | filled_mask) & self._counts
        summed_error = float(angles.sum()) + APART * int(only_one.sum())
        return PoseCandidate(pose=pose, score=summed_error / max(int(union.sum()), 1))

    def step(self, pose: Float64[Tensor, "4 4"]) -> Float64[Tensor, "6"]:
        """Return the damped Gauss-Newton step [r, t], limited to a length at which the linearization holds."""
        matrix, right = (a + b for a, b in zip(self._of_normals(pose), self._of_border(pose), strict=True))
        scale = matrix.diagonal().clamp_min(1e-9)
        # Damped by the diagonal (Marquardt 1963), so that lengths and angles need no common unit; the constant keeps
        # undetermined directions solvable.
        change = -torch.linalg.solve(matrix + torch.diag(_DAMPING * scale + 1e-9 * scale.max()), right)
        return change * min(1.0, _FARTHEST / max(float(change[:3].norm()), float(change[3:].norm()), 1e-12))

    def _seen(self, pose: Float64[Tensor, "4 4"]) -> RasterizedMesh:
        # `score` and `step` of the same pose share one rasterization.
        if self._last is None or self._last[0] is not pose:
            camera = self._camera
            lens = {name: getattr(camera, name) for name in ("width", "height", "fx", "fy", "cx", "cy")}
            self._last = pose, self._shape.rasterize(type(camera)(name=camera.name, **lens, world_from_camera=pose))
        return self._last[1]

    def _of_normals(self, pose: Float64[Tensor, "4 4"]) -> Normal:
        """Return the normal equations of the pixels at which both show the object."""
        rasterized = self._seen(pose)
        rotation = pose[:3, :3]
        pixels = pixel_numbers(rasterized.mask & self._known, PIXELS)
        if not len(pixels):
            return _nothing()
        rays = self._rays.view(-1, 3)[pixels]
        along = rays @ rotation.T
        depth = rasterized.depth.view(-1)[pixels]
        points, normals = self._shape.intersect(pose[:3, 3].expand_as(along), along, depth / rays[:, 2])
        facing = -(normals * along).sum(1)
        # Compared in camera axes, like the errors of an evaluation.
        residual = normals @ rotation - self._normals.view(-1, 3)[pixels]
        slide = self._curvature(points, normals, depth / self._camera.fx)
        turning = slide.norm(dim=(1, 2)) * depth
        # Multiply by P: the motion that remains after the point moves along its ray back to the surface.
        slide = slide + (slide @ along[..., None]) * (normals / facing.clamp_min(_GRAZING)[:, None])[:, None]
        motion_of_normal = torch.cat([_cross(normals) - slide @ _cross(points), slide], 2)
        jacobian = rotation.T @ motion_of_normal
        # Weights fade in between the grazing limit and a cosine of 0.3, so that no pixel enters abruptly.
        weights = (facing > _GRAZING).double() * (facing / 0.3).clamp(0, 1)
        # Next to a crease, the difference across it would lock the pose in place: such pixels get little weight.
        weights /= (1 + (turning / (_CREASE * turning.median().clamp_min(1e-9))).square()).square()
        return _equations(jacobian, residual, weights, _SURE[0])

    def _curvature(
        self, points: Float64[Tensor, "n 3"], normals: Float64[Tensor, "n 3"], reach: Float64[Tensor, " n"]
    ) -> Float64[Tensor, "n 3 3"]:
        """Return dN/dx along the surface, from differences one pixel wide: an image shows no finer detail."""
        # The axis most perpendicular to the normal, so that their cross product is never short.
        least = torch.nn.functional.one_hot(normals.abs().argmin(1), 3).double()
        first = unit(torch.linalg.cross(normals, least))
        slopes = torch.zeros(len(points), 3, 3, dtype=torch.float64)
        for side in (first, torch.linalg.cross(normals, first)):
            step = reach[:, None] * side
            ends = [unit(self._shape.values_and_gradients(points + sign * step)[1]) for sign in (1, -1)]
            slopes += ((ends[0] - ends[1]) / (2 * reach[:, None]))[..., None] * side[:, None]
        return slopes

    def _of_border(self, pose: Float64[Tensor, "4 4"]) -> Normal:
        """Return the normal equations of the rays that touch the surface, in pixels."""
        if not len(self._border):
            return _nothing()
        along = self._border @ pose[:3, :3].T
        origin = pose[:3, 3]
        # The point of each ray closest to the center of the box: the surface is at most `_EDGE` away.
        middle = -(along @ origin)
        points = self._nearest(origin, along, middle)
        values, slopes = self._shape.values_and_gradients(points)
        # The field is only approximately a distance: dividing by its slope gives lengths, then converted to pixels.
        steep = slopes.norm(dim=1).clamp_min(1e-3)
        depth = ((points - origin) @ pose[:3, 2]).clamp_min(1e-3)
        pixels = self._camera.fx / depth
        normals = slopes / steep[:, None]
        jacobian = torch.cat([torch.linalg.cross(points, normals), normals], 1) * pixels[:, None]
        residual = values / steep * pixels
        return _equations(jacobian[:, None], residual[:, None], torch.ones_like(residual), _SURE[1])

    def _nearest(
        self, origin: Float64[Tensor, "3"], along: Float64[Tensor, "n 3"], middle: Float64[Tensor, " n"]
    ) -> Float64[Tensor, "n 3"]:
        """Return the points on rays at which the field is smallest."""
        distances = middle
        reach = _EDGE
        count = _ALONG
        for _ in range(3):
            candidates = distances[:, None] + torch.linspace(-reach, reach, count, dtype=torch.float64)
            points = origin + candidates[..., None] * along[:, None]
            least = self._shape.values(points.view(-1, 3)).view(candidates.shape).argmin(1)
            distances = candidates.gather(1, least[:, None])[:, 0]
            # From the point before the minimum to the one after it.
            reach = 2 * reach / (count - 1)
            count = _CLOSER
        return origin + distances[:, None] * along


def _border_rays(whole: Bool[Tensor, "height width"], view: NormalView) -> Float64[Tensor, "n 3"]:
    """Return unit directions, in camera axes, between neighboring pixels of which exactly one is in the silhouette."""
    camera = view.camera
    down = torch.nonzero(whole[1:] ^ whole[:-1]).double()
    across = torch.nonzero(whole[:, 1:] ^ whole[:, :-1]).double()
    # Pixel centers are at +0.5, so the line between rows k and k + 1 lies at k + 1.
    rows = torch.cat([down[:, 0] + 1, across[:, 0] + 0.5])
    columns = torch.cat([down[:, 1] + 0.5, across[:, 1] + 1])
    directions = [(columns - camera.cx) / camera.fx, (rows - camera.cy) / camera.fy, torch.ones_like(rows)]
    return unit(torch.stack(directions, 1))[:: max(math.ceil(len(rows) / BORDER), 1)]


def _equations(
    jacobian: Float64[Tensor, "n k 6"], residual: Float64[Tensor, "n k"], weights: Float64[Tensor, " n"], least: float
) -> Normal:
    """Return normal equations with robust weights: residuals far above the median count less (Geman, McClure 1985)."""
    # Residuals of normals are vectors, those of the outline scalars: both are reduced to a length.
    size = residual.norm(dim=1)
    spread = max(float(size.median()), least)
    robust_weights = weights / (1 + (size / (3 * spread)).square()).square() / spread**2
    weighted = jacobian * robust_weights[:, None, None]
    return torch.einsum("nki,nkj->ij", weighted, jacobian), torch.einsum("nki,nk->i", weighted, residual)


def _nothing() -> Normal:
    return torch.zeros(6, 6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)


def _cross(vectors: Float64[Tensor, "n 3"]) -> Float64[Tensor, "n 3 3"]:
    """Return the matrices [v]x that compute the cross product with each vector."""
    x, y, z = vectors.unbind(-1)
    zero = torch.zeros_like(x)
    return torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).unflatten(-1, (3, 3))
