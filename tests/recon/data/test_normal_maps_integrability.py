"""Integrability: errors that change slowly over a map are found, and what a surface can have is not."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from fieldwatch.recon.data import check_normal_maps, ring_cameras, synthetic_normal_maps
from fieldwatch.recon.data.normal_maps.integrability import integrability_gap


@pytest.fixture(scope="module")
def exact():
    return synthetic_normal_maps(cameras=ring_cameras(6, 128), depth="none")


def turned(normal_set, turn):
    """Return the set with normals changed by `turn(number, view, normals)`, of length 1."""
    views = []
    for number, view in enumerate(normal_set.views):
        changed = torch.nn.functional.normalize(turn(number, view, view.normals.double()), dim=-1).float()
        views.append(replace(view, normals=torch.where(view.known[..., None], changed, torch.zeros(()))))
    return replace(normal_set, views=tuple(views))


def smooth(degrees):
    """Return a turn by a field of one wave over the picture, of its own in each view."""

    def turn(number, view, normals):
        generator = np.random.default_rng(number)
        y, x = np.mgrid[0 : view.size[0], 0 : view.size[1]] / max(view.size)
        phases = generator.uniform(0, 2 * np.pi, (3, 2))
        waves = [np.sin(2 * np.pi * x + first) + np.sin(2 * np.pi * y + second) for first, second in phases]
        across = math.radians(degrees) * torch.from_numpy(np.stack(waves, -1))
        return normals + across - (across * normals).sum(-1, keepdim=True) * normals

    return turn


def test_exact_normals_are_those_of_a_surface(exact):
    gap = integrability_gap(exact.views)
    assert gap is not None
    assert gap < 0.1


def test_the_gap_grows_with_smooth_errors_and_is_noted(exact):
    sets = [turned(exact, smooth(degrees)) for degrees in (2.5, 5.0, 10.0)]
    gaps = [integrability_gap(each.views) for each in sets]
    assert gaps[0] > 1
    assert gaps[1] / gaps[0] == pytest.approx(2, rel=0.15)
    assert gaps[2] / gaps[0] == pytest.approx(4, rel=0.15)
    noted = [check for check in check_normal_maps(sets[1]) if check.name == "integrability"]
    assert [check.severity for check in noted] == ["note"]
    # The degrees are a lower bound.
    assert float(re.search(r"least ([\d.]+) degrees", noted[0].message)[1]) == pytest.approx(5, abs=0.5)


def test_slopes_that_are_all_too_flat_are_those_of_another_surface(exact):
    """The limit of the check: five degrees of error, and nothing contradicts a surface."""
    flat = turned(exact, lambda _number, _view, normals: normals * torch.tensor([0.84, 0.84, 1.0]))
    angles = [
        (ours.normals[ours.valid] * theirs.normals[ours.valid]).sum(-1).clamp(-1, 1).acos().rad2deg().median()
        for ours, theirs in zip(flat.views, exact.views, strict=True)
    ]
    assert float(torch.stack(angles).median()) > 3.5
    assert integrability_gap(flat.views) < 0.1
    assert check_normal_maps(flat) == ()


@pytest.mark.parametrize("noise", [2, 5, 10])
def test_noise_is_no_smooth_error(noise):
    maps = synthetic_normal_maps(cameras=ring_cameras(6, 128), depth="none", noise=noise)
    assert integrability_gap(maps.views) > 0.2
    assert integrability_gap(maps.views, noise) == 0
    assert "integrability" not in [check.name for check in check_normal_maps(maps)]


def test_masks_without_room_for_loops_say_nothing(exact):
    small = synthetic_normal_maps(cameras=ring_cameras(2, 32), depth="none")
    assert integrability_gap(small.views) is None
    empty = replace(exact.views[0], normals=torch.zeros_like(exact.views[0].normals))
    assert integrability_gap([empty]) is None
