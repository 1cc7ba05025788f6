"""Points projected again with the stored cameras show wrong lenses, poses and file names."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fieldwatch.recon.commands.splats.doctor_reprojection import (
    content_findings,
    observed_points,
    reprojection_findings,
)
from fieldwatch.recon.data import PhotoOptions, read_colmap
from fieldwatch.recon.data.colmap import read_colmap_model, read_colmap_observations

PLUSH = Path(__file__).parents[3] / "data" / "real" / "colmap_plush"


@pytest.fixture(scope="module")
def model():
    return read_colmap_model(PLUSH / "sparse" / "0")


@pytest.fixture(scope="module")
def observations():
    return read_colmap_observations(PLUSH / "sparse" / "0")


@pytest.fixture(scope="module")
def photos():
    return read_colmap(PLUSH, PhotoOptions(longer_side=96))


def found(model, observations):
    return [(each.name, each.severity) for each in reprojection_findings(model, observed_points(model, observations))]


def with_lenses(model, change):
    return replace(model, lenses={number: change(lens) for number, lens in model.lenses.items()})


def with_poses(model, order):
    poses = [model.images[i].world_from_camera for i in order]
    images = [replace(image, world_from_camera=pose) for image, pose in zip(model.images, poses, strict=True)]
    return replace(model, images=tuple(images))


def test_a_real_model_is_right(model, observations, photos):
    assert found(model, observations) == []
    assert list(content_findings(photos, observed_points(model, observations))) == []


@pytest.mark.parametrize("factor", [0.5, 1.3, 2.0])
def test_a_wrong_focal_length_is_named_with_the_right_one(model, observations, factor):
    wrong = with_lenses(model, lambda lens: replace(lens, fx=factor * lens.fx, fy=factor * lens.fy))
    assert found(wrong, observations) == [("focal", "error")]
    (finding,) = reprojection_findings(wrong, observed_points(wrong, observations))
    right = next(iter(model.lenses.values())).fx
    words = [word.strip(".,") for word in finding.message.split()]
    numbers = [float(word) for word in words if word.replace(".", "").isdigit()]
    assert any(abs(number / right - 1) < 0.02 for number in numbers)


def test_a_missing_distortion_is_named(model, observations):
    bent = with_lenses(model, lambda lens: replace(lens, model="SIMPLE_RADIAL", distortion=(("k1", -0.9),)))
    assert found(bent, observations) == [("lens", "error")]


def test_cameras_that_were_scaled_alone_are_only_doubtful(model, observations):
    wrong = with_lenses(model, lambda lens: lens.resized(lens.width // 4, lens.height // 4))
    assert found(wrong, observations) == [("size", "warning")]


def test_shuffled_poses_and_a_single_wrong_one_are_named(model, observations):
    count = len(model.images)
    shuffled = with_poses(model, [*range(7, count), *range(7)])
    (finding,) = reprojection_findings(shuffled, observed_points(shuffled, observations))
    assert (finding.name, finding.severity) == ("poses", "error")
    assert model.images[count - 7].name in finding.message
    one = with_poses(model, [0, 1, 2, 9, *range(4, count)])
    (finding,) = reprojection_findings(one, observed_points(one, observations))
    assert finding.message.startswith(f"1 of {count}")
    assert model.images[3].name in finding.message


def test_two_photos_with_each_others_names_are_found_by_their_colors(model, observations, photos):
    first, second = model.images[3], model.images[17]
    names = {first.name: second.name, second.name: first.name}
    images = tuple(replace(image, name=names.get(image.name, image.name)) for image in model.images)
    poses = {image.name: image.world_from_camera for image in images}
    cameras = tuple(
        replace(each, world_from_camera=poses[each.name].to(each.world_from_camera)) for each in photos.cameras
    )
    swapped = observed_points(replace(model, images=images), observations)
    (finding,) = content_findings(photos.having(cameras=cameras), swapped)
    assert (finding.name, finding.severity) == ("content", "error")
    assert all(name in finding.message for name in names)


def test_observations_without_positions_are_not_judged(model, observations):
    nothing = {number: rows * [0.0, 0.0, 1.0] for number, rows in observations.items()}
    assert observed_points(model, nothing) == []


def changed(photos, names, change):
    """Change the pictures of some photos and leave their cameras."""

    def read(index):
        photo = photos.read(index)
        return replace(photo, image=change(photo.image)) if photos.names[index] in names else photo

    return photos.having(read=read)


def magnified(image):
    height, width = image.shape[:2]
    rows = (torch.arange(height) + 0.5 - height / 2) / 1.6 + height / 2
    columns = (torch.arange(width) + 0.5 - width / 2) / 1.6 + width / 2
    return image[rows.long()][:, columns.long()]


CHANGES = {
    "upside down": lambda image: image.flip(0, 1),
    "mirrored left to right": lambda image: image.flip(1),
    "mirrored top to bottom": lambda image: image.flip(0),
    "magnified": magnified,
}


# A single photo that is magnified may look like the place of another one.
CHANGED = [(name, count) for name in CHANGES for count in (1, 8) if (name, count) != ("magnified", 1)]


@pytest.mark.parametrize(("change", "count"), CHANGED)
def test_photos_that_were_changed_after_their_registration_are_named(model, observations, photos, change, count):
    names = list(photos.names[:: len(photos) // count][:count])
    observed = observed_points(model, observations)
    findings = list(content_findings(changed(photos, names, CHANGES[change]), observed))
    (finding,) = [each for each in findings if each.severity == "error"]
    assert finding.name == "content"
    assert change in finding.message
    assert any(name in finding.message for name in names)
    assert ("focal" in finding.remedy) == (change == "magnified")


def test_photos_that_are_covered_are_doubtful_only(model, observations, photos):
    draw = torch.Generator().manual_seed(2)
    covered = changed(photos, photos.names, lambda image: torch.randint(256, image.shape, generator=draw).to(image))
    (finding,) = content_findings(covered, observed_points(model, observations))
    assert (finding.name, finding.severity) == ("content", "warning")
    assert "Mask" in finding.remedy
