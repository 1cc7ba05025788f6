"""Recorded ray statistics of every step: sums over its micro-batches."""

import pytest
import torch

from fieldwatch import Declared, Outputs, Run, Terms
from fieldwatch.recon.pipelines.normals.batches import RaySource
from fieldwatch.recon.pipelines.normals.config import PoseOptions, RayOptions
from fieldwatch.recon.pipelines.normals.model import first_model
from fieldwatch.recon.pipelines.normals.objective import mask_term
from fieldwatch.recon.pipelines.normals.rays import RaySplit
from fieldwatch.recon.pipelines.normals.rendering import render
from fieldwatch.recon.pipelines.normals.step_output import (
    POSES_EVERY,
    NormalsStepOutput,
    RayStatistics,
    record_statistics,
)
from fieldwatch.recon.pipelines.normals.tags import NORMALS_METRICS
from fieldwatch.record import TOOLKIT, read_history


@pytest.fixture
def recorded(settings, scene_of, tmp_path):
    """Record some steps without training; return the history, and values computed independently."""

    def make(steps, **changes):
        config = settings(**changes)
        scene = scene_of(config)
        model = first_model(config, scene)
        source = RaySource(scene.pixels, config.rays)
        counted = []

        def objective(rays):
            rendered = render(model, rays, 0.05, config.rendering)
            counted[-1].append(rendered)
            terms = Terms(mask=(1.0, mask_term(rays.batch, rendered, config.terms)))
            return rays.output(terms, rendered, config.terms)

        declared = Declared(metrics=TOOLKIT + NORMALS_METRICS)
        with Run(tmp_path, declared=declared, outputs=Outputs(sinks=(), rules=())) as run:
            run.track(model=model, groups=model.groups())
            for step in run.steps(steps):
                model.grid.update(step.index, model.sdf)
                counted.append([])
                outputs = step.backward(objective, source.draw(config.rays.rays), split=RaySplit(source))
                if model.poses.learned_parameters():
                    model.poses.translations.data[:, 2] += 0.01
                record_statistics(step, scene.schedule, model, RayStatistics.of(outputs))
        return read_history(tmp_path), counted, model

    return make


def test_a_step_is_recorded_as_the_sum_of_its_micro_batches(recorded):
    history, counted, model = recorded(3)
    for row, seen in enumerate(counted):
        samples = sum(len(one.samples) for one in seen)
        shown = {tag: history[f"Statistics/{tag}"].values[row] for tag in ("rays", "samples_per_ray", "filled_rays")}
        assert shown == {
            "rays": 48,
            "samples_per_ray": pytest.approx(samples / 48),
            "filled_rays": sum(one.filled for one in seen),
        }
        starved = sum(one.starved for one in seen) / 4
        assert history["Statistics/starved_share"].values[row] == pytest.approx(starved, abs=1e-6)
    assert history["Statistics/s"].values == pytest.approx([model.deviation.value.item()] * 3)
    assert history["Statistics/occupied_frac"].values[-1] == pytest.approx(model.grid.occupied_fraction.item())
    steps = history["Statistics/step_size"].values
    assert steps[0] == pytest.approx(4e-2)
    assert steps[2] / steps[1] == pytest.approx(0.5 ** (1 / 20))


def test_starved_rays_are_a_mean_over_micro_batches():
    terms = Terms(mask=(1.0, torch.ones(())))
    outputs = [
        NormalsStepOutput(terms=terms, rays=10, samples=30, filled=2, starved=0.75),
        NormalsStepOutput(terms=terms, rays=6, samples=4, filled=0, starved=0.25),
    ]
    assert RayStatistics.of(outputs) == RayStatistics(rays=16, samples=34, filled=2, starved=0.5)


def test_moved_poses_are_shown_now_and_then(recorded):
    learned = PoseOptions(learn_translation=True)
    history, _, _ = recorded(2 * POSES_EVERY, poses=learned, rays=RayOptions(rays=8, views_per_step=1))
    values = list(history["Statistics/pose_change_position"].values)
    assert values == pytest.approx([0.01 * POSES_EVERY, 0.02 * POSES_EVERY], rel=1e-3)
    assert list(history["Statistics/pose_change_rotation"].values) == [0, 0]


def test_fixed_poses_are_not_shown(recorded):
    history, _, _ = recorded(1)
    assert not [tag for tag in history.names() if "pose_change" in tag]
