"""Products of a run: other tools can read them, and they equal the trained model."""

from dataclasses import replace

import pytest
import torch
from PIL import Image

from fieldwatch.base import whole_file
from fieldwatch.recon.data import open_splat_folder, read_clip, read_gaussian_ply
from fieldwatch.recon.pipelines.splats.coarse_file import fused_cloud, write_coarse_file
from fieldwatch.recon.pipelines.splats.config import SplatsConfig
from fieldwatch.recon.pipelines.splats.gaussians import Gaussians
from fieldwatch.recon.pipelines.splats.mip_filter import MipFilter
from fieldwatch.recon.pipelines.splats.model import SplatModel
from fieldwatch.recon.pipelines.splats.products import write_products, write_stage0
from fieldwatch.recon.pipelines.splats.rates import Rates, make_optimizer
from fieldwatch.recon.pipelines.splats.start import prepare_scene


def stepped(model, scene):
    """Return the optimizer after a step, so that it has a state."""
    optimizer = make_optimizer(model.gaussians, Rates(decay_steps=5), scene.extent)
    drawn = model.render(scene.views[1])
    drawn.features.square().mean().backward()
    optimizer.visible = drawn.ids
    optimizer.step()
    return optimizer


def under_a_filter(model, scene):
    """Return the model with a 3D filter of visible effect."""
    mip = MipFilter(scene.training_views, model.gaussians.means)
    mip.widths = mip.widths * 4
    return SplatModel(model.gaussians, model.background, mip=mip)


@pytest.fixture
def made(tiny_scene, tiny_model, tmp_path):
    return write_products(tiny_model, tiny_scene, tmp_path / "products", iteration=30, turntable=0.25)


def test_every_product_is_there_under_its_name(made, tiny_scene):
    assert set(made) == {"point_cloud", "coarse", "renders", "geometry", "turntable"}
    assert made["coarse"].name == "coarse_30.pt"
    assert sorted(path.stem for path in made["renders"].iterdir()) == ["view_000", "view_003", "view_006"]
    with Image.open(made["renders"] / "view_000.png") as row:
        assert row.size == (3 * 40 + 8, 40 + 36)
    with Image.open(made["geometry"]) as picture:
        assert picture.size == (3 * 40 + 8, 3 * (40 + 36 + 4) - 4)
    assert len(read_clip(made["turntable"])) == 6
    assert [path.name for path in made["geometry"].parent.rglob(".*")] == []


def test_no_film_of_no_seconds(tiny_scene, tiny_model, tmp_path):
    assert "turntable" not in write_products(tiny_model, tiny_scene, tmp_path, iteration=1, turntable=0)


def test_masked_out_photos_are_drawn_without_a_number(tiny_scene, tiny_model, tmp_path):
    def black(index):
        picture = tiny_scene.photos.read(index)
        return replace(picture, mask=torch.zeros(picture.image.shape[:2], dtype=torch.uint8))

    scene = replace(tiny_scene, photos=tiny_scene.photos.having(read=black))
    assert write_products(tiny_model, scene, tmp_path, iteration=1, turntable=0)["renders"].is_dir()


def test_the_point_cloud_is_what_was_trained(made, tiny_model):
    cloud = read_gaussian_ply(made["point_cloud"])
    assert torch.equal(cloud.means, tiny_model.gaussians.means.detach())
    assert torch.equal(cloud.rest, tiny_model.gaussians.rest.detach())


def test_a_filter_is_fused_so_that_viewers_show_the_same(tiny_scene, tiny_model, tmp_path):
    filtered = under_a_filter(tiny_model, tiny_scene)
    path = write_products(filtered, tiny_scene, tmp_path, iteration=1, turntable=0)["point_cloud"]
    cloud = read_gaussian_ply(path)
    assert cloud.filter_3d is None
    assert not cloud.extra
    read = SplatModel(Gaussians.from_cloud(cloud), torch.zeros(3))
    with torch.no_grad():
        shown, wanted, plain = (m.render(tiny_scene.views[0]).features for m in (read, filtered, tiny_model))
    torch.testing.assert_close(shown, wanted, atol=2e-4, rtol=0)
    assert float((wanted - plain).abs().max()) > 0.02


def test_the_coarse_file_has_the_keys_and_shapes_of_sugar_and_runs_no_code(tiny_scene, tiny_model, tmp_path):
    optimizer = stepped(tiny_model, tiny_scene)
    path = write_coarse_file(
        tmp_path / "a" / "9.pt", tiny_model, iteration=9, epoch=1, losses=[0.5, 0.25], optimizer=optimizer
    )
    found = torch.load(path, weights_only=True)
    assert list(found) == ["state_dict", "train_losses", "epoch", "iteration", "optimizer_state_dict"]
    assert {name: tuple(part.shape) for name, part in found["state_dict"].items()} == {
        "_points": (300, 3),
        "all_densities": (300, 1),
        "_scales": (300, 3),
        "_quaternions": (300, 4),
        "_sh_coordinates_dc": (300, 1, 3),
        "_sh_coordinates_rest": (300, 15, 3),
    }
    gaussians = tiny_model.gaussians
    assert torch.equal(found["state_dict"]["all_densities"][:, 0], gaussians.opacity_logits.detach())
    assert torch.equal(found["state_dict"]["_sh_coordinates_rest"][:, :3], gaussians.rest.detach())
    assert not found["state_dict"]["_sh_coordinates_rest"][:, 3:].any()
    assert (found["train_losses"], found["epoch"], found["iteration"]) == ([0.5, 0.25], 1, 9)
    make_optimizer(gaussians, Rates(decay_steps=5), 1.0).load_state_dict(found["optimizer_state_dict"])


def test_a_fused_cloud_is_a_copy(tiny_scene, tiny_model):
    for model in (tiny_model, under_a_filter(tiny_model, tiny_scene)):
        cloud = fused_cloud(model)
        cloud.means.fill_(7)
        cloud.log_scales.fill_(7)
    assert not bool((tiny_model.gaussians.means == 7).any() | (tiny_model.gaussians.log_scales == 7).any())


def test_stage_0_of_the_built_in_scene_can_be_gone_on_from(tiny_model, tmp_path):
    config = SplatsConfig(views=9, held_out=3)
    scene = prepare_scene(config)
    path = write_stage0(tiny_model, scene, tmp_path / "stage0", 7000, config=config)
    assert path == tmp_path / "stage0" / "point_cloud" / "iteration_7000" / "point_cloud.ply"
    assert (tmp_path / "stage0" / "input.ply").is_file()
    again = prepare_scene(replace(config, views=48, checkpoint_path=tmp_path / "stage0"))
    assert again.loaded == 7000
    assert again.photos.digest == scene.photos.digest
    assert torch.equal(again.cloud.means, tiny_model.gaussians.means.detach())
    cameras = open_splat_folder(tmp_path / "stage0").cameras
    assert [camera.name for camera in cameras] == [name.removesuffix(".png") for name in scene.photos.names]
    torch.testing.assert_close(cameras[2].world_from_camera, scene.photos.cameras[2].world_from_camera)


def test_stage_0_names_the_scene_it_was_trained_on(tiny_scene, tiny_model, tmp_path):
    write_stage0(tiny_model, tiny_scene, tmp_path / "one", 10, config=SplatsConfig(data=tmp_path, background="white"))
    settings = open_splat_folder(tmp_path / "one").settings
    assert settings["source_path"] == str(tmp_path)
    assert settings["white_background"] is True
    write_stage0(tiny_model, tiny_scene, tmp_path / "two", 20, config=SplatsConfig(checkpoint_path=tmp_path / "one"))
    assert open_splat_folder(tmp_path / "two").settings["source_path"] == str(tmp_path)


def test_a_file_is_there_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a" / "b.txt"

    def interrupted():
        with whole_file(path) as draft:
            draft.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list((tmp_path / "a").iterdir()) == []
    with whole_file(path) as draft:
        draft.write_text("whole")
    assert [one.read_text() for one in (tmp_path / "a").iterdir()] == ["whole"]
