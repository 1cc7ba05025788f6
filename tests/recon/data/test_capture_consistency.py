"""Photos whose pose contradicts their matches: the fraction that agrees, and which photo is to blame."""

import numpy as np
import pytest

pytest.importorskip("pycolmap")

from fieldwatch.recon.data.capture.consistency import (
    LEAST_AGREEMENT,
    PairAgreement,
    contradicting,
    epipolar_distances,
)

NAMES = [f"{number}.jpg" for number in range(6)]


def pairs(wrong=()):
    """Return pairs of neighbors and next but one neighbors; those of wrong photos agree in a third of the matches."""
    found = {}
    for first in range(len(NAMES)):
        for second in range(first + 1, min(first + 3, len(NAMES))):
            is_wrong = first in wrong or second in wrong
            found[NAMES[first], NAMES[second]] = PairAgreement(matches=30, agreeing=10 if is_wrong else 29)
    return found


def test_poses_that_agree_with_the_matches_stay():
    assert contradicting(pairs()) == {}
    assert contradicting({}) == {}


def test_only_the_photo_in_the_wrong_place_is_blamed():
    # Its neighbors at the end have most of their matches with it.
    assert contradicting(pairs(wrong=[4])) == {"4.jpg": pytest.approx(1 / 3)}


def test_a_few_wrong_matches_are_no_contradiction():
    found = pairs()
    found["0.jpg", "5.jpg"] = PairAgreement(matches=40, agreeing=0)
    assert LEAST_AGREEMENT > 29 * 2 / (30 * 2 + 40)
    # Both ends are below the limit; without one of them, the other agrees.
    assert list(contradicting(found)) == ["0.jpg"]


def test_at_least_three_photos_are_left():
    assert len(contradicting(pairs(wrong=range(6)))) == len(NAMES) - 3


def test_true_matches_are_on_their_epipolar_lines_and_others_are_not():
    generator = np.random.default_rng(0)
    points = generator.uniform([-1, -1, 3], [1, 1, 5], (20, 3))
    turn = np.array([[0.8, 0.0, 0.6], [0.0, 1.0, 0.0], [-0.6, 0.0, 0.8]])
    motion = np.concatenate([turn, [[-2.0], [0.3], [0.5]]], 1)
    moved = points @ turn.T + motion[:, 3]
    first, second = (each[:, :2] / each[:, 2:] for each in (points, moved))
    assert epipolar_distances(first, second, motion).max() < 1e-12
    # Across the line, half of an offset is the point's own in each photo.
    shifted = epipolar_distances(first, second + np.array([0.0, 0.1]), motion)
    assert 0.02 < shifted.min() < shifted.max() < 0.1
    assert np.median(epipolar_distances(first, np.roll(second, 1, axis=0), motion)) > 0.05
