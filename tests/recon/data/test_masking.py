"""Foreground masks: the cut is the best one, masks of a known object, and captures that have none."""

import itertools
import math

import numpy as np
import pytest
from PIL import Image

from fieldwatch.recon.data.masking import LEAST_AGREEMENT, MaskingError, minimum_cut, overlap, write_masks
from fieldwatch.recon.geometry import look_at
from object_photos import BACKDROP, HEIGHT, WIDTH, model_of, name_of, poses_around, write_object_photos

STEPS = ((0, 1, 1.0), (1, 0, 1.0), (1, 1, math.sqrt(2)), (1, -1, math.sqrt(2)))


def nobody(done, total):
    """Watch no progress."""


# ---------------------------------------------------------------- the cut


def neighbors(shape):
    rows, columns = shape
    for row, column in itertools.product(range(rows), range(columns)):
        for down, right, distance in STEPS:
            if 0 <= row + down < rows and 0 <= column + right < columns:
                yield (row, column), (row + down, column + right), distance


def energy(image, odds, labels, smoothness):
    """The energy in plain loops."""
    apart = {(a, b): float(np.square(image[a] - image[b]).sum()) for a, b, _ in neighbors(odds.shape)}
    usual = sum(apart.values()) / len(apart)
    total = -float(odds[labels].sum())
    for a, b, distance in neighbors(odds.shape):
        if labels[a] != labels[b]:
            total += smoothness * math.exp(-apart[a, b] / (2 * usual)) / distance
    return total


@pytest.mark.parametrize("seed", range(4))
def test_no_other_mask_has_less_energy(seed):
    generator = np.random.default_rng(seed)
    image = generator.random((3, 4, 3)).astype(np.float32)
    odds = generator.normal(0, 1.5, (3, 4)).astype(np.float32)
    found = minimum_cut(image, odds, 1.2)
    every = (np.array(bits).reshape(3, 4) for bits in itertools.product((False, True), repeat=12))
    best = min(energy(image, odds, labels, 1.2) for labels in every)
    # Capacities are multiples of 1 / 256.
    assert energy(image, odds, found, 1.2) <= best + 12 * 4 / 256


def test_pixels_that_are_not_free_keep_their_side_and_pull_their_neighbors():
    image = np.zeros((1, 5, 3), np.float32)
    odds = np.array([[5.0, 0.1, 0.1, 0.1, -5.0]], np.float32)
    free = np.array([[False, True, True, True, False]])
    assert minimum_cut(image, odds, 1.0, free).tolist() == [[True, True, True, True, False]]
    assert minimum_cut(image, -odds, 1.0, free).tolist() == [[False, False, False, False, True]]


# ---------------------------------------------------------------- masks


def read(path):
    with Image.open(path) as opened:
        assert opened.mode == "L"
        return np.asarray(opened)


def test_masks_are_those_of_the_object_and_their_agreement_is_told(tmp_path):
    truth = write_object_photos(tmp_path / "images", poses_around())
    told = []
    found = write_masks(
        model_of(poses_around()), tmp_path / "images", tmp_path / "masks", lambda *progress: told.append(progress)
    )
    masks = [read(tmp_path / "masks" / f"{name_of(i)}.png") for i in range(len(truth))]
    assert {int(value) for mask in masks for value in np.unique(mask)} == {0, 255}
    assert min(overlap(mask > 127, true) for mask, true in zip(masks, truth, strict=True)) > 0.9
    assert [each.name for each in found.agreements] == [name_of(i) for i in range(len(truth))]
    assert all(each.agreement > LEAST_AGREEMENT for each in found.agreements)
    assert found.replaced == ()
    assert told[-1] == (2 * len(truth), 2 * len(truth))
    assert told == sorted(told)


def test_a_photo_that_does_not_show_the_object_gets_the_silhouette_of_the_others(tmp_path):
    truth = write_object_photos(tmp_path / "images", poses_around())
    # A hand before the lens.
    Image.new("RGB", (WIDTH, HEIGHT), BACKDROP).save(tmp_path / "images" / "r_05.png")
    found = write_masks(model_of(poses_around()), tmp_path / "images", tmp_path / "masks", nobody)
    assert found.replaced == ("r_05.png",)
    assert overlap(read(tmp_path / "masks" / "r_05.png.png") > 127, truth[5]) > 0.75


def test_photos_without_an_object_of_its_own_colors_get_no_masks(tmp_path):
    generator = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    for i in range(14):
        spots = generator.integers(0, 256, (HEIGHT // 4, WIDTH // 4, 3), np.uint8)
        Image.fromarray(np.kron(spots, np.ones((4, 4, 1), np.uint8))).save(tmp_path / "images" / name_of(i))
    with pytest.raises(MaskingError, match="colors tell"):
        write_masks(model_of(poses_around()), tmp_path / "images", tmp_path / "masks", nobody)
    assert not (tmp_path / "masks").exists()


def test_rooms_have_no_object(tmp_path):
    poses = [look_at((0.1 * math.cos(a), 0.1 * math.sin(a), 0), (math.cos(a), math.sin(a), 0)) for a in range(8)]
    with pytest.raises(MaskingError, match="--masks FOLDER"):
        write_masks(model_of(poses), tmp_path / "images", tmp_path / "masks", nobody)
    assert not (tmp_path / "masks").exists()
