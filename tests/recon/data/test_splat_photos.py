"""Photos with the cameras of a splat training."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fieldwatch.recon.data import (
    GaussianCloud,
    PhotoOptions,
    open_splat_folder,
    read_splat_photos,
    solid_photos,
    write_point_ply,
    write_splat_folder,
)
from fieldwatch.recon.data.colmap import write_colmap
from fieldwatch.recon.data.gaussians import SplatFolderError
from fieldwatch.recon.data.photos import PhotoError

CLOUD = GaussianCloud(
    means=torch.zeros(2, 3),
    log_scales=torch.zeros(2, 3),
    quaternions=torch.ones(2, 4),
    opacity_logits=torch.zeros(2),
    constant=torch.zeros(2, 3),
    rest=torch.zeros(2, 0, 3),
)


@pytest.fixture
def made(tmp_path):
    photos = solid_photos(views=6, size=24, held_out=3, points=50)
    write_colmap(tmp_path / "scene", photos)
    write_splat_folder(tmp_path / "run", 7000, CLOUD, cameras=photos.cameras)
    return photos, open_splat_folder(tmp_path / "run"), tmp_path / "scene" / "images"


def test_photos_of_a_run_are_found_by_names_without_extension(made):
    truth, run, images = made
    photos = read_splat_photos(run, images, PhotoOptions(held_out=3, longer_side=12))
    assert (photos.names, photos.test) == (truth.names, truth.test)
    assert photos[1].image.shape == (12, 12, 3)
    assert torch.allclose(photos.cameras[1].K[:2], truth.cameras[1].K[:2] / 2)
    assert len(photos.points) == 0


def test_the_first_points_of_the_run_come_along(made):
    truth, run, images = made
    write_point_ply(run.folder / "input.ply", truth.points, truth.colors)
    assert torch.equal(read_splat_photos(run, images).points, truth.points)


@pytest.mark.parametrize("suffix", [".png.png", ".png"], ids=["COLMAP's name", "the photo's name"])
def test_masks_are_found_by_the_names_of_the_photos(made, tmp_path, suffix):
    truth, run, images = made
    mask = np.zeros((24, 24), dtype=np.uint8)
    mask[:, :12] = 255
    masks = tmp_path / "masks"
    masks.mkdir()
    for name in truth.names:
        Image.fromarray(mask).save(masks / f"{Path(name).stem}{suffix}")
    photos = read_splat_photos(run, images, masks=masks)
    assert photos.masked
    assert all(torch.equal(photos[index].mask, torch.from_numpy(mask)) for index in range(len(truth.names)))
    assert not read_splat_photos(run, images).masked
    with pytest.raises(SplatFolderError, match="/nowhere is"):
        read_splat_photos(run, images, masks=masks / "nowhere")


def test_what_is_missing_is_said(made):
    _, run, images = made
    with pytest.raises(SplatFolderError, match=r"/nowhere is.* -s"):
        read_splat_photos(run, images / "nowhere")
    (images / "view_002.png").unlink()
    with pytest.raises(PhotoError, match=r"1 of 6 photos .* view_002"):
        read_splat_photos(run, images)
    (run.folder / "cameras.json").unlink()
    with pytest.raises(SplatFolderError, match=r"has no cameras.json"):
        read_splat_photos(open_splat_folder(run.folder), images)
