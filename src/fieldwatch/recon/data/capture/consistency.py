"""Find photos whose pose contradicts their matches: they show a part of the scene that looks like another one.

Repeated patterns and symmetric objects give matches between photos that show different places. A mapper that believes
them registers such a photo on the wrong side, with a small reprojection error, since what contradicts it is left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pycolmap
from jaxtyping import Float64

LEAST_AGREEMENT = 0.6
"""Fraction of a photo's verified matches that its pose must agree with."""
_FAR = 4.0  # distance from the epipolar line, in pixels, from which a match contradicts the poses
_LEAST_REGISTERED = 3


@dataclass(frozen=True, kw_only=True)
class PairAgreement:
    """Verified matches of two photos: how many there are, and how many agree with the poses of both."""

    matches: int
    agreeing: int


def contradicting(pairs: Mapping[tuple[str, str], PairAgreement]) -> dict[str, float]:
    """Return the photos whose poses contradict most of their matches, with the fraction that agrees.

    The worst one is removed first, with its pairs, so that it does not count against those it is matched with.

    Args:
        pairs: agreement of the verified matches of two photos, by their names.
    """
    left = dict(pairs)
    found: dict[str, float] = {}
    while left:
        matches: dict[str, int] = {}
        agreeing: dict[str, int] = {}
        for pair, agreement in left.items():
            for name in pair:
                matches[name] = matches.get(name, 0) + agreement.matches
                agreeing[name] = agreeing.get(name, 0) + agreement.agreeing
        fractions = {name: agreeing[name] / max(matches[name], 1) for name in matches}
        worst = min(fractions, key=lambda name: (fractions[name], name))
        if fractions[worst] >= LEAST_AGREEMENT or len(fractions) <= _LEAST_REGISTERED:
            break
        found[worst] = fractions[worst]
        left = {pair: agreement for pair, agreement in left.items() if worst not in pair}
    return found


def remove_contradicting(database: Path, model: "pycolmap.Reconstruction") -> dict[str, float]:
    """Remove the pose of every photo that contradicts its matches; return them with the fraction that agrees.

    Args:
        database: database with verified matches.
        model: model; changed.
    """
    found = contradicting(_agreements(database, model))
    for image in list(model.images.values()):
        if image.name in found:
            model.deregister_frame(image.frame_id)
    return found


def _agreements(database: Path, model: "pycolmap.Reconstruction") -> dict[tuple[str, str], PairAgreement]:
    """Return how far the verified matches of every pair of registered photos agree with the model."""
    posed = {number: image for number, image in model.images.items() if image.has_pose}
    found: dict[tuple[str, str], PairAgreement] = {}
    with pycolmap.Database.open(str(database)) as opened:
        points: dict[int, Float64[np.ndarray, "n 2"]] = {}
        for number, image in posed.items():
            pixels = np.asarray(opened.read_keypoints(number), np.float64)[:, :2]
            points[number] = np.asarray(model.cameras[image.camera_id].cam_from_img(pixels))
        pairs, geometries = opened.read_two_view_geometries()
    for pair, geometry in zip(pairs, geometries, strict=True):
        first, second = pycolmap.pair_id_to_image_pair(pair)
        matches = np.asarray(geometry.inlier_matches)
        if first not in posed or second not in posed or not len(matches):
            continue
        motion = (posed[second].cam_from_world() * posed[first].cam_from_world().inverse()).matrix()
        distance = epipolar_distances(points[first][matches[:, 0]], points[second][matches[:, 1]], motion)
        focal = min(model.cameras[posed[number].camera_id].mean_focal_length() for number in (first, second))
        agreeing = int((distance * focal < _FAR).sum())
        names = (posed[first].name, posed[second].name)
        found[names] = PairAgreement(matches=len(matches), agreeing=agreeing)
    return found


def epipolar_distances(
    first: Float64[np.ndarray, "n 2"], second: Float64[np.ndarray, "n 2"], second_from_first: Float64[np.ndarray, "3 4"]
) -> Float64[np.ndarray, " n"]:
    """Return Sampson's distance of matches from their epipolar lines, on the image plane at distance 1.

    Hartley and Zisserman, Multiple View Geometry, section 11.4.3.

    Args:
        first: points on the image plane of the first camera.
        second: the points of the second camera that they are matched with.
        second_from_first: motion between the cameras.
    """
    x, y, z = second_from_first[:, 3]
    essential = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]]) @ second_from_first[:, :3]
    a = np.concatenate([first, np.ones((len(first), 1))], 1)
    b = np.concatenate([second, np.ones((len(second), 1))], 1)
    lines = a @ essential.T
    back = b @ essential
    slopes = np.sqrt((lines[:, :2] ** 2).sum(1) + (back[:, :2] ** 2).sum(1))
    return np.abs((b * lines).sum(1)) / np.maximum(slopes, np.finfo(np.float64).tiny)
