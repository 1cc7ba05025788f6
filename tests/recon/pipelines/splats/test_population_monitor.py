"""Population monitor: what is recorded at which step, on a real run of a tiny scene."""

import pytest
import torch

from fieldwatch import Declared, Outputs, Run, Saving, Terms
from fieldwatch.recon.data import solid_photos
from fieldwatch.recon.pipelines.splats import Gaussians
from fieldwatch.recon.pipelines.splats.config import SplatsConfig
from fieldwatch.recon.pipelines.splats.model import SplatModel, view_of
from fieldwatch.recon.pipelines.splats.population import PopulationMonitor
from fieldwatch.recon.pipelines.splats.scene import Scene
from fieldwatch.recon.pipelines.splats.schedule import make_plan
from fieldwatch.recon.pipelines.splats.tags import SPLATS_METRICS
from fieldwatch.record import TOOLKIT, Catalogue, read_history

CONFIG = SplatsConfig(coarse_iterations=40, regularization="none", schedule_scale=1.0, stats_every=10)


class RecordingSink:
    """A sink that stores texts and histograms."""

    def __init__(self):
        self.names = []
        self.held = {}

    def __call__(self, block):
        pass

    def text(self, name, position, markdown):
        self.names.append((name, position))
        self.held[name] = markdown

    def histogram(self, name, position, values):
        self.names.append((name, position))
        self.held[name] = values


@pytest.fixture(scope="module")
def scene():
    photos = solid_photos(views=4, size=16, points=60, held_out=0)
    device = torch.device("cpu")
    return Scene(
        photos=photos,
        views=tuple(view_of(camera, device) for camera in photos.cameras),
        device=device,
        background=torch.zeros(3),
        plan=make_plan(CONFIG, None),
        extent=photos.extent,
        cloud=None,
        loaded=None,
        distance=None,
        notes=(),
    )


@pytest.fixture
def model(scene):
    gaussians = Gaussians.from_points(scene.photos.points, scene.photos.colors, degree=1)
    return SplatModel(gaussians, scene.background)


def run_monitored(folder, scene, model, *, restart=None, sampled_from=None):
    """Run forty steps without training; return the history, the sink and the monitor."""
    monitor = PopulationMonitor(CONFIG, scene, model)
    sink = RecordingSink()
    catalogue = Catalogue((*TOOLKIT, *SPLATS_METRICS))
    with Run(
        folder,
        saving=Saving(every=None),
        declared=Declared(metrics=catalogue),
        outputs=Outputs(rules=(), sinks=(sink,)),
    ) as run:
        run.track(groups=model.groups())
        for step in run.steps(40):
            output = model.render(scene.views[step.index % 4])
            step.observe(Terms(rendering=(1.0, output.features.mean())))
            sampled = sampled_from is not None and step.index >= sampled_from
            monitor.after_update(run, step, output.ids, sampled=sampled)
            if step.index == restart:
                monitor.rows_changed()
    return read_history(folder), sink, monitor


def steps_of(history, name):
    return history[name].steps.tolist() if name in history else []


def test_it_looks_at_the_first_step_and_at_every_tenth(tmp_path, scene, model):
    history, recorded, _ = run_monitored(tmp_path / "run", scene, model)
    every = [0, 9, 19, 29, 39]
    for name in ("Stats/points_mean", "Population/giant", "System/RAM_percent", "Stats/n_active_gaussians"):
        assert steps_of(history, name) == every
    assert steps_of(history, "Performance/eta_minutes") == every[1:]
    assert steps_of(history, "Stats/sh_rest_std") == steps_of(history, "Population/non_finite") == [0]
    assert steps_of(history, "Population/never_visible") == every[1:]
    assert "Stats/n_gaussians_sdf_sampling" not in history
    own = [(name, step) for name, step in recorded.names if name != "Guide/metrics"]
    assert own == [("Training_Guide", 0), ("Histograms/scales", 0), ("Histograms/opacities", 0)]
    assert recorded.held["Training_Guide"].startswith("# Steps 0 to 39")
    assert recorded.held["Histograms/scales"].shape == (len(model.gaussians), 3)


def test_after_growth_nothing_is_said_of_the_unseen_for_two_rounds(tmp_path, scene, model):
    history, _, _ = run_monitored(tmp_path / "run", scene, model, restart=15)
    assert steps_of(history, "Population/never_visible") == [9, 29, 39]


def test_the_samples_come_from_what_the_step_showed(tmp_path, scene, model):
    history, _, _ = run_monitored(tmp_path / "run", scene, model, sampled_from=20)
    assert steps_of(history, "Stats/n_gaussians_sdf_sampling") == [29, 39]
    visible = history["Population/visible"].values[-1] * len(model.gaussians)
    assert history["Stats/n_gaussians_sdf_sampling"].values[-1] == pytest.approx(visible)


def test_a_checkpoint_carries_it_on(tmp_path, scene, model):
    _, _, monitor = run_monitored(tmp_path / "run", scene, model)
    later = PopulationMonitor(CONFIG, scene, model)
    later.load_state_dict(monitor.state_dict())
    assert later.state_dict()["now"] == 39
    assert torch.equal(later.state_dict()["steps"], monitor.state_dict()["steps"])
