"""Fits of a small scene from its points: adaptive densification, MCMC, and a bit-exact resume during densification."""

import copy
import math
from dataclasses import dataclass, field

import pytest
import torch

from fieldwatch.recon.data import solid_photos
from fieldwatch.recon.pipelines.splats import Gaussians, Rates, make_optimizer
from fieldwatch.recon.pipelines.splats.densification import (
    DensificationSchedule,
    DensificationThresholds,
    McmcOptions,
    add_sgld_noise,
    densify,
    mean_opacity,
    mean_scale,
    prune_opacity,
    relocate_and_add,
    reset_opacity,
)
from fieldwatch.recon.render import DensificationStatistics, View, rasterize

PHOTOS = solid_photos(views=8, size=48, held_out=0, points=250)
RATES = Rates(decay_steps=150)


def view_and_image(index):
    photo = PHOTOS[index]
    camera = PHOTOS.cameras[index]
    lens = {name: getattr(camera, name) for name in ("fx", "fy", "cx", "cy", "width", "height")}
    return View(camera_from_world=camera.camera_from_world.float(), **lens), photo.image.float() / 255


VIEWS = [view_and_image(index) for index in range(8)]


def started():
    return Gaussians.from_points(PHOTOS.points, PHOTOS.colors, degree=1)


def render(gaussians, view, degree):
    parts = (gaussians.means, gaussians.quaternions, gaussians.scales, gaussians.opacities)
    return rasterize(*parts, view, spherical_harmonics=gaussians.harmonics, sh_degree=degree)


@torch.no_grad()
def psnr(gaussians):
    errors = [(render(gaussians, view, gaussians.degree).features - image).square().mean() for view, image in VIEWS]
    return -10 * math.log10(torch.stack(errors).mean())


@dataclass
class Fit:
    """A training loop as a user would write it."""

    mcmc: McmcOptions | None = None
    schedule: DensificationSchedule = field(
        default_factory=lambda: DensificationSchedule(first=20, last=100, every=20, reset_every=0)
    )
    records: list = field(default_factory=list)

    def __post_init__(self):
        self.gaussians = started()
        self.optimizer = make_optimizer(self.gaussians, RATES, PHOTOS.extent)
        self.statistics = DensificationStatistics(len(self.gaussians))
        self.generator = torch.Generator().manual_seed(1)

    def state(self):
        parts = {name: getattr(self, name).state_dict() for name in ("gaussians", "optimizer", "statistics")}
        return copy.deepcopy(parts | {"generator": self.generator.get_state()})

    def restore(self, state):
        for name in ("gaussians", "optimizer", "statistics"):
            getattr(self, name).load_state_dict(state[name])
        self.generator.set_state(state["generator"])

    def steps(self, first, last):
        for step in range(first, last):
            view, image = VIEWS[step * 5 % 8]
            rate = RATES.apply(self.optimizer, step, PHOTOS.extent)
            output = render(self.gaussians, view, self.gaussians.degree_at(step, 50))
            loss = (output.features - image).abs().mean()
            if self.mcmc is not None:
                loss = loss + self.mcmc.opacity_weight * mean_opacity(self.gaussians)
                loss = loss + self.mcmc.scale_weight * mean_scale(self.gaussians)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.visible = output.ids
            self.optimizer.step()
            self.statistics.add(output, view)
            self.densify(step, rate)
        return self

    def densify(self, step, rate):
        if self.mcmc is not None:
            add_sgld_noise(self.gaussians, self.mcmc, rate, self.generator)
            if self.schedule.densifies_after(step):
                self.records.append(relocate_and_add(self.gaussians, self.mcmc, generator=self.generator))
                self.statistics = DensificationStatistics(len(self.gaussians))
        elif self.schedule.densifies_after(step):
            thresholds = DensificationThresholds(gradient=2e-4, split_above=0.02, cap=900)
            facts = {"step": step, "reference_length": PHOTOS.extent, "generator": self.generator}
            self.records.append(densify(self.gaussians, self.statistics, thresholds, **facts))
        if self.schedule.resets_after(step):
            reset_opacity(self.gaussians, 0.1)


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_growth_fits_the_scene_better_than_it_starts_and_than_without():
    start = psnr(started())
    fit = Fit().steps(0, 150)
    still = Fit(schedule=DensificationSchedule(first=1000, last=1000)).steps(0, 150)
    assert psnr(fit.gaussians) > start + 6
    assert psnr(fit.gaussians) > psnr(still.gaussians) + 0.5
    assert len(fit.records) == 5
    assert 250 < fit.records[-1].after == len(fit.gaussians) <= 900
    assert all(a.after == b.before for a, b in zip(fit.records, fit.records[1:], strict=False))
    assert sum(record.cloned for record in fit.records) > 0
    assert sum(record.split for record in fit.records) > 0


def test_sampling_fits_the_scene_better_than_it_starts():
    start = psnr(started())
    fit = Fit(McmcOptions(cap=900, share=0.3)).steps(0, 150)
    assert len(fit.gaussians) == 900
    assert [record.drawn for record in fit.records] == [75, 97, 126, 164, 188]
    assert psnr(fit.gaussians) > start + 4.5


@pytest.mark.parametrize("mcmc", [None, McmcOptions(cap=400)])
def test_a_run_continued_in_mid_growth_is_the_same_bit_by_bit(mcmc):
    schedule = DensificationSchedule(first=10, last=60, every=10, reset_every=30)
    whole = Fit(mcmc, schedule).steps(0, 36)
    stored = whole.state()
    whole.steps(36, 60)
    continued = Fit(mcmc, schedule)
    continued.restore(stored)
    continued.steps(36, 60)
    assert len(continued.gaussians) == len(whole.gaussians) > 250
    assert same(whole.gaussians, continued.gaussians)
    again = Fit(mcmc, schedule).steps(0, 60)
    assert same(whole.gaussians, again.gaussians)


def test_training_goes_on_after_the_prune_of_sugar():
    fit = Fit().steps(0, 30)
    before = len(fit.gaussians)
    kept = prune_opacity(fit.gaussians, 0.12, fit.statistics)
    assert 0 < len(kept) == len(fit.gaussians) < before
    fit.steps(30, 45)
    fit.gaussians.refuse_not_finite()
