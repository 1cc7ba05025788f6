"""Floaters: what few photos show close to a camera goes; what many show, or lies at the surface, stays."""

import math

import pytest
import torch

from fieldwatch import Ranks
from fieldwatch.recon.geometry import look_at
from fieldwatch.recon.pipelines.splats import Gaussians, Rows, SplatModel
from fieldwatch.recon.pipelines.splats.densification import DensificationSchedule
from fieldwatch.recon.pipelines.splats.floaters import FEW, LEAST_CONFIRMED, Sightings, floaters
from fieldwatch.recon.render import View

VIEWS = 8


def around(count: int = VIEWS) -> list[View]:
    """Return cameras on a circle of radius 4 that look at the origin."""
    angles = [2 * math.pi * i / count for i in range(count)]
    poses = [look_at((4 * math.cos(a), 4 * math.sin(a), 0.0), (0.0, 0.0, 0.0)) for a in angles]
    lens = {"fx": 60.0, "fy": 60.0, "cx": 32.0, "cy": 32.0, "width": 64, "height": 64}
    return [View(camera_from_world=torch.linalg.inv(pose).float(), **lens) for pose in poses]


def cloud(count: int = 4 * LEAST_CONFIRMED) -> torch.Tensor:
    """Return points within 0.5 of the origin, in front of every camera."""
    return torch.rand(count, 3, generator=torch.Generator().manual_seed(0)) - 0.5


def masks(place: list[float], photos: int) -> bool:
    """Return whether a Gaussian at a place, shown by a number of photos, is a floater beside a confirmed cloud."""
    means = torch.cat([cloud(), torch.tensor([place])])
    shown = torch.full((len(means),), float(VIEWS))
    shown[-1] = photos
    found = floaters(means, shown, around(), 0.7)
    assert not found[:-1].any()
    return bool(found[-1])


@pytest.mark.parametrize(
    ("place", "photos", "floats"),
    [
        ([3.5, 0.0, 0.0], 1, True),  # just in front of a camera
        ([4.3, 0.0, 0.0], FEW, True),  # just behind it, where the next view may stand
        ([3.5, 0.0, 0.0], FEW + 1, False),
        ([3.5, 0.0, 0.0], 0, False),  # hidden, not floating
        ([0.0, 0.0, 0.8], 1, False),  # beside the cloud
        ([0.0, 9.0, 9.0], 1, False),  # far behind everything
    ],
)
def test_few_photos_and_a_place_close_to_a_camera_make_a_floater(place: list[float], photos: int, floats: bool) -> None:
    assert masks(place, photos) is floats


def test_without_a_confirmed_scene_nothing_floats() -> None:
    means = torch.cat([cloud(LEAST_CONFIRMED - 1), torch.tensor([[3.5, 0.0, 0.0]])])
    shown = torch.full((len(means),), float(VIEWS))
    shown[-1] = 1

    assert not floaters(means, shown, around(), 0.7).any()
    assert not floaters(means, torch.ones(len(means)), around(), 0.7).any()


def test_sightings_count_the_photos_that_show_a_gaussian() -> None:
    means = torch.tensor([[0.0, 0.0, 0.0], [3.0, 0.0, 0.0], [0.0, 0.0, 50.0]])
    quaternions = torch.tensor([[1.0, 0.0, 0.0, 0.0]]).repeat(3, 1)
    sizes = torch.full((3, 3), 0.05).log()
    rows = Rows(means, sizes, quaternions, torch.full((3,), 2.0), torch.zeros(3, 3), torch.zeros(3, 0, 3))
    seen = Sightings.of_local(SplatModel(Gaussians(rows), torch.zeros(3)), around(), Ranks()).over_ranks(Ranks())

    # Only the cameras across the circle show the second; the third is outside every photo.
    assert seen.photos.tolist() == [VIEWS, 4.0, 0.0]
    assert seen.light[1] > seen.light[0] > 0 == seen.light[2]


def test_floaters_are_swept_at_the_middle_and_at_the_last_densification() -> None:
    schedule = DensificationSchedule(first=30, last=130, every=20)
    densified = [step for step in range(150) if schedule.densifies_after(step)]

    assert [step for step in range(150) if schedule.sweeps_after(step)] == [densified[2], densified[-1]]
