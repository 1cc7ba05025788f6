import math
from dataclasses import replace

import pytest
import torch

from fieldwatch.recon.pipelines.video.models import ModelOptions, Query, VideoGeometry, build_model
from fieldwatch.recon.pipelines.video.models.grid import TimeGrid, per_pixel
from fieldwatch.recon.pipelines.video.models.grid_sizing import count_parameters, fit_to_size

BUNNY = VideoGeometry(frames=32, height=320, width=640)
TINY = {"grid_widths": (12, 12, 12), "grid_channels": (6, 2, 0), "grid_static": (2, 0, 2), "clip_dim": 8}


def at(*times):
    t = torch.tensor(times, dtype=torch.float64)
    return Query(t=t, x=torch.full_like(t, 0.5), y=torch.full_like(t, 0.5))


def shared_parameters(model):
    return sum(p.numel() for p in model.groups()["decoder"].parameters())


@pytest.mark.parametrize("size", [(64, 128), (61, 127), (17, 9), (2, 4)])
def test_any_frame_size_is_drawn_exactly(size):
    geometry = VideoGeometry(frames=3, height=size[0], width=size[1])
    prediction = build_model("grid", geometry, ModelOptions(**TINY))(at(0.0, 0.5))
    assert prediction.rgb.shape == (2, 3, *size)
    assert prediction.embedding.shape == (2, 8, 8)


def test_embedding_follows_its_own_patch():
    torch.manual_seed(0)
    model = build_model(
        "grid", VideoGeometry(frames=1, height=64, width=128), ModelOptions(grid_blocks=(0, 0, 0), **TINY)
    )
    before = model(at(0.0)).embedding
    with torch.no_grad():
        model.stages[0].grids[0].values[..., 2:, 6:] += 1
    moved = (model(at(0.0)).embedding - before).abs().amax(-1)[0] > 1e-4
    assert moved.tolist() == [False] * 7 + [True]


def test_grid_is_linear_between_keys_and_holds_beyond_them():
    grid = TimeGrid(3, 1, 1, 1, gain=2.0)
    with torch.no_grad():
        grid.values.copy_(torch.tensor([0.0, 0.5, 2.5]).reshape(3, 1, 1, 1))
    position = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0, 1.2], dtype=torch.float64)
    assert grid(position).flatten().tolist() == [0.0, 0.5, 1.0, 3.0, 5.0, 5.0]


def test_a_frame_touches_its_own_keys_only():
    torch.manual_seed(0)
    geometry = VideoGeometry(frames=8, height=32, width=64)
    model = build_model("grid", geometry, ModelOptions(**TINY | {"grid_periods": (1.0, 1.0, 1.0)}))
    model(at(3 / 8)).rgb.square().sum().backward()
    touched = model.stages[0].grids[0].values.grad.abs().amax((1, 2, 3)) > 0
    assert touched.tolist() == [i == 3 for i in range(8)]


@pytest.mark.parametrize("modelsize", [0.3, 0.8, 2.0])
def test_modelsize_is_met_from_below(modelsize):
    model = build_model("grid", BUNNY, ModelOptions(modelsize=modelsize))
    assert 0.8 * modelsize < shared_parameters(model) / 1e6 <= modelsize


@pytest.mark.parametrize("knobs", [{}, TINY, {"grid_blocks": (0, 2, 1), "grid_cells": (20, 10, 2)}])
def test_parameters_are_counted_as_built(knobs):
    options = ModelOptions(**knobs)
    geometry = VideoGeometry(frames=7, height=90, width=130)
    assert count_parameters(geometry, options) == shared_parameters(build_model("grid", geometry, options))


def test_modelsize_that_holds_nothing_is_refused():
    with pytest.raises(ValueError, match=r"modelsize .*at least \d\.\d+ million.* got 0\.001"):
        build_model("grid", BUNNY, ModelOptions(modelsize=0.001))


def test_sizing_leaves_the_seeded_start_alone():
    options = ModelOptions(modelsize=0.3)
    found = fit_to_size(BUNNY, options, 0.3)
    torch.manual_seed(0)
    first = build_model("grid", BUNNY, options).state_dict()
    torch.manual_seed(0)
    second = build_model("grid", BUNNY, replace(found, modelsize=None)).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_per_pixel_is_a_1x1_convolution():
    layer = torch.nn.Linear(3, 5)
    x = torch.rand(2, 3, 4, 6)
    expected = torch.nn.functional.conv2d(x, layer.weight[:, :, None, None], layer.bias)
    torch.testing.assert_close(per_pixel(layer, x), expected)


def test_learns_a_short_clip_in_a_hundred_steps():
    torch.manual_seed(0)
    ramp = torch.linspace(0, 2 * math.pi, 64)
    clip = torch.stack([torch.sin(ramp + i) * torch.cos(ramp[:32, None] - i) for i in range(4)])
    clip = (clip[:, None].expand(-1, 3, -1, -1) + 1) / 2
    model = build_model("grid", VideoGeometry(frames=4, height=32, width=64), ModelOptions(**TINY))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(100):
        frame = step % 4
        loss = (model(at(frame / 4), embed=False).rgb - clip[frame]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 1e-3


@pytest.mark.parametrize(
    ("knobs", "hint"),
    [
        ({"grid_cells": (16, 8)}, "one entry per stage"),
        ({"grid_cells": (16, 8, 3)}, "must be a multiple of the next"),
        ({"grid_cells": (8, 8, 4)}, "must be a multiple of the next"),
        ({"grid_cells": (16, 8, 0)}, "grid_cells must be at least 1, got 0"),
        ({"grid_widths": (64, 0, 48)}, "grid_widths must be at least 1, got 0"),
        ({"grid_channels": (-1, 4, 0)}, "grid_channels must be at least 0, got -1"),
        ({"grid_blocks": (1, -1, 1)}, "grid_blocks must be at least 0, got -1"),
        ({"grid_periods": (0.0, 1.0, 1.0)}, "grid_periods must be .* > 0"),
        ({"grid_periods": (math.nan, 1.0, 1.0)}, "grid_periods must be .* > 0"),
        ({"grid_periods": (1.0, math.nan, 1.0)}, "grid_periods must be .* > 0"),
        ({"grid_periods": (1.0, 1.0, math.inf)}, "grid_periods must be .* > 0"),
        ({"grid_channels": (0, 4, 0), "grid_static": (0, 0, 8)}, "the first stage needs grid_channels or grid_static"),
        ({"grid_kernel": 4}, "grid_kernel must be odd"),
    ],
)
def test_grid_knobs_out_of_bounds_say_what_was_wanted(knobs, hint):
    with pytest.raises(ValueError, match=hint):
        ModelOptions(**knobs)
