"""Several views in a step: the mean of their losses; and a step that runs out of memory, done again in bands."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from fieldwatch import Checkpoints, Parts, Run, Shuffled, read_history
from fieldwatch.cli import main
from fieldwatch.pipelines.splats import GrowthOptions, Scene, SplatsConfig, prepare_scene, train_splats
from fieldwatch.pipelines.splats import algorithm as loop
from fieldwatch.pipelines.splats.beginning import first_model
from fieldwatch.pipelines.splats.changes import Changes
from fieldwatch.pipelines.splats.learning import Learning
from fieldwatch.pipelines.splats.neighbourhood import Neighbourhood
from fieldwatch.pipelines.splats.shown import Shown

SHORT = SplatsConfig(
    views=4,
    held_out=0,
    schedule_scale=0.002,
    regularization="density",
    exposure=True,
    degree=1,
    degree_every=0,
    coarse_iterations=10_000,
    test_iterations=(),
    checkpoint_interval=0,
    checkpoint_milestones=(),
    turntable=0,
    device="cpu",
    growth_options=GrowthOptions(growth_until=6000),
)
"""20 steps; entropy from step 14, density from 18."""
AT = 18


@cache
def scene() -> Scene:
    return prepare_scene(SHORT)


def gradients(folder: Path, views: int, own: slice) -> tuple[Shown, dict[str, torch.Tensor], Changes]:
    """Make those of step 10, at which growth looks, on some of its views."""
    config = replace(SHORT, views_per_step=views)
    torch.manual_seed(0)
    model = first_model(config, scene())
    learning, changes, near = Learning(config, scene(), model), Changes(config, scene(), model), Neighbourhood(16)
    learner = loop.Learner(config, scene(), model, learning, changes, near)
    with Run(folder, sinks=(), rules=()) as run, scene().drawing(Shuffled(4, 1, 0), views, own) as next_batch:
        (step,) = run.steps(11, first=10)
        shown = learner.gradients(step, next_batch(), Parts("picture"))
    near.close()
    return shown, {name: part.grad.clone() for name, part in model.gaussians.named_parameters()}, changes


def test_the_gradient_of_two_views_is_the_mean_and_growth_sees_each(tmp_path: Path) -> None:
    both, mean, changes = gradients(tmp_path / "both", 2, slice(None))
    one, first, _ = gradients(tmp_path / "one", 2, slice(0, 1))
    other, second, _ = gradients(tmp_path / "other", 2, slice(1, 2))

    assert all(torch.equal(mean[name], (first[name] + second[name]) / 2) for name in mean)
    assert both.losses.tolist() == [*one.losses.tolist(), *other.losses.tolist()]
    assert float(both.terms.total) == pytest.approx(float(both.losses.mean()))
    assert float(both.psnr) == pytest.approx((float(one.psnr) + float(other.psnr)) / 2)
    assert set(both.ids.tolist()) == {*one.ids.tolist(), *other.ids.tolist()}
    assert both.tally is not None
    assert one.tally is not None
    assert other.tally is not None
    assert torch.equal(both.tally.pulls, one.tally.pulls + other.tally.pulls)
    assert torch.equal(both.tally.radii, torch.maximum(one.tally.radii, other.tally.radii))
    changes.look(both)
    changes.look(one)
    assert torch.equal(changes.tally.sightings, both.tally.sightings + one.tally.sightings)


def test_more_processes_than_views_are_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    assert main(["train", "splats", "--views-per-step", "2", "--out", str(tmp_path / "run")]) == 2
    assert "--views-per-step 2 is shared by 3 processes" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def trained(folder: Path) -> Any:
    train_splats(SHORT, scene(), folder, sinks=())
    return Checkpoints(folder / "checkpoints").read("last"), read_history(folder)


def test_a_step_that_runs_out_of_memory_equals_one_in_bands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, before = trained(tmp_path / "plain")
    compared, made = loop.rendering_term, loop.Learner.gradients

    def failing(config: Any, one: Any) -> Any:
        terms = compared(config, one)
        if one.step == AT and one.model.bands == 1:
            torch.rand(3)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB (planted)")
        return terms

    def in_two(learner: Any, step: Any, batch: Any, parts: Parts) -> Shown:
        parts.count = 2 if step.index >= AT else parts.count
        return made(learner, step, batch, parts)

    with monkeypatch.context() as planted:
        planted.setattr(loop, "rendering_term", failing)
        failed, history = trained(tmp_path / "failed")
    with monkeypatch.context() as planted:
        planted.setattr(loop.Learner, "gradients", in_two)
        divided, _ = trained(tmp_path / "divided")

    (event,) = history.events("out_of_memory")
    assert (event["step"], event["what"], event["after"]) == (AT, "picture", 2)
    assert failed["parts"] == divided["parts"] == {"count": 2}
    for item in ("gaussians", "exposures", "changes", "random_state"):
        assert same(failed[item], divided[item]), item
    assert not same(failed["gaussians"], plain["gaussians"])  # other sums: the comparison sees a bit
    assert history["Loss/total"].values == pytest.approx(before["Loss/total"].values, rel=1e-4)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else repr(one) == repr(other)
