"""Start of a run: photos found by a model's folder, notes, and a folder of other photos that is rejected."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from fieldwatch import ConfigMismatch, InputError
from fieldwatch.recon.data import open_splat_folder, write_splat_folder
from fieldwatch.recon.data.colmap import write_colmap
from fieldwatch.recon.data.gaussians import WRITABLE, SplatFolderError, write_gaussians
from fieldwatch.recon.pipelines.splats import SplatsConfig, prepare_scene, write_stage0
from fieldwatch.recon.pipelines.splats.initialization import initial_model
from fieldwatch.recon.pipelines.splats.start import start_run

CONFIG = SplatsConfig(views=6, held_out=3, antialiased=True)


@pytest.fixture(scope="module")
def stage0(tmp_path_factory: pytest.TempPathFactory) -> Path:
    scene = prepare_scene(CONFIG)
    folder = tmp_path_factory.mktemp("stage0") / "3dgs"
    torch.manual_seed(0)
    write_stage0(initial_model(CONFIG, scene), scene, folder, 7000, config=CONFIG)
    return folder


def test_a_model_of_the_built_in_scene_brings_its_photos_along(stage0: Path) -> None:
    scene = prepare_scene(SplatsConfig(checkpoint_path=stage0, held_out=3, antialiased=True, coarse_iterations=8000))

    assert scene.loaded == 7000
    assert scene.photos.digest == prepare_scene(CONFIG).photos.digest
    assert scene.distance is not None
    assert (scene.plan.first, scene.plan.total) == (7000, 8000)
    assert not scene.notes


def test_a_model_that_was_drawn_otherwise_is_said(stage0: Path) -> None:
    notes = prepare_scene(SplatsConfig(checkpoint_path=stage0, coarse_iterations=8000)).notes

    assert any("renders with --no-antialiased" in note for note in notes)


def test_an_iteration_that_is_not_there_lists_those_there_are(stage0: Path) -> None:
    with pytest.raises(SplatFolderError, match=r"available: 7000.: use -i 7000"):
        prepare_scene(SplatsConfig(checkpoint_path=stage0, iteration_to_load=30_000))


def test_a_model_of_a_late_iteration_only_is_followed_by_the_coarse_stage(stage0: Path, tmp_path: Path) -> None:
    shutil.copytree(stage0, tmp_path / "3dgs")
    (tmp_path / "3dgs/point_cloud/iteration_7000").rename(tmp_path / "3dgs/point_cloud/iteration_30000")
    scene = prepare_scene(SplatsConfig(checkpoint_path=tmp_path / "3dgs", held_out=3, coarse_iterations=15000))

    assert (scene.loaded, scene.plan.first, scene.plan.total) == (30_000, 30_000, 38_000)
    assert any("--schedule-origin relative" in note for note in scene.notes)


@pytest.mark.parametrize("format_name", ["ply", "compressed-ply", "spz", "splat"])
def test_a_single_file_of_gaussians_is_trained_on(stage0: Path, tmp_path: Path, format_name: str) -> None:
    photos = prepare_scene(CONFIG).photos
    write_colmap(tmp_path / "scene", photos)
    cloud = open_splat_folder(stage0).gaussians()
    path = write_gaussians(tmp_path / f"scan{WRITABLE[format_name]}", cloud, format_name).path
    config = SplatsConfig(checkpoint_path=path, data=tmp_path / "scene", held_out=3, coarse_iterations=8000)
    scene = prepare_scene(config)

    assert scene.cloud is not None
    assert len(scene.cloud) == len(cloud)
    assert (scene.loaded, scene.plan.first, scene.plan.total) == (7000, 7000, 8000)
    assert any("--iteration-to-load" in note for note in scene.notes)
    later = prepare_scene(replace(config, iteration_to_load=7500))
    assert (later.loaded, later.plan.first) == (7500, 7500)
    assert not any("--iteration-to-load" in note for note in later.notes)


def test_the_file_of_a_run_brings_its_photos_and_iteration_along(stage0: Path) -> None:
    path = stage0 / "point_cloud" / "iteration_7000" / "point_cloud.ply"
    scene = prepare_scene(SplatsConfig(checkpoint_path=path, held_out=3, antialiased=True, coarse_iterations=8000))

    assert (scene.loaded, scene.photos.digest) == (7000, prepare_scene(CONFIG).photos.digest)


def test_a_single_file_without_photos_asks_for_them(stage0: Path, tmp_path: Path) -> None:
    path = write_gaussians(tmp_path / "scan.spz", open_splat_folder(stage0).gaussians(), "spz").path
    with pytest.raises(InputError, match=r"scan\.spz.* -s"):
        prepare_scene(SplatsConfig(checkpoint_path=path))


def test_a_model_without_its_scene_asks_for_it(stage0: Path, tmp_path: Path) -> None:
    cloud = prepare_scene(SplatsConfig(checkpoint_path=stage0, coarse_iterations=8000)).cloud
    assert cloud is not None
    write_splat_folder(tmp_path / "lost", 7000, cloud, settings={"source_path": "/nowhere/garden"})
    with pytest.raises(ValueError, match=r"/nowhere/garden.* -s"):
        prepare_scene(SplatsConfig(checkpoint_path=tmp_path / "lost"))


def test_images_without_a_scene_are_refused() -> None:
    with pytest.raises(ValueError, match=r"--images photos.*add -s FOLDER"):
        SplatsConfig(images=Path("photos"))


@pytest.mark.parametrize("name", ["images", "masks"])
def test_folders_of_a_model_of_the_built_in_scene_are_refused(stage0: Path, tmp_path: Path, name: str) -> None:
    config = SplatsConfig(checkpoint_path=stage0, coarse_iterations=8000)
    with pytest.raises(InputError, match=rf"--{name} .*-s FOLDER"):
        prepare_scene(replace(config, **{name: tmp_path}))


def test_masks_apply_to_the_photos_of_a_model(stage0: Path, tmp_path: Path) -> None:
    photos = prepare_scene(CONFIG).photos
    cloud = prepare_scene(SplatsConfig(checkpoint_path=stage0, coarse_iterations=8000)).cloud
    assert cloud is not None
    write_colmap(tmp_path / "scene", photos)
    write_splat_folder(tmp_path / "model", 7000, cloud, cameras=photos.cameras)
    masks = tmp_path / "masks"
    masks.mkdir()
    for name, camera in zip(photos.names, photos.cameras, strict=True):
        mask = Image.new("L", (camera.width, camera.height))
        mask.paste(255, (0, 0, 4, 4))
        mask.save(masks / name)
    config = SplatsConfig(
        checkpoint_path=tmp_path / "model",
        images=tmp_path / "scene" / "images",
        masks=masks,
        coarse_iterations=8000,
    )
    mask = prepare_scene(config).photos[0].mask
    assert mask is not None
    assert int((mask == 255).sum()) == 16


def test_a_run_does_not_go_on_with_other_photos(tmp_path: Path) -> None:
    scene = prepare_scene(CONFIG)
    with start_run(CONFIG, scene, tmp_path, sinks=()) as run:
        for step in run.steps(1):
            step.record({"Model/size": 1})
    fewer = replace(scene, photos=scene.photos.having(points=scene.photos.points[1:], colors=scene.photos.colors[1:]))
    with pytest.raises(ConfigMismatch, match=r"other photos.*--out"):
        start_run(CONFIG, fewer, tmp_path, sinks=())
    start_run(CONFIG, scene, tmp_path, sinks=())


def test_cuda_that_is_not_there_is_refused() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ValueError, match=r"--device cuda.*--device auto"):
        prepare_scene(replace(CONFIG, device="cuda"))
