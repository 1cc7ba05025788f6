"""A scene whose plan says nothing about GPUs gets one if there are any."""

import pytest

from fieldwatch.many import PlannedScene


@pytest.mark.parametrize(
    ("planned", "flags", "available", "given"),
    [
        (None, {}, 2.0, 1.0),
        (None, {}, 0.0, 0.0),
        (None, {"device": ("--device", "cpu")}, 2.0, 0.0),
        (None, {"device": ("--device=cpu",)}, 2.0, 0.0),
        (None, {"device": ("--device", "cuda")}, 2.0, 1.0),
        (0.0, {}, 2.0, 0.0),
        (0.5, {}, 2.0, 0.5),
        (2.0, {}, 4.0, 2.0),
    ],
)
def test_gpus_of_a_scene(planned, flags, available, given):
    scene = PlannedScene(name="a", pipeline="video", flags=flags, gpus=planned)
    assert scene.with_gpus(available).gpus == given
