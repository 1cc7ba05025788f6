"""Learning rates by group and step, active optimizers, and gradient norm limits."""

import pytest

from fieldwatch.recon.pipelines.normals.config import FieldOptions, NormalsRateOptions, PoseOptions, RenderOptions
from fieldwatch.recon.pipelines.normals.learning import NormalsOptimizers
from fieldwatch.recon.pipelines.normals.model import first_model
from fieldwatch.recon.pipelines.normals.schedule import NormalsSchedule

POSES = {"learn_rotation": True, "learn_translation": True, "poses_from": 100, "poses_until": 200}


@pytest.fixture
def learning_of(settings, scene_of):
    def make(rates=None, poses=None, steps=300, **changes):
        known = {"steps": steps, "nominal": 300, "rates": rates or NormalsRateOptions(warm_up=100, poses_late_from=150)}
        config = settings(**(known | {"poses": PoseOptions(**(poses or {}))} | changes))
        model = first_model(config, scene_of(config))
        return NormalsOptimizers(config, model, NormalsSchedule(config=config)), model

    return make


def rates_of(learning):
    found = {group["name"]: group["lr"] for group in learning.field.param_groups}
    return found | ({} if learning.poses is None else {"poses": learning.poses.param_groups[0]["lr"]})


@pytest.mark.parametrize("steps", [300, 30])
def test_rates_at_steps(learning_of, steps):
    rates = NormalsRateOptions(lr=1e-3, lr_table=1e-2, warm_up=100, poses_late_from=150, last_share=0.1)
    learning, _ = learning_of(rates, POSES, steps)
    for share, factor, pose in [(0, 0, 1e-3), (1 / 6, 0.5, 1e-3), (1 / 3, 1, 1e-3), (2 / 3, 0.55, 5e-4)]:
        learning.prepare(round(share * steps))
        wanted = {"table": factor * 1e-2, "network": factor * 1e-3, "poses": factor * pose}
        assert rates_of(learning) == pytest.approx(wanted, abs=1e-12)


def test_the_factor_of_a_rollback_halves_every_rate(learning_of):
    learning, _ = learning_of(poses=POSES)
    learning.prepare(120)
    before = rates_of(learning)
    learning.rate_factor = 0.5
    learning.prepare(120)
    assert rates_of(learning) == pytest.approx({name: rate / 2 for name, rate in before.items()})


def test_the_table_takes_the_rate_of_the_network_unless_it_has_one(learning_of):
    learning, model = learning_of()
    learning.prepare(100)
    assert rates_of(learning) == {"table": 5e-4, "network": 5e-4}
    table, network = learning.field.param_groups
    assert [id(one) for one in table["params"]] == [id(model.sdf.encoding.table)]
    assert (table["betas"], table["eps"]) == ((0.9, 0.99), 1e-15)
    assert any(one is model.deviation.parameter for one in network["params"])


def test_every_learned_parameter_is_in_one_group(learning_of):
    learning, model = learning_of(poses=POSES)
    groups = [*learning.field.param_groups, *learning.poses.param_groups]
    held = [id(one) for group in groups for one in group["params"]]
    learned = [id(one) for one in model.parameters() if one.requires_grad]
    assert sorted(held) == sorted(learned)


def test_levels_and_a_scheduled_sharpness_are_set(learning_of):
    options = RenderOptions(
        grid_resolution=8, sharpness="scheduled", first_sharpness=20.0, last_sharpness=500.0, most_sharpness=600.0
    )
    field = FieldOptions(levels=4, base_resolution=4, finest_resolution=16, table_bits=8, hidden=8, levels_by=150)
    learning, model = learning_of(rendering=options, sdf=field)
    assert not model.deviation.parameter.requires_grad
    for step, levels, sharpness in [(0, 0, 20), (75, 2, 20 * 25**0.25), (150, 4, 100), (300, 4, 500)]:
        learning.prepare(step)
        assert model.sdf.encoding.active_levels.item() == pytest.approx(levels)
        assert model.deviation().item() == pytest.approx(sharpness, rel=1e-4)


def test_a_learned_sharpness_is_left_alone(learning_of):
    learning, model = learning_of()
    learning.prepare(200)
    assert model.deviation().item() == pytest.approx(148.4, rel=1e-4)


def test_poses_step_in_their_window_only(learning_of):
    learning, _ = learning_of(poses=POSES)
    assert [step for step in range(300) if len(learning.active(step)) == 2] == list(range(100, 200))
    assert learning.active(150) == (learning.field, learning.poses)
    assert learning.active(99) == (learning.field,)
    alone, _ = learning_of()
    assert alone.active(150) == (alone.field,)
    assert list(alone.optimizers()) == ["field_optimizer"]
    assert learning.optimizers() == {"field_optimizer": learning.field, "pose_optimizer": learning.poses}


def test_limits_of_gradients_by_group(learning_of):
    learning, _ = learning_of(poses=POSES)
    field = {"table": 1.0, "network": 1.0, "deviation": 1.0}
    assert learning.clip(50) == field
    assert learning.clip(150) == field | {"poses": 0.1}
    scheduled = RenderOptions(sharpness="scheduled", grid_resolution=8)
    loose, _ = learning_of(NormalsRateOptions(clip=0.0, clip_poses=0.3), POSES, rendering=scheduled)
    assert loose.clip(150) == {"poses": 0.3}
    assert loose.clip(50) is None
