"""The initial model: a sphere, its grid, its sharpness, and its trainable parameters."""

import pytest
import torch

from fieldwatch.recon.pipelines.normals.config import FieldOptions, NormalsConfig, PoseOptions, RenderOptions
from fieldwatch.recon.pipelines.normals.model import NormalsModel, first_model

POSES = torch.eye(4, dtype=torch.float64)[None]


@pytest.fixture(scope="module")
def pmni():
    """The field of the preset `pmni` with a small grid."""
    torch.manual_seed(3)
    return NormalsModel(NormalsConfig(rendering=RenderOptions(grid_resolution=32)), POSES)


def test_the_field_starts_as_a_sphere_of_the_stated_radius(pmni):
    directions = torch.nn.functional.normalize(torch.randn(2000, 3), dim=-1)
    low = torch.full((2000,), 0.3)
    high = torch.full((2000,), 0.9)
    with torch.no_grad():
        for _ in range(12):
            middle = 0.5 * (low + high)
            outside = pmni.sdf(middle[:, None] * directions) > 0
            low, high = torch.where(outside, low, middle), torch.where(outside, middle, high)
    assert float(low.mean()) == pytest.approx(0.6, abs=0.005)
    assert float(low.min()) > 0.58
    assert float(high.max()) < 0.62


def test_the_occupied_share_by_the_threshold_at_the_start(pmni):
    points = 2 * torch.rand(40_000, 3) - 1
    with torch.no_grad():
        share = (torch.sigmoid(-80 * pmni.sdf(points)) > 0.1).float().mean()
    assert float(share) == pytest.approx(0.129, abs=0.02)


def test_the_grid_holds_that_share_and_the_cells_around_it(pmni):
    pmni.grid.update(0, pmni.sdf, pmni.deviation().item())
    assert 0.129 < float(pmni.grid.occupied_fraction) < 0.3  # a cell is 1 / 16 wide, and its bound is looked at
    with torch.no_grad():
        values = pmni.sdf(pmni.grid.config.cells.centers(torch.arange(32**3)))
    assert bool(pmni.grid.occupied.view(-1)[values <= 0].all())


def test_every_setting_arrives():
    options = RenderOptions(
        grid_resolution=9, grid_threshold=0.2, grid_sharpness=50.0, grid_every=3, grid_warmup=7, chunk=999,
        first_sharpness=30.0, most_sharpness=700.0,
    )  # fmt: skip
    field = FieldOptions(
        levels=3, base_resolution=5, finest_resolution=20, table_bits=7, features_per_level=4, hidden=12, layers=2
    )
    model = NormalsModel(NormalsConfig(sdf=field, rendering=options), POSES)
    grid = model.grid.config
    assert (grid.cells.resolution, grid.threshold, grid.sharpness) == (9, 0.2, 50.0)
    assert (grid.every, grid.warmup, grid.chunk) == (3, 7, 999)
    assert (model.deviation().item(), model.deviation.highest) == (pytest.approx(30), 700.0)
    assert len(model.sdf.hidden) == 2
    encoding = model.sdf.encoding
    assert (encoding.features, model.sdf.last.in_features) == (12, 12)
    assert "resolutions=(5, 10, 20)" in repr(encoding)


@pytest.mark.parametrize("wanted", [1.0, 20.0, 333.0, 2000.0])
def test_a_scheduled_sharpness_is_in_the_parameter(settings, wanted):
    model = NormalsModel(settings(), POSES)
    model.set_sharpness(wanted)
    assert model.deviation().item() == pytest.approx(wanted, rel=1e-5)
    other = NormalsModel(settings(), POSES)
    other.load_state_dict(model.state_dict())
    assert other.deviation().item() == pytest.approx(wanted, rel=1e-5)


def test_groups_name_what_is_learned(settings):
    assert list(NormalsModel(settings(), POSES).groups()) == ["table", "network", "deviation"]
    learned = settings(
        poses=PoseOptions(learn_translation=True), rendering=RenderOptions(sharpness="scheduled", grid_resolution=8)
    )
    model = NormalsModel(learned, POSES)
    assert list(model.groups()) == ["table", "network", "poses"]
    assert [id(one) for one in model.groups()["poses"]] == [id(model.poses.translations)]


def test_the_first_model_has_the_poses_of_the_training_views(settings, scene_of):
    config = settings()
    scene = scene_of(config, test=(1,))
    model = first_model(config, scene)
    assert torch.equal(model.poses(), scene.starting_poses[[0, 2, 3]].float())


def test_all_state_goes_through_a_checkpoint(settings):
    model, other = (NormalsModel(settings(), POSES) for _ in range(2))
    model.sdf.activate(1.5)
    model.grid.update(0, model.sdf)
    other.load_state_dict(model.state_dict())
    assert other.sdf.encoding.active_levels.item() == 1.5
    assert torch.equal(other.grid.occupied, model.grid.occupied)
    points = torch.rand(50, 3)
    with torch.no_grad():
        assert torch.equal(other.sdf(points), model.sdf(points))
