"""Steps of the splats pipeline on a synthetic scene of any size, which the splats benchmarks time."""

import statistics
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fieldwatch import Terms
from fieldwatch.recon.data import solid_photos
from fieldwatch.recon.pipelines.splats import Gaussians, Rates, make_optimizer
from fieldwatch.recon.pipelines.splats.algorithm import loss_terms
from fieldwatch.recon.pipelines.splats.config import DensificationOptions, Regularization, SplatsConfig, SurfaceOptions
from fieldwatch.recon.pipelines.splats.model import SplatModel, view_of
from fieldwatch.recon.pipelines.splats.neighborhood import Neighborhood
from fieldwatch.recon.pipelines.splats.objective import RenderedView, Span, geometry_outputs, step_psnr
from fieldwatch.recon.pipelines.splats.population import PopulationMonitor
from fieldwatch.recon.pipelines.splats.scene import PhotoView, Scene
from fieldwatch.recon.pipelines.splats.schedule import make_plan
from fieldwatch.recon.pipelines.splats.start import start_run
from fieldwatch.recon.render import DensificationStatistics, RenderOutput

VIEWS = 12
OPACITY = 0.3
"""Fractions of all Gaussians at the start: as in trained models, some are nearly opaque and some faint."""
SAMPLES = 8192
"""Samples of the density terms, as in the prototypes."""
BLOCK = 64
"""Steps of a block with or without instruments; the record is written every 64 steps."""
LONG = 1_000_000
"""Planned steps, more than any benchmark takes."""


@dataclass
class Laps:
    """Seconds of each named part, once per step and part; nested parts count for both."""

    clock: Callable[[], float] = time.thread_time
    seconds: dict[str, list[float]] = field(default_factory=dict)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Time a block."""
        began = self.clock()
        yield
        self.seconds.setdefault(name, []).append(self.clock() - began)

    def milliseconds(self) -> dict[str, float]:
        """Return the median of each part."""
        return {name: 1e3 * statistics.median(values) for name, values in self.seconds.items()}


@dataclass(frozen=True, kw_only=True, eq=False)
class Shown:
    """Values of a step before its update."""

    terms: Terms
    one: RenderedView

    @property
    def drawn(self) -> RenderOutput:
        """The image."""
        return self.one.output

    @property
    def view(self) -> PhotoView:
        """The photo."""
        return self.one.view


class Steps:
    """A model in training, as `fieldwatch train splats` has it between two densifications.

    Args:
        count: number of Gaussians.
        size: width and height of the photos in pixels.
        regularization: regularizer whose surface terms are active from the first step on.
        device: device to train on.
    """

    def __init__(self, count: int, size: int, *, regularization: Regularization = "none", device: str = "cpu") -> None:
        torch.manual_seed(0)
        self.config = SplatsConfig(
            regularization=regularization,
            coarse_iterations=LONG,
            schedule_scale=1.0,
            test_iterations=(),
            checkpoint_interval=0,
            checkpoint_milestones=(),
            growth_options=DensificationOptions(growth="none"),
            surface=SurfaceOptions(surface_from=0, prune_at=1, depth_normal_from=0, samples=SAMPLES),
            degree_every=0,
            device="cuda" if device == "cuda" else "cpu",
        )
        self.scene = made_up(self.config, count, size, torch.device(device))
        photos = self.scene.photos
        gaussians = Gaussians.from_points(photos.points, photos.colors, opacity=OPACITY).to(device)
        self.model = SplatModel(gaussians, self.scene.background)
        self.optimizer = make_optimizer(gaussians, Rates(), self.scene.extent)
        self.statistics = DensificationStatistics(len(gaussians), device)
        self.neighborhood = Neighborhood(self.config.surface.neighbors)
        self.taken = 0

    @property
    def gaussians(self) -> Gaussians:
        """Return the trained tensors."""
        return self.model.gaussians

    def gradients(self, span: Span) -> Shown:
        """Render the next photo, compare, and run backward."""
        config = self.config
        scene = self.scene
        number = self.taken + 1
        self.taken += 1
        with span("data"):
            view = scene.photo_view(scene.photos.train[self.taken % len(scene.photos.train)])
        with span("render"):
            geometry = geometry_outputs(config, scene, number)
            drawn = self.model.render(view.camera, **geometry)
        with span("loss"):
            one = RenderedView(step=number, model=self.model, output=drawn, view=view)
            terms = loss_terms(config, scene, one, self.neighborhood, span)
            total = terms.total
        with span("zero_grad"):
            self.optimizer.zero_grad()
        with span("backward"):
            total.backward()
        with span("statistics"):
            self.statistics.add(drawn, view.camera)
        self.optimizer.visible = drawn.ids  # pyright: ignore[reportAttributeAccessIssue]  VisibleAdam's, ignored by Adam
        return Shown(terms=terms, one=one)

    def take(self, span: Span) -> None:
        """Run one whole step without instruments."""
        self.gradients(span)
        with span("optimizer"):
            self.optimizer.step()


def recorded(steps: Steps, folder: Path, total: int) -> Generator[None, None, None]:
    """Take steps within the pipeline's run; each `next` ends the previous step and takes one."""
    instruments = PopulationMonitor(steps.config, steps.scene, steps.model)
    with start_run(steps.config, steps.scene, folder) as run:
        run.track(groups=steps.model.groups(), data={"photos": steps.scene.photos})
        for step in run.steps(total):
            shown = steps.gradients(step.span)
            step.observe(shown.terms, sample=shown.view.name)
            with step.span("optimizer"):
                step.update(steps.optimizer)
            sizes = {"Model/size": len(steps.gaussians), "Model/work": len(shown.drawn.ids)}
            step.record({**sizes, "Train/PSNR": step_psnr(shown.drawn, shown.view)})
            instruments.after_update(run, step, shown.drawn.ids)
            yield


def made_up(config: SplatsConfig, count: int, size: int, device: torch.device) -> Scene:
    """Return the built-in scene with this many points, photographed at this size, and already decoded."""
    photos = solid_photos(views=VIEWS, size=size, points=count, samples=1, held_out=0)
    for index in range(len(photos)):
        _ = photos[index]
    return Scene(
        photos=photos,
        views=tuple(view_of(camera, device) for camera in photos.cameras),
        device=device,
        background=torch.zeros(3, device=device),
        plan=make_plan(config, None),
        extent=photos.extent,
        cloud=None,
        loaded=None,
        distance=None,
        notes=(),
    )
