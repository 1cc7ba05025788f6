"""A still and a film of every mesh."""

import av
import numpy as np
import pytest
from PIL import Image

from fieldwatch.recon.commands.mesh.pictures import frames_in, write_still_and_film
from fieldwatch.recon.mesh import MeshError, Triangles, mesh_still, render_mesh, turntable_cameras

UP = (0.0, 1.0, 0.0)


@pytest.fixture
def mesh():
    places = np.array([[0.0, 0, 0], [1, 0, 0], [0, 2, 0], [0, 0, 1]])
    faces = np.array([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]])
    return Triangles(vertices=places, faces=faces, colors=np.array([[250, 20, 30]] * 4, np.uint8))


def test_both_files_show_the_mesh_from_around(mesh, tmp_path):
    calls = []
    stem = tmp_path / "new" / "a.b"
    files = write_still_and_film(mesh, stem, size=48, seconds=0.25, up=UP, on_frame=lambda: calls.append(1))
    assert files == {"still": tmp_path / "new/a.b_still.png", "turntable": tmp_path / "new/a.b_turntable.mp4"}
    assert sorted(path.name for path in stem.parent.iterdir()) == ["a.b_still.png", "a.b_turntable.mp4"]
    assert np.array_equal(np.asarray(Image.open(files["still"])), mesh_still(mesh, size=48, up=UP))
    with av.open(str(files["turntable"])) as film:
        frames = [frame.to_ndarray(format="rgb24").astype(int) for frame in film.decode(video=0)]
    cameras = turntable_cameras(mesh, 6, 48, up=UP)
    assert len(frames) == len(cameras) == len(calls) - 1 == frames_in(0.25) == 6
    rendered = [render_mesh(mesh, camera).astype(int) for camera in cameras]
    assert all(np.abs(frame - wanted).mean() < 8 for frame, wanted in zip(frames, rendered, strict=True))
    assert np.abs(rendered[0] - rendered[3]).mean() > 8


def test_a_mesh_without_faces_leaves_no_files(tmp_path):
    empty = Triangles(vertices=np.zeros((3, 3)), faces=np.empty((0, 3), np.int64))
    with pytest.raises(MeshError, match="without faces"):
        write_still_and_film(empty, tmp_path / "none")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("seconds", "frames"), [(4.0, 96), (0.001, 1)])
def test_a_film_has_24_frames_a_second_and_at_least_one(seconds, frames):
    assert frames_in(seconds) == frames
