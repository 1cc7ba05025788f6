"""Evaluation on held-out photos, and distance of the Gaussians to the true surface if it is known."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch import InputError, preserve_random_state
from fieldwatch.recon.geometry import evenly_spaced
from fieldwatch.recon.losses import Lpips
from fieldwatch.recon.pipelines.splats.exposure import cross_fitted, exposed
from fieldwatch.recon.pipelines.splats.model import SplatModel
from fieldwatch.recon.pipelines.splats.novel_views import Pictures, render_view
from fieldwatch.recon.pipelines.splats.quality import MIN_ERROR, ViewScore, clamped, perceived_difference, score_image
from fieldwatch.recon.pipelines.splats.scene import PhotoView, Scene
from fieldwatch.recon.render import View

WORST_VIEWS = 3
"""Number of views with the lowest PSNR whose images an evaluation keeps."""
TRAINING_VIEWS = 8
"""Maximum number of training photos that are scored in addition to the held-out ones."""
OPAQUE = 0.5
"""Opacity above which a Gaussian counts as part of the surface."""
NEAR_SHARE = 0.01
"""Distance to the surface within which a center counts as on it, as a fraction of the scene's extent."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LowestScoredView:
    """One of the views with the lowest PSNR.

    Attributes:
        index: index of the photo.
        score: scores of the view.
        image: rendered image, RGB in [0, 1], on the host.
    """

    index: int
    score: ViewScore
    image: Float[Tensor, "height width 3"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """Scores of all evaluated views.

    Attributes:
        held_out: whether the views are held-out photos; False if none is held out and training photos were scored.
        rows: scores of the views, in the order of their names.
        gaussians: number of Gaussians.
        mean_color_psnr: mean PSNR of a constant image in the mean color of some training photos, dB: the baseline.
        train_psnr: mean PSNR of some training photos, dB, after their color transforms if they have any; None without
            held-out photos.
        surface: metrics of the distance to the true surface, by tag; empty if it is unknown.
        worst: views with the lowest PSNR, in ascending order.
        sample: color, depth and normals of the first view as pictures.
        sample_name: name of that view's photo.
    """

    held_out: bool
    rows: tuple[ViewScore, ...]
    gaussians: int
    mean_color_psnr: float
    train_psnr: float | None
    surface: dict[str, float]
    worst: tuple[LowestScoredView, ...]
    sample: Pictures
    sample_name: str

    @property
    def score(self) -> float:
        """Score that checkpoints are ranked by: the mean PSNR, dB."""
        return self.metrics["Test/psnr"]

    @property
    def metrics(self) -> dict[str, float]:
        """All applicable metrics by tag. They are means over the views, including PSNR, as in the papers."""
        means = {f"Test/{name}": _mean(self.rows, name) for name in _AVERAGED}
        metrics = {name: value for name, value in means.items() if value is not None}
        # The original tool's name of the same value.
        metrics["Test/loss"] = metrics["Test/l1"]
        metrics["Test/render_time_ms"] = metrics.pop("Test/ms")
        metrics["Test/num_gaussians_K"] = self.gaussians / 1e3
        metrics["Baseline/Test/psnr"] = self.mean_color_psnr
        if self.train_psnr is not None:
            gap = self.train_psnr - metrics["Test/psnr"]
            metrics |= {"Test/train_psnr": self.train_psnr, "Test/psnr_gap": gap}
        return metrics | self.surface


_AVERAGED = ("psnr", "ssim", "l1", "lpips", "ms", "psnr_as_drawn", "psnr_fitted", "ssim_fitted")


@torch.no_grad()
def evaluate(  # noqa: PLR0913  independent options of an evaluation
    model: SplatModel,
    scene: Scene,
    *,
    degree: int | None = None,
    lpips: Lpips | None = None,
    bands: int = 1,
    between: Callable[[], object] = lambda: None,
) -> Evaluation:
    """Render and score every held-out photo, or every training photo if none is held out.

    The random state and the model are not modified.

    Args:
        model: model to evaluate.
        scene: scene with its photos. Photos whose mask excludes every pixel are skipped.
        degree: SH degree; None uses the full degree.
        lpips: LPIPS network, moved to the training device during the call; None skips LPIPS.
        bands: number of bands in which images are rendered.
        between: function called before each view; it may raise to abort the evaluation.

    Raises:
        PhotoError: A photo cannot be read.
        InputError: The masks exclude every pixel of every photo.
    """
    indices = scene.photos.test or scene.photos.train
    scores: list[ViewScore] = []
    constants: list[float] = []
    worst: list[LowestScoredView] = []
    color = _mean_color(scene)
    # Otherwise the random numbers of training would depend on when and how often it is evaluated.
    with preserve_random_state(), _on_device(lpips, scene.device):
        # Warm-up: allocations and compilation of the first rendering must not count as render time.
        model.render(scene.views[indices[0]], degree=degree, bands=bands)
        for view in _photo_views(scene, indices):
            between()
            image, milliseconds = _timed(model, view.camera, degree, bands)
            score, scored_image = _score_view(model, image, view, milliseconds, lpips)
            scores.append(score)
            constants.append(_constant_psnr(color, view))
            worst.append(LowestScoredView(index=view.index, score=score, image=scored_image.cpu()))
            # Truncated after every view, so that memory does not grow with the number of held-out photos.
            worst = sorted(worst, key=lambda each: each.score.psnr)[:WORST_VIEWS]
        if not scores:
            raise InputError(
                f"the masks of all {len(indices)} photos to be evaluated are black, which excludes every pixel: fix "
                "the masks (white pixels are used, black ones are not) or hold out other photos"
            )
        # The first view that was scored: photos whose mask excludes every pixel are skipped.
        sample = scene.photos.names.index(scores[0].name)
        return Evaluation(
            held_out=bool(scene.photos.test),
            rows=tuple(scores),
            gaussians=len(model.gaussians),
            mean_color_psnr=sum(constants) / len(constants),
            train_psnr=_training_psnr(model, scene, degree, bands, between) if scene.photos.test else None,
            surface=surface_metrics(model, scene),
            worst=tuple(worst),
            sample=render_view(model, scene.views[sample], degree=degree, bands=bands),
            sample_name=scores[0].name,
        )


@torch.no_grad()
def surface_metrics(model: SplatModel, scene: Scene) -> dict[str, float]:
    """Return metrics of the distance of opaque Gaussians' centers to the true surface; empty if it is unknown."""
    centers = model.gaussians.means.detach()[model.shapes()[1] > OPAQUE]
    if scene.distance is None or not len(centers):
        return {}
    distances = scene.distance(centers).abs()
    near = (distances < NEAR_SHARE * scene.extent).to(distances)
    names = ("mean_distance", "median_distance", "within_1_percent")
    values = torch.stack([distances.mean(), distances.median(), near.mean()]).tolist()
    return {f"Surface/{name}": value for name, value in zip(names, values, strict=True)}


def _score_view(
    model: SplatModel, image: Float[Tensor, "height width 3"], view: PhotoView, milliseconds: float, lpips: Lpips | None
) -> tuple[ViewScore, Float[Tensor, "height width 3"]]:
    """Return the scores of a view and the scored image, which is under the photo's expected color transform.

    For a held-out photo, this is the mean transform of its neighbors by name; none of its pixels is used.
    """
    exposed_image = clamped(image)
    as_drawn = None
    fitted = None
    if model.exposures is not None:
        counted = None if view.mask is None else view.mask[..., 0] > 0
        as_drawn = score_image(exposed_image, view).psnr
        fitted = score_image(clamped(cross_fitted(image, view.image, counted)), view)
        train_index = view.train_index
        exposures = model.exposures
        expected = exposures.between(view.name) if train_index is None else exposures.map_of(train_index)
        # Clamped after the transform, as a photo is clipped after its exposure.
        exposed_image = clamped(exposed(image, expected))
    score = score_image(exposed_image, view)
    view_score = ViewScore(
        name=view.name,
        psnr=score.psnr,
        ssim=score.ssim,
        l1=score.l1,
        lpips=None if lpips is None else perceived_difference(lpips, exposed_image, view),
        ms=milliseconds,
        psnr_as_drawn=as_drawn,
        psnr_fitted=None if fitted is None else fitted.psnr,
        ssim_fitted=None if fitted is None else fitted.ssim,
    )
    return view_score, exposed_image


def _training_psnr(
    model: SplatModel, scene: Scene, degree: int | None, bands: int, between: Callable[[], object]
) -> float | None:
    """Return the mean PSNR of evenly spaced training photos, after their color transforms."""
    train = scene.photos.train
    psnrs: list[float] = []
    for view in _photo_views(scene, _some_training_photos(scene)):
        between()
        # Not timed, unlike the held-out views.
        image = model.render(view.camera, degree=degree, bands=bands).features
        exposed_image = image if model.exposures is None else model.exposures(image, train.index(view.index))
        psnrs.append(score_image(clamped(exposed_image), view).psnr)
    return sum(psnrs) / len(psnrs) if psnrs else None


def _some_training_photos(scene: Scene) -> list[int]:
    """Return the indices of training photos, evenly spaced, so that all parts of a capture are represented."""
    return evenly_spaced(scene.photos.train, TRAINING_VIEWS)


def _mean_color(scene: Scene) -> Float[Tensor, "3"]:
    """Return the mean color of some training photos over their unmasked pixels."""
    means: list[Tensor] = []
    for view in _photo_views(scene, _some_training_photos(scene)):
        weight = torch.ones_like(view.image[..., :1]) if view.mask is None else view.mask.to(view.image)
        means.append((view.image * weight).sum(dim=(0, 1)) / weight.sum())
    # Black if the masks exclude every pixel of the training photos.
    return torch.stack(means).mean(dim=0) if means else torch.zeros(3)


def _constant_psnr(color: Float[Tensor, "3"], view: PhotoView) -> float:
    """Return the PSNR of an image that has the same color everywhere, in dB."""
    error = (view.image - color.to(view.image)).square()
    # The mask has one channel, the image three.
    mean = error.mean() if view.mask is None else (error * view.mask).sum() / (3 * view.mask.sum())
    return float(-10 * mean.clamp_min(MIN_ERROR).log10())


def _photo_views(scene: Scene, indices: Sequence[int]) -> Iterator[PhotoView]:
    """Yield the photos whose mask leaves at least one pixel."""
    for index in indices:
        view = scene.photo_view(index)
        if view.mask is None or bool(view.mask.any()):
            yield view


def _timed(
    model: SplatModel, view: View, degree: int | None, bands: int
) -> tuple[Float[Tensor, "height width 3"], float]:
    """Return the rendered image and its render time, milliseconds."""
    device = model.background.device
    _wait_for(device)  # kernels of earlier calls may still be running
    start = time.perf_counter()
    image = model.render(view, degree=degree, bands=bands).features
    _wait_for(device)
    return image, (time.perf_counter() - start) * 1e3


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def _on_device(lpips: Lpips | None, device: torch.device) -> Iterator[None]:
    """Keep the network on the training device only during the block: it takes 56 MB that training needs."""
    if lpips is None:
        yield
        return
    lpips.to(device)
    try:
        yield
    finally:
        lpips.to("cpu")


def _mean(rows: Sequence[ViewScore], name: str) -> float | None:
    values = [value for row in rows if (value := getattr(row, name)) is not None]
    return sum(values) / len(values) if values else None
