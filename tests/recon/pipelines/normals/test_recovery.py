"""A lost surface: the grid is rebuilt, the run is rolled back or stops; a healthy run is left alone."""

import math
from functools import partial

import pytest
import torch

from fieldwatch import Diverged, Outputs, Run, Saving, Terms
from fieldwatch.recon.pipelines.normals.config import (
    FieldOptions,
    NormalsConfig,
    NormalsRateOptions,
    RecoveryOptions,
    RenderOptions,
)
from fieldwatch.recon.pipelines.normals.learning import NormalsOptimizers
from fieldwatch.recon.pipelines.normals.model import NormalsModel
from fieldwatch.recon.pipelines.normals.recovery import Recovery
from fieldwatch.recon.pipelines.normals.rendering import march_samples
from fieldwatch.recon.pipelines.normals.schedule import NormalsSchedule
from fieldwatch.recon.render import BoundedRays
from fieldwatch.record import read_events, read_history

PATIENCE = 3
EVERY = 4
FAULT = 9
"""Step of the fault: a good state was taken after 4 and after 8 steps."""
BEFORE = 7
"""Last step of that state."""
TOTAL = 40


def settings(*, grid_every=4, first_sharpness=20.0, **recovery):
    return NormalsConfig(
        steps=TOTAL,
        stages=("fit@0 mask=1",),
        sdf=FieldOptions(levels=2, base_resolution=4, finest_resolution=8, table_bits=8, hidden=8, levels_by=0),
        rendering=RenderOptions(
            grid_resolution=8,
            grid_every=grid_every,
            grid_warmup=8,
            sharpness="scheduled",
            first_sharpness=first_sharpness,
        ),
        rates=NormalsRateOptions(lr=2e-3, lr_table=1e-2, warm_up=0, last_share=1.0),
        recovery=RecoveryOptions(**{"collapse_patience": PATIENCE, "good_every": EVERY} | recovery),
    )


class Fit:
    """Fits a field to a sphere of radius 0.45 at random points; rays to the center measure starvation."""

    def __init__(self, config):
        torch.manual_seed(0)
        self.model = NormalsModel(config, torch.eye(4, dtype=torch.float64)[None])
        self.learning = NormalsOptimizers(config, self.model, NormalsSchedule(config=config))
        self.recovery = Recovery(config.recovery, self.model, self.learning, config.recovery.good_every)
        self.random = torch.Generator().manual_seed(1)
        self.losses = []
        self.starved = []
        self.after = {}
        directions = torch.nn.functional.normalize(torch.randn(16, 3, generator=self.random), dim=-1)
        self.rays = BoundedRays.in_sphere(-3 * directions, directions, 0.999)

    def state_dict(self):
        return {"random": self.random.get_state()}

    def load_state_dict(self, state):
        self.random.set_state(state["random"])

    def terms(self, index, poison):
        points = 0.55 * torch.rand(64, 3, generator=self.random) * torch.tensor([1.0, -1.0, 1.0])
        error = (self.model.sdf(points) - (points.norm(dim=-1) - 0.45)).square().mean()
        return Terms(mask=(1.0, error * (math.nan if index in poison else 1.0)))

    def parameters(self):
        return torch.cat([one.detach().flatten().clone() for one in self.model.parameters()])


def no_fault(fit, index):
    """Leave the run alone."""


def train(folder, config, fault=no_fault, *, poison=(), until=TOTAL, every=None):
    fit = Fit(config)
    model = fit.model
    with Run(
        folder, config=config, saving=Saving(every=every), outputs=Outputs(sinks=(), rules=(), detail_every=99)
    ) as run:
        run.track(model=model, **fit.learning.optimizers(), rays=fit, recovery=fit.recovery, groups=model.groups())
        run.resume()
        for step in run.steps(until):
            fit.learning.prepare(step.index)
            model.grid.update(step.index, model.sdf, float(model.deviation()))
            fault(fit, step.index)
            terms = step.backward(partial(fit.terms, poison=poison), step.index)
            fit.after[step.index, "before"] = fit.parameters()
            step.update(*fit.learning.active(step.index))
            starved = (march_samples(model, fit.rays, 0.05).counts == 0).float().mean()
            fit.recovery.after_update(run, step, starved=float(starved))
            fit.after[step.index] = fit.parameters()
            fit.losses.append(float(terms.total))
            fit.starved.append(float(starved))
    return fit


def events(folder, *kinds):
    return [(event["kind"], event["step"]) for event in read_events(folder) if event["kind"] in kinds]


def answers(folder):
    return events(folder, "grid_rebuilt", "rolled_back", "grid_saturated")


def set_grid(model, value):
    state = model.grid.state_dict()
    state["values"].fill_(value)
    state["occupied"].fill_(value > 0)
    model.grid.load_state_dict(state)


def push(fit, by):
    with torch.no_grad():
        fit.model.sdf.last.bias += by


def test_a_run_without_faults_is_left_alone_and_leaves_its_tags(tmp_path):
    fit = train(tmp_path, settings(), until=2 * EVERY)
    assert answers(tmp_path) == []
    state = fit.recovery.state_dict()
    assert (state["counts"]["good_step"], state["factor"]) == (2 * EVERY, 1.0)
    history = read_history(tmp_path)
    assert history["Recovery/rebuilds"].values.tolist() == [0] * 2 * EVERY
    assert history["Recovery/rate_factor"].values.tolist() == [1] * 2 * EVERY


def test_a_grid_that_is_forced_empty_is_made_anew_and_the_loss_goes_on_falling(tmp_path):
    config = settings(grid_every=8)  # the next update would begin to fill it by itself
    fit = train(tmp_path, config, lambda fit, index: index == FAULT and set_grid(fit.model, 0.0), until=18)
    at = answers(tmp_path)
    assert [kind for kind, _ in at] == ["grid_rebuilt"]
    assert at[0][1] <= FAULT + PATIENCE
    assert fit.starved[FAULT] == 1.0
    assert max(fit.starved[at[0][1] + 1 :]) == 0.0
    assert sum(fit.losses[-4:]) < 0.8 * sum(fit.losses[FAULT - 4 : FAULT])
    assert fit.recovery.total == {"rebuilds": 1, "rollbacks": 0}


def test_a_grid_that_is_forced_full_is_told_once_and_made_anew(tmp_path):
    def fault(fit, index):
        if index in (FAULT, FAULT + 5):
            set_grid(fit.model, 1.0)

    train(tmp_path, settings(), fault, until=20)
    at = answers(tmp_path)
    assert [kind for kind, _ in at] == ["grid_saturated", "grid_rebuilt", "grid_rebuilt"]
    assert at[1][1] <= FAULT + 4
    occupied = [event["after"] for event in read_events(tmp_path) if event["kind"] == "grid_rebuilt"]
    assert max(occupied) < 0.5


@pytest.mark.parametrize(("by", "meaning"), [(1.0, "can hold the surface"), (-3.0, "outside of the surface")])
def test_a_field_without_a_surface_goes_back_to_the_last_good_state_at_half_the_rate(tmp_path, by, meaning):
    fit = train(tmp_path, settings(), lambda fit, index: index == FAULT and push(fit, by), until=20)
    rebuilt, back = (event for event in read_events(tmp_path) if event["kind"] in ("grid_rebuilt", "rolled_back"))
    assert not rebuilt["mended"]
    assert meaning in back["cause"]
    assert (back["from"], back["to"], back["rate_factor"]) == (back["step"] + 1, BEFORE + 1, 0.5)
    assert back["step"] <= FAULT + PATIENCE
    assert torch.equal(fit.after[back["step"]], fit.after[BEFORE])
    assert fit.learning.rate_factor == 1.0  # a new good state since, and the rates are whole again
    assert fit.starved[-1] == 0.0
    assert sum(fit.losses[-3:]) < sum(fit.losses[BEFORE - 2 : BEFORE + 1])


def test_a_surface_that_is_lost_again_and_again_stops_the_run_with_a_diagnosis(tmp_path):
    with pytest.raises(Diverged) as stopped:
        train(tmp_path, settings(), lambda fit, index: index >= FAULT and push(fit, 2.0))
    assert [kind for kind, _ in answers(tmp_path)].count("rolled_back") == 3
    words = str(stopped.value)
    for part in ("positive everywhere, the surface is gone", "0.0% of it inside", "3 rollbacks", "0.125", "doctor"):
        assert part in words
    assert stopped.value.step < FAULT + 6 * PATIENCE
    with pytest.raises(Diverged, match="negative everywhere"):
        train(tmp_path / "other", settings(rollbacks=0), lambda fit, index: index >= FAULT and push(fit, -4.0))


def test_a_nan_batch_changes_nothing_and_training_goes_on(tmp_path):
    fit = train(tmp_path, settings(), poison={FAULT}, until=FAULT + 3)
    assert torch.equal(fit.after[FAULT], fit.after[FAULT, "before"])
    assert not torch.equal(fit.after[FAULT + 1], fit.after[FAULT])
    assert answers(tmp_path) == []
    assert events(tmp_path, "refusal") == [("refusal", FAULT)]


def test_updates_that_are_refused_in_a_row_go_back(tmp_path):
    fit = train(tmp_path, settings(), poison=set(range(FAULT, FAULT + 6)), until=17)
    ((kind, step),) = answers(tmp_path)
    assert (kind, step) == ("rolled_back", 14)
    assert torch.equal(fit.after[14], fit.after[BEFORE])
    assert "refused" in next(event["cause"] for event in read_events(tmp_path) if event["kind"] == kind)


def test_a_loss_that_has_jumped_for_long_goes_back(tmp_path):
    def fault(fit, index):  # the surface is still there, so the grid sees nothing
        if index == 34:
            push(fit, 0.3)

    fit = train(tmp_path, settings(), fault, until=TOTAL)
    back = [event for event in read_events(tmp_path) if event["kind"] == "rolled_back"]
    assert [event["step"] for event in back] == [39]
    assert "usual value" in back[0]["cause"]
    assert fit.losses[35] > 10 * fit.losses[33]


def test_rays_that_never_had_samples_are_no_collapse(tmp_path):
    """An object larger than the initial sphere of a training."""

    def fault(fit, index):
        if index == 0:
            fit.rays = BoundedRays.in_sphere(fit.rays.origins + 0.0, _aside(fit.rays.directions), 0.999)

    fit = train(tmp_path, settings(first_sharpness=80.0), fault, until=10)
    assert min(fit.starved) > 0.5
    assert answers(tmp_path) == []


def _aside(directions):
    """Directions that pass the initial sphere, inside the scene's sphere."""
    across = torch.linalg.cross(directions, torch.tensor([[0.3, 0.5, 0.8]]).expand_as(directions))
    return torch.nn.functional.normalize(directions + 0.33 * torch.nn.functional.normalize(across, dim=-1), dim=-1)


def test_a_run_that_is_cut_in_the_midst_of_trouble_goes_on_to_the_very_same_bits(tmp_path):
    def fault(fit, index):
        if index in (FAULT, 14):
            push(fit, 1.0)

    whole = train(tmp_path / "whole", settings(), fault, until=20)
    for cut in (FAULT + 2, 15):
        train(tmp_path / "cut", settings(), fault, until=cut)
    resumed = train(tmp_path / "cut", settings(), fault, until=20)
    assert len(resumed.losses) == 20 - 15
    assert answers(tmp_path / "cut") == answers(tmp_path / "whole")
    assert [kind for kind, _ in answers(tmp_path / "whole")].count("rolled_back") == 2
    assert torch.equal(resumed.parameters(), whole.parameters())
    assert torch.equal(resumed.model.grid.values, whole.model.grid.values)
    assert resumed.learning.rate_factor == whole.learning.rate_factor == 0.25


def test_the_state_that_was_kept_is_not_written_into_by_what_follows(tmp_path):
    fit = train(tmp_path, settings(), until=EVERY + 2)
    good = fit.recovery.state_dict()["good"]["model"]
    assert not torch.equal(good["sdf.encoding.table"], fit.model.sdf.encoding.table)
