"""``fieldwatch growth``: on a run that really grew, and on what is no such run."""

import csv

import pytest
import torch

from fieldwatch import Outputs, Run, Saving, Shuffled, Terms
from fieldwatch.recon.data import solid_photos
from fieldwatch.recon.pipelines.splats import Gaussians, Rates, make_optimizer
from fieldwatch.recon.pipelines.splats.densification import (
    DensificationSchedule,
    DensificationThresholds,
    densify,
    prune_opacity,
    reset_opacity,
)
from fieldwatch.recon.render import DensificationStatistics, View, image_similarity, rasterize

STEPS = 90
PRUNE = 70


@pytest.fixture(scope="session")
def grown(tmp_path_factory):
    """A short run from the parts: it grows at updates 20, 40 and 60, resets at 40, prunes after step 70."""
    folder = tmp_path_factory.mktemp("runs") / "grown"
    torch.manual_seed(0)
    photos = solid_photos(views=6, size=24, points=150)
    names = ("fx", "fy", "cx", "cy", "width", "height")
    views = [
        View(camera_from_world=camera.camera_from_world.float(), **{name: getattr(camera, name) for name in names})
        for camera in photos.cameras
    ]
    schedule = DensificationSchedule(first=20, last=60, every=20, reset_every=40)
    gaussians = Gaussians.from_points(photos.points, photos.colors, degree=0)
    optimizer = make_optimizer(gaussians, Rates(), photos.extent)
    statistics = DensificationStatistics(len(gaussians))
    order = Shuffled(len(photos.train), 1, seed=0)
    with Run(folder, saving=Saving(every=None), outputs=Outputs(rules=(), sinks=())) as run:
        run.track(groups=gaussians.groups())
        for step in run.steps(STEPS):
            number = photos.train[int(next(order))]
            parts = (gaussians.means, gaussians.quaternions, gaussians.scales, gaussians.opacities)
            drawn = rasterize(*parts, views[number], spherical_harmonics=gaussians.harmonics, sh_degree=0)
            image = photos[number].image.float() / 255
            alike = image_similarity(drawn.features, image)
            squares = (drawn.features.detach() - image).square()
            terms = Terms(rendering=(1.0, 0.8 * alike.l1 + 0.2 * (1 - alike.ssim)))
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms, sample=photos.names[number])
            statistics.add(drawn, views[number])
            optimizer.visible = drawn.ids
            step.update(optimizer)
            step.record({"Model/size": len(gaussians), "Train/PSNR": -10 * squares.mean().log10()})
            if schedule.densifies_after(step.index):
                made = densify(
                    gaussians,
                    statistics,
                    DensificationThresholds(cap=300),
                    step=step.index,
                    reference_length=photos.extent,
                )
                run.event("growth", **made.facts(schedule.last_step))
            if schedule.resets_after(step.index):
                run.event("reset", lowered=reset_opacity(gaussians))
            if step.index == PRUNE:
                before = len(gaussians)
                prune_opacity(gaussians, 0.012, statistics)
                run.event("prune", before=before, after=len(gaussians), removed=before - len(gaussians), below=0.012)
    return folder


def test_every_growth_reset_and_prune_is_listed_with_what_it_did(fieldwatch, answer, grown, tmp_path):
    table = tmp_path / "growth.csv"
    code, out, message = fieldwatch("growth", grown, "--csv", table)
    assert (code, message) == (0, "")
    assert "5 events" in out
    assert "3 growth steps, 1 prune, 1 reset" in out
    assert str(table) in out
    assert str(grown / "events.jsonl") in out
    with table.open(newline="") as file:
        assert [row["kind"] for row in csv.DictReader(file)] == ["growth", "growth", "reset", "growth", "prune"]
    events = answer("growth", grown)["events"]
    assert [event["step"] for event in events] == [19, 39, 39, 59, PRUNE]
    assert events[2]["psnr_change"] < -3
    assert events[0]["after"] == events[1]["before"] > events[0]["before"]
    assert events[4]["removed"] == events[4]["before"] - events[4]["after"] > 0


def test_the_table_fits_eighty_columns(fieldwatch, grown, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = fieldwatch("growth", grown)
    table = out[: out.index("  events ")].splitlines()[1:]
    assert max(map(len, table)) <= 80


def test_a_run_without_growth_is_no_error(fieldwatch, answer, tmp_path):
    weight = torch.nn.Parameter(torch.zeros(1))
    with Run(tmp_path / "run", saving=Saving(every=None), outputs=Outputs(rules=(), sinks=())) as run:
        run.track(groups={"weight": [weight]})
        for step in run.steps(2):
            step.observe(Terms(one=(1.0, weight.sum())))
    code, out, _ = fieldwatch("growth", tmp_path / "run")
    assert code == 0
    assert "no densification" in out
    assert answer("growth", tmp_path / "run")["events"] == []


def test_what_is_no_run_or_cannot_be_written_is_bad_input(refused, grown, tmp_path):
    assert "holds no run" in refused("growth", tmp_path)
    assert "directory" in refused("growth", grown, "--csv", tmp_path).lower()
