"""Novel views and videos of them."""

import numpy as np
import pytest
import torch

from fieldwatch.recon.data import read_clip
from fieldwatch.recon.pipelines.splats.novel_views import render_path, render_view, spiral_views, turntable_views


def test_a_view_shows_color_depth_and_normals_of_its_size(tiny_scene, tiny_model):
    pictures = render_view(tiny_model, tiny_scene.views[0])
    assert {picture.shape for picture in pictures} == {(40, 40, 3)}
    with torch.no_grad():
        drawn = tiny_model.render(tiny_scene.views[0]).features
    assert np.abs(pictures.color / 255 - drawn.clamp(0, 1).numpy()).max() <= 0.5 / 255 + 1e-6
    assert len(np.unique(pictures.depth.reshape(-1, 3), axis=0)) > 20
    assert len(np.unique(pictures.normal.reshape(-1, 3), axis=0)) > 20


@pytest.mark.parametrize("path", [turntable_views, spiral_views])
def test_paths_see_the_scene_from_all_their_places(tiny_scene, tiny_model, path):
    views = path(tiny_scene, 5)
    assert len(views) == 5
    for view in views:
        assert (view.width, view.height) == (40, 40)
        with torch.no_grad():
            assert float(tiny_model.render(view).alpha.mean()) > 0.2


@pytest.mark.parametrize("path", [turntable_views, spiral_views])
def test_no_cameras_are_refused(tiny_scene, path):
    with pytest.raises(ValueError, match="path of 0 cameras"):
        path(tiny_scene, 0)


@pytest.mark.parametrize(("content", "width"), [("color", 40), ("all", 128)])
def test_a_film_has_a_frame_per_view_and_keeps_them(tiny_scene, tiny_model, tmp_path, content, width):
    views = turntable_views(tiny_scene, 6)
    ticks = []
    film = render_path(
        tiny_model, views, tmp_path / "a.mp4", content=content, frames=tmp_path / "f", on_frame=lambda: ticks.append(1)
    )
    clip = read_clip(film)
    assert len(clip) == 6 == len(ticks)
    assert clip[0].shape[2] == width
    assert sorted(path.name for path in (tmp_path / "f").iterdir()) == [f"{i:04d}.png" for i in range(6)]


def test_films_of_both_kinds_and_pictures_leave_the_training_alone(tiny_scene, tiny_model, tmp_path):
    before = torch.get_rng_state()
    render_path(tiny_model, turntable_views(tiny_scene, 2), tmp_path / "a.mp4", content="all")
    assert torch.equal(before, torch.get_rng_state())
    assert tiny_model.gaussians.means.grad is None
