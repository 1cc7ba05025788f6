"""Conventions of normal maps, found from the data: axes, space, order of the channels, pixel centers, noise."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product
from typing import get_args

import torch
from torch import Tensor

from fieldwatch.recon.data.normal_maps.agreement import median_disagreement, outline_pixels, spread_views
from fieldwatch.recon.data.normal_maps.axes import (
    AXES,
    LETTERS,
    Channels,
    Choices,
    Convention,
    Space,
    canonical_axes,
    read_axes,
)
from fieldwatch.recon.data.normal_maps.hull import visual_hull
from fieldwatch.recon.data.normal_maps.model import NormalView

GOOD = 0.75
"""Score of `_score` from which a convention explains the maps; correct ones have 0.9."""
CLEAR = 0.12
"""Lead by which a convention must exceed the usual one, so that symmetric objects keep the usual one."""
_FLAT = 0.3  # minimum length in the image plane for a normal to have a meaningful direction there
_FEWEST = 30  # outline pixels
_MOST = 1500  # pixels of a view that enter a score
_FULL = 0.97  # share of the picture from which a mask of normals cannot be a silhouette


def converted(view: NormalView, convention: Convention) -> NormalView:
    """Return a view whose normals, read in the channels of the file, are converted to OpenCV camera axes."""
    columns = read_axes(convention.axes)
    order = [0, 0, 0]
    signs = [1.0, 1.0, 1.0]
    for channel, (axis, sign) in enumerate(columns):
        order[axis] = 2 - channel if convention.channels == "bgr" else channel
        signs[axis] = sign
    if order == [0, 1, 2] and signs == [1.0, 1.0, 1.0] and convention.space == "camera":
        return view
    normals = view.normals[..., order]
    # Zeros are kept to avoid -0.0.
    normals = torch.where(normals == 0, normals, normals * torch.tensor(signs))
    if convention.space == "world":
        # Row vectors: n @ R rotates from world to camera axes.
        rotated = normals.double() @ view.camera.world_from_camera[:3, :3].double()
        normals = torch.where(view.known[..., None], rotated, torch.zeros(())).float()
    return replace(view, normals=normals)


def in_file(view: NormalView, convention: Convention) -> NormalView:
    """Return a view with the normals as in the file: the inverse of `converted`, up to rounding."""
    normals = view.normals.double()
    if convention.space == "world":
        normals = normals @ view.camera.world_from_camera[:3, :3].double().T
    return replace(view, normals=(normals @ convention.matrix).float())


@dataclass(frozen=True, kw_only=True)
class Score:
    """How well a convention explains the maps.

    Attributes:
        convention: the convention.
        outline: mean product of the normals in the image plane with the directions out of the masks, at their outlines;
            None without outlines.
        facing: share of the normals that face the camera.
    """

    convention: Convention
    outline: float | None
    facing: float

    @property
    def value(self) -> float:
        """Mean of both, 1 for a perfect fit, 0 for a random one."""
        facing = 2 * self.facing - 1
        return facing if self.outline is None else 0.5 * (self.outline + facing)


class Evidence:
    """Pixels of a set, with the vectors of the files, on which conventions are scored.

    Args:
        views: views whose normals are in the channels of the files; a few dozen of them are used.
    """

    def __init__(self, views: Sequence[NormalView]) -> None:
        outline: list[list[Tensor]] = [[], [], []]
        inside: list[list[Tensor]] = [[], [], []]
        for view in spread_views(views):
            rotation = view.camera.world_from_camera[:3, :3].double()
            edge, outwards = outline_pixels(view.mask)
            # A mask that fills the picture has no outline.
            edge = edge & view.known
            _add(outline, view.normals[edge], outwards[edge], rotation)
            rays = view.camera.directions_at(view.valid)
            _add(inside, view.normals[view.valid], rays, rotation)
        self._outline = [torch.cat(parts) for parts in outline]
        self._inside = [torch.cat(parts) for parts in inside]

    @property
    def empty(self) -> bool:
        """Whether there is no normal."""
        return not len(self._inside[0])

    @property
    def has_outline(self) -> bool:
        """Whether outlines of masks tell about the axes."""
        return len(self._outline[0]) >= _FEWEST

    def score(self, convention: Convention) -> Score:
        """Return how well a convention explains the maps."""
        normals, rays = self._turned(self._inside, convention)
        facing = float(((normals * rays).sum(-1) < 0).double().mean()) if len(normals) else 0.5
        if not self.has_outline:
            return Score(convention=convention, outline=None, facing=facing)
        normals, outwards = self._turned(self._outline, convention)
        flat = normals[:, :2]
        length = flat.norm(dim=-1, keepdim=True)
        informative = length[:, 0] > _FLAT
        products = (flat / length.clamp_min(_FLAT) * outwards).sum(-1)[informative]
        # A convention that turns outlines toward the camera is not rewarded for the few that are left.
        outline = float(products.sum()) / max(0.5 * len(normals), len(products), 1)
        return Score(convention=convention, outline=outline, facing=facing)

    @staticmethod
    def _turned(parts: list[Tensor], convention: Convention) -> tuple[Tensor, Tensor]:
        vectors, others, rotations = parts
        normals = vectors @ convention.matrix.T
        if convention.space == "world":
            normals = (normals[:, None] @ rotations)[:, 0]
        return normals, others


def _add(parts: list[list[Tensor]], normals: Tensor, others: Tensor, rotation: Tensor) -> None:
    # A regular step spreads the pixels over the whole view.
    step = max(len(normals) // _MOST, 1)
    chosen = normals[::step].double()
    parts[0].append(chosen)
    parts[1].append(others[::step].double())
    parts[2].append(rotation.expand(len(chosen), 3, 3))


def conventions(choices: Choices, usual: Convention) -> list[Convention]:
    """Return the conventions that the choices of the user allow, the usual one first."""
    spaces: tuple[Space, ...] = get_args(Space) if choices.space is None else (choices.space,)
    orders: tuple[Channels, ...] = get_args(Channels) if choices.channels is None else (choices.channels,)
    if choices.axes is not None:
        every = [canonical_axes(choices.axes)]
    else:
        every = [
            ",".join(("-" if sign < 0 else "") + letter for letter, sign in zip(letters, signs, strict=True))
            for letters in permutations(LETTERS)
            for signs in product((1, -1), repeat=3)
        ]
    found = [replace(usual, space=s, axes=a, channels=c) for s in spaces for c in orders for a in every]
    # Blue first with axes in another order is red first with axes in yet another one.
    if choices.axes is None and choices.channels is None:
        names = set(AXES.values())
        found = [
            each
            for each in found
            if each.channels == "rgb" or (each.axes in names if each.space == "camera" else _in_order(each.axes))
        ]
        twins = {_key(each) for each in found if each.channels == "bgr"}
        found = [each for each in found if each.channels == "bgr" or _key(each) not in twins]
    return sorted(found, key=lambda each: each != usual)


def _in_order(axes: str) -> bool:
    return axes.replace("-", "") == "x,y,z"


def _key(convention: Convention) -> tuple[str, tuple[float, ...]]:
    return convention.space, tuple(convention.matrix.reshape(-1).tolist())


def best_convention(
    views: Sequence[NormalView], choices: Choices, usual: Convention, evidence: Evidence | None = None
) -> tuple[Convention, Score | None, Score | None]:
    """Find the convention that explains normal maps, among those that the user's choices allow.

    A smooth surface turns away from the camera at its outline, so there its normal points out of the mask; and visible
    surfaces face the camera. Both hold for a single convention, unless the object is symmetric or the set has very few
    views. Conventions that explain the maps equally well are distinguished by the agreement of views on the visual
    hull, and the usual one is kept if it is as good as any.

    Args:
        views: views whose normals are in the channels of the files.
        choices: what the user states.
        usual: convention of the layout.
        evidence: evidence of the same views; None collects it.

    Returns:
        The convention, its score and that of the runner-up; no scores if nothing was to be decided.
    """
    candidates = conventions(choices, usual)
    evidence = evidence or Evidence(views)
    if len(candidates) == 1 or evidence.empty:
        return candidates[0], None, None
    if not evidence.has_outline:
        # Facing tells only the sign of z: the named axes of this space remain.
        names = [AXES["opengl"], AXES["opencv"]] if usual.space == "camera" else [usual.axes]
        kept = [each for each in candidates if each.space == usual.space and each.channels == "rgb"]
        candidates = [each for each in kept if each.axes in names] or kept[:1] or candidates[:1]
    scores = sorted((evidence.score(each) for each in candidates), key=lambda score: -score.value)
    best = scores[0]
    rivals = [score for score in scores if score.value > best.value - CLEAR]
    usual_score = next((score for score in rivals if score.convention == usual), None)
    if usual_score is not None and len(rivals) > 1 and usual_score.value >= GOOD:
        best = usual_score
    elif len(rivals) > 1 and evidence.has_outline:
        views = spread_views(views)
        hull = visual_hull(views)
        angles = {}
        for number, score in enumerate(rivals[:6]):
            turned = [converted(view, score.convention) for view in views]
            angle = median_disagreement(turned, hull)
            angles[number] = math.inf if angle is None else angle
        best = rivals[min(angles, key=lambda number: angles[number])]
    second = next((score for score in scores if score is not best), None)
    return best.convention, best, second


_FACETS = 0.25
"""Share of neighbors with equal normals from which a map shows flat facets; noise leaves next to none equal."""


def noise_of(views: Sequence[NormalView]) -> float | None:
    """Estimate the noise of normals from pixel to pixel, in degrees about each of two axes; None with few normals.

    Third differences of neighboring normals remove the shape of a smooth surface and keep noise, whose variance they
    multiply by 1 + 9 + 9 + 1. The median ignores edges and outliers. Errors that change slowly over the image, such as
    those of estimators, are not noise in this sense: views that contradict each other reveal them. Nor are the edges of
    flat facets, on which many neighbors have equal normals.
    """
    parts: list[Tensor] = []
    equal: list[Tensor] = []
    for view in spread_views(views):
        for axis in (0, 1):
            count = view.normals.shape[axis]
            if count < 4:
                continue
            rows = [view.normals.narrow(axis, i, count - 3) for i in range(4)]
            known = torch.stack([view.valid.narrow(axis, i, count - 3) for i in range(4)]).all(0)
            difference = (rows[3] - 3 * rows[2] + 3 * rows[1] - rows[0])[known].double()
            equal.append((rows[1] == rows[2]).all(-1)[known])
            normal = torch.nn.functional.normalize((rows[1] + rows[2])[known].double(), dim=-1)
            across = difference - (difference * normal).sum(-1, keepdim=True) * normal
            # The median of the length of a vector with two normal components of deviation 1 is sqrt(2 ln 2).
            parts.append(across.norm(dim=-1)[:: max(len(across) // _MOST, 1)])
    lengths = torch.cat(parts) if parts else torch.zeros(0)
    if len(lengths) < _FEWEST:
        return None
    if float(torch.cat(equal).double().mean()) > _FACETS:
        return 0.0
    return math.degrees(float(lengths.median()) / math.sqrt(2 * math.log(2)) / math.sqrt(20))


def fills_picture(known: Tensor) -> bool:
    """Return whether normals cover the whole picture, so that they do not show the silhouette of an object."""
    return float(known.double().mean()) > _FULL
