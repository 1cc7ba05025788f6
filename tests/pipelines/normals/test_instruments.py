"""What is shown of every step: sums over the step's graphs, recorded once."""

import pytest

from fieldwatch import Run
from fieldwatch.pipelines.normals.batches import RaySource
from fieldwatch.pipelines.normals.config import PoseOptions, RayOptions
from fieldwatch.pipelines.normals.instruments import POSES_EVERY, Instruments
from fieldwatch.pipelines.normals.model import first_model
from fieldwatch.pipelines.normals.objective import MeanTerms, ray_terms
from fieldwatch.pipelines.normals.rendering import render
from fieldwatch.pipelines.normals.tags import NORMALS_METRICS
from fieldwatch.record import TOOLKIT, read_history


@pytest.fixture
def recorded(settings, scene_of, tmp_path):
    """Record some steps without training; return the history, and what was counted by hand."""

    def make(steps, **changes):
        config = settings(**changes)
        scene = scene_of(config)
        model, source = first_model(config, scene), RaySource(scene.pixels, config.rays)
        instruments, counted = Instruments(scene, model), []
        with Run(tmp_path, sinks=(), rules=(), metrics=TOOLKIT + NORMALS_METRICS) as run:
            for step in run.steps(steps):
                model.grid.update(step.index, model.sdf)
                batches = source.draw(config.rays.rays)
                mean, seen = MeanTerms(len(batches)), []
                for batch in batches:
                    rendered = render(model, batch, 0.05, config.rendering, source)
                    mean.backward(ray_terms({"mask": 1.0}, batch, rendered, model.poses(), config.terms))
                    instruments.look(batch, rendered)
                    seen.append(rendered)
                counted.append((seen, instruments.starved, instruments.views()))
                step.observe(mean.terms())
                if model.poses.learned():
                    model.poses.translations.data[:, 2] += 0.01
                instruments.after_update(step)
        return read_history(tmp_path), counted, model

    return make


def test_a_step_is_recorded_as_the_sum_of_its_graphs(recorded):
    history, counted, model = recorded(3)
    for row, (seen, starved, views) in enumerate(counted):
        samples = sum(len(one.samples) for one in seen)
        shown = {tag: history[f"Statistics/{tag}"].values[row] for tag in ("rays", "samples_per_ray", "filled_rays")}
        assert shown == {
            "rays": 48,
            "samples_per_ray": pytest.approx(samples / 48),
            "filled_rays": sum(one.filled for one in seen),
        }
        assert history["Statistics/starved_share"].values[row] == pytest.approx(starved, abs=1e-6)
        assert starved == pytest.approx(sum(one.starved for one in seen) / 4)
        assert views == ("000", "001", "002", "003")
    assert history["Statistics/s"].values == pytest.approx([model.deviation.value.item()] * 3)
    assert history["Statistics/occupied_frac"].values[-1] == pytest.approx(model.grid.occupied_fraction.item())
    steps = history["Statistics/step_size"].values
    assert steps[0] == pytest.approx(4e-2)
    assert steps[2] / steps[1] == pytest.approx(0.5 ** (1 / 20))


def test_starved_rays_are_told(recorded):
    _, counted, _ = recorded(1)
    assert counted[0][1] == 0


def test_moved_poses_are_shown_now_and_then(recorded):
    learned = PoseOptions(learn_translation=True)
    history, _, _ = recorded(2 * POSES_EVERY, poses=learned, rays=RayOptions(rays=8, views_per_step=1))
    values = list(history["Statistics/pose_change_position"].values)
    assert values == pytest.approx([0.01 * POSES_EVERY, 0.02 * POSES_EVERY], rel=1e-3)
    assert list(history["Statistics/pose_change_rotation"].values) == [0, 0]


def test_fixed_poses_are_not_shown(recorded):
    history, _, _ = recorded(1)
    assert not [tag for tag in history.names() if "pose_change" in tag]


def test_nothing_looked_at_is_no_ray(settings, scene_of):
    config = settings()
    scene = scene_of(config)
    instruments = Instruments(scene, first_model(config, scene))
    assert (instruments.rays, instruments.samples, instruments.starved, instruments.views()) == (0, 0, 0, ())
