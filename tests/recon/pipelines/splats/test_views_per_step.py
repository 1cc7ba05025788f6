"""Several views per step: the mean of their losses, and a retry in bands after an out-of-memory error."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from fieldwatch import Checkpoints, MicroBatches, Step, read_history
from fieldwatch.cli import main
from fieldwatch.recon.pipelines.splats import (
    DensificationOptions,
    Scene,
    SplatModel,
    SplatsConfig,
    prepare_scene,
    train_splats,
)
from fieldwatch.recon.pipelines.splats import algorithm as loop
from fieldwatch.recon.pipelines.splats.initialization import initial_model
from fieldwatch.recon.pipelines.splats.scene import Batch
from fieldwatch.recon.pipelines.splats.step_output import StepSummary, ViewOutput
from fieldwatch.recon.render import DensificationStatistics
from fieldwatch.run.retry import Retry

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
    growth_options=DensificationOptions(growth_until=6000),
)
"""20 steps; entropy from step 14, density from 18."""
AT = 18


@cache
def scene() -> Scene:
    return prepare_scene(SHORT)


def test_the_gradient_of_two_views_is_the_mean_and_statistics_see_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At step 10, whose view-space gradients are used, the gradients of each view are computed separately first."""
    made = initial_model
    models = list[SplatModel]()
    backward = Step.backward
    found: dict[str, tuple[StepSummary, list[float], dict[str, torch.Tensor]]] = {}

    def first(config: SplatsConfig, where: Scene) -> SplatModel:
        models.append(made(config, where))
        return models[-1]

    def in_turn(step: Step, objective: Any, batch: Batch, *, samples: Any, **options: Any) -> Any:
        if step.index != 10:
            return backward(step, objective, batch, samples=samples, **options)
        outputs: list[ViewOutput] = []
        for name, own in (("one", slice(0, 1)), ("other", slice(1, 2)), ("both", slice(0, 2))):
            torch.manual_seed(0)  # seeds of the views' generators
            part = replace(batch, views=batch.views[own], first=own.start)
            outputs = backward(step, objective, part, samples=samples[own], **options)
            (gaussians,) = (model.gaussians for model in models)
            slopes = {key: value.grad.clone() for key, value in gaussians.named_parameters() if value.grad is not None}
            summary = StepSummary.of(outputs, DensificationStatistics(len(gaussians)))
            found[name] = summary, step.sample_loss.tolist(), slopes
            assert float(step.terms.total) == pytest.approx(float(step.sample_loss.mean()))
        return outputs

    monkeypatch.setattr(loop, "initial_model", first)
    monkeypatch.setattr(Step, "backward", in_turn)
    train_splats(replace(SHORT, views_per_step=2), scene(), tmp_path, sinks=())

    (one, first_loss, first_slopes) = found["one"]
    (other, second_loss, second_slopes) = found["other"]
    both, losses, mean = found["both"]
    assert mean.keys() == first_slopes.keys() == second_slopes.keys()
    assert all(torch.equal(mean[name], (first_slopes[name] + second_slopes[name]) / 2) for name in mean)
    assert losses == [*first_loss, *second_loss]
    assert float(both.psnr) == pytest.approx((float(one.psnr) + float(other.psnr)) / 2)
    assert set(both.visible.tolist()) == {*one.visible.tolist(), *other.visible.tolist()}
    assert both.statistics is not None
    assert one.statistics is not None
    assert other.statistics is not None
    assert float(both.statistics.gradients.max()) > 0
    assert torch.equal(both.statistics.gradients, one.statistics.gradients + other.statistics.gradients)
    assert torch.equal(both.statistics.radii, torch.maximum(one.statistics.radii, other.statistics.radii))
    assert torch.equal(both.statistics.counts, one.statistics.counts + other.statistics.counts)


def test_more_processes_than_views_are_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    assert main(["train", "splats", "--views-per-step", "2", "--out", str(tmp_path / "run")]) == 2
    assert "--views-per-step 2 is too small" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def trained(folder: Path) -> Any:
    train_splats(SHORT, scene(), folder, sinks=())
    return Checkpoints(folder / "checkpoints").read("last"), read_history(folder)


def test_a_step_that_runs_out_of_memory_equals_one_in_bands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, before = trained(tmp_path / "plain")
    compared = loop.loss_terms
    made = Retry.__call__

    def failing(config: Any, where: Any, one: Any, *further: Any) -> Any:
        terms = compared(config, where, one, *further)
        if one.step == AT and one.bands == 1:
            torch.rand(3)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB (planted)")
        return terms

    def in_two(retry: Retry, work: Any, micro_batches: MicroBatches, *, step: Any, **options: Any) -> Any:
        if step is not None and step.index >= AT and micro_batches.name == "picture":
            micro_batches.count = 2
        return made(retry, work, micro_batches, step=step, **options)

    with monkeypatch.context() as planted:
        planted.setattr(loop, "loss_terms", failing)
        failed, history = trained(tmp_path / "failed")
    with monkeypatch.context() as planted:
        planted.setattr(Retry, "__call__", in_two)
        divided, _ = trained(tmp_path / "divided")

    (event,) = history.events("out_of_memory")
    assert (event["step"], event["what"], event["after"]) == (AT, "picture", 2)
    assert failed["micro_batches"] == divided["micro_batches"] == {"count": 2}
    for item in ("gaussians", "exposures", "changes", "random_state"):
        assert same(failed[item], divided[item]), item
    assert not same(failed["gaussians"], plain["gaussians"])  # different rounding: the comparison is bit-exact
    assert history["Loss/total"].values == pytest.approx(before["Loss/total"].values, rel=1e-4)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else repr(one) == repr(other)
