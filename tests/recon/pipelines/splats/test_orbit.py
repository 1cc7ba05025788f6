"""Camera paths stay where cameras were: full turns if they surround the scene, back and forth otherwise."""

import itertools
import math

import pytest
import torch

from fieldwatch.recon.geometry import Camera, look_at
from fieldwatch.recon.pipelines.splats.orbit import Orbit


def camera(place, target=(0.0, 0.0, 0.0), up=(0.0, 0.0, 1.0)):
    lens = {"fx": 30.0, "fy": 31.0, "cx": 11.0, "cy": 17.0}
    pose = look_at(place, target, up)
    return Camera(name=f"{place}", width=32, height=24, **lens, world_from_camera=pose)


def around(degrees, reach=2.0, height=1.0, target=(0.0, 0.0, 0.0)):
    angles = [math.radians(d) for d in degrees]
    x, y, z = target
    return [camera((x + reach * math.cos(a), y + reach * math.sin(a), z + height), target) for a in angles]


def directions(cameras, target=(0.0, 0.0, 0.0)):
    """Return azimuths around the vertical axis, degrees."""
    offsets = [one.position - torch.tensor(target, dtype=torch.float64) for one in cameras]
    return [math.degrees(math.atan2(float(o[1]), float(o[0]))) for o in offsets]


def looks_at(one, target):
    towards = torch.tensor(target, dtype=torch.float64) - one.position
    return float(torch.nn.functional.cosine_similarity(towards, one.forward, dim=0))


@pytest.mark.parametrize("path", ["turntable", "spiral"])
@pytest.mark.parametrize("target", [(0.0, 0.0, 0.0), (5.0, -3.0, 2.0)])
def test_all_cameras_look_at_what_was_looked_at(path, target):
    cameras = getattr(Orbit.of(around(range(0, 360, 30), target=target)), path)(7)
    assert len(cameras) == 7
    for one in cameras:
        assert looks_at(one, target) == pytest.approx(1)
        assert -float(one.world_from_camera[2, 1]) > 0.5
        assert (one.width, one.height, one.fx, one.cx, one.cy) == (32, 24, 30.0, 16.0, 12.0)
        assert math.dist(one.position.tolist(), target) == pytest.approx(math.hypot(2, 1))


def test_a_turntable_goes_all_round_evenly_where_cameras_were_all_round():
    made = sorted(directions(Orbit.of(around(range(0, 360, 40))).turntable(12)))
    steps = [b - a for a, b in itertools.pairwise(made)]
    assert steps == pytest.approx([30] * 11)


@pytest.mark.parametrize("path", ["turntable", "spiral"])
@pytest.mark.parametrize("first", [-60, 150])
def test_nobody_goes_where_nobody_was(path, first):
    """Cameras on an arc of 120 degrees, including one across 180."""
    orbit = Orbit.of(around(range(first, first + 121, 20)))
    from_middle = [(d - (first + 60) + 180) % 360 - 180 for d in directions(getattr(orbit, path)(40))]
    assert max(map(abs, from_middle)) <= 60
    assert max(from_middle) > 50
    assert min(from_middle) < -50


def test_the_path_is_as_far_away_as_the_cameras_beside_it():
    near = around(range(-90, -29, 10), reach=1.0)
    far = around(range(30, 91, 10), reach=4.0)
    made = Orbit.of([*near, *far]).turntable(60)
    reaches = {round(d): float(one.position[:2].norm()) for d, one in zip(directions(made), made, strict=True)}
    assert reaches[min(reaches)] < 1.2
    assert reaches[max(reaches)] > 3.8


def test_a_spiral_climbs_from_the_low_to_the_high():
    cameras = [*around(range(0, 360, 30), height=0.2), *around(range(15, 375, 30), height=3.0)]
    heights = [float(one.position[2]) for one in Orbit.of(cameras).spiral(30)]
    assert heights == sorted(heights)
    assert heights[-1] > 3 * heights[0]


@pytest.mark.parametrize(
    "cameras",
    [
        around([10]),
        around([10, 10]),
        [camera((0.0, 0.0, 3.0))],
        [camera((x, 0.0, 3.0), (x, 0.0, 0.0), (0.0, 1.0, 0.0)) for x in (0.0, 1.0, 2.0)],
        around([0, 180]),
        [camera((2.0, 0.0, 0.0)), camera((-2.0, 0.0, 0.0))],
    ],
    ids=["one", "one twice", "from above", "side by side", "opposite", "eye to eye"],
)
@pytest.mark.parametrize("path", ["turntable", "spiral"])
@pytest.mark.parametrize("count", [1, 5])
def test_odd_cameras_make_a_path_too(cameras, path, count):
    made = getattr(Orbit.of(cameras), path)(count)
    assert len(made) == count
    assert all(bool(one.world_from_camera.isfinite().all()) for one in made)


def test_one_camera_sways_about_where_it_stood():
    orbit = Orbit.of(around([30]))
    assert math.degrees(orbit.sweep) == pytest.approx(10)
