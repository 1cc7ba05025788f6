"""Products of a trained splats run: a point cloud for viewers, renders, geometry, a turntable video, SuGaR's files."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from fieldwatch.files import output_names, output_path
from fieldwatch.recon.data import open_splat_folder, write_gaussian_ply, write_point_ply, write_splat_folder
from fieldwatch.recon.geometry import evenly_spaced
from fieldwatch.recon.pipelines.splats.coarse_file import fused_cloud, write_coarse_file
from fieldwatch.recon.pipelines.splats.config import SplatsConfig
from fieldwatch.recon.pipelines.splats.model import SplatModel
from fieldwatch.recon.pipelines.splats.novel_views import render_path, render_view, save_picture, turntable_views
from fieldwatch.recon.pipelines.splats.pictures import COMPARED, as_picture, error_picture, sheet, strip
from fieldwatch.recon.pipelines.splats.quality import clamped, score_image
from fieldwatch.recon.pipelines.splats.scene import PhotoView, Scene
from fieldwatch.recon.pipelines.splats.start import BUILT_IN

RATE = 24.0
"""Frames per second of the turntable video."""
GEOMETRY_VIEWS = 4
"""Number of test views whose depth and normals are rendered."""


def write_products(  # noqa: PLR0913  the model, the folder, and the contents of its files
    model: SplatModel,
    scene: Scene,
    folder: Path,
    *,
    iteration: int,
    turntable: float = 4.0,
    losses: Sequence[float] = (),
    optimizer: Optimizer | None = None,
    between: Callable[[], object] = lambda: None,
    bands: int = 1,
) -> Mapping[str, Path]:
    """Write all products of a finished run and return their paths by name.

    `point_cloud.ply` is for viewers, and `coarse_<iteration>.pt` has SuGaR's keys; in both, the 3D filter is fused into
    scales and opacities. `renders/` contains photo, rendering and error of each test view, `geometry.png` depth and
    normals of a few, and `turntable.mp4` a video around the point that the training cameras look at.

    Args:
        model: trained model.
        scene: scene that the model was trained on.
        folder: output folder, created if missing; existing files are replaced.
        iteration: number of finished training steps.
        turntable: length of the video, seconds; 0 writes none.
        losses: recorded losses, for the `.pt` file.
        optimizer: optimizer of the Gaussians, for the `.pt` file; None omits its state.
        between: function called between parts of the work; it may raise to abort.
        bands: number of bands in which images are rendered.

    Raises:
        PhotoError: A test photo cannot be read.
    """
    # SuGaR's checkpoints contain the epoch, which this loop does not count.
    epoch = iteration // max(len(scene.photos.train), 1)
    coarse = output_path(folder, f"coarse_{iteration}.pt")
    products = {
        "point_cloud": write_gaussian_ply(output_path(folder, "point_cloud.ply"), fused_cloud(model)),
        "coarse": write_coarse_file(
            coarse, model, iteration=iteration, epoch=epoch, losses=losses, optimizer=optimizer
        ),
        "renders": write_renders(model, scene, output_path(folder, "renders"), between, bands=bands),
        "geometry": write_geometry(model, scene, output_path(folder, "geometry.png"), bands=bands),
    }
    frames = round(turntable * RATE)
    if frames:
        views = turntable_views(scene, frames)
        path = output_path(folder, "turntable.mp4")
        products["turntable"] = render_path(model, views, path, rate=RATE, on_frame=between, bands=bands)
    return products


def write_stage0(model: SplatModel, scene: Scene, folder: Path, iteration: int, *, config: SplatsConfig) -> Path:
    """Write the Gaussians as a 3D Gaussian splatting folder, from which other tools and `-c` can continue.

    Args:
        model: trained model; its 3D filter is fused into scales and opacities.
        scene: scene that the model was trained on.
        folder: output folder, created if missing; other iterations in it are kept.
        iteration: number of finished training steps.
        config: settings of the run, with the origin of the scene.

    Returns:
        The path of the PLY file.
    """
    cameras = scene.photos.cameras
    photos = scene.photos
    folder.mkdir(parents=True, exist_ok=True)
    # 3DGS keeps its initial point cloud as `input.ply` in the model folder.
    if len(photos.points):
        write_point_ply(output_path(folder, "input.ply"), photos.points, photos.colors)
    settings = _settings(config, scene, folder)
    return write_splat_folder(folder, iteration, fused_cloud(model), cameras=cameras, settings=settings)


@torch.no_grad()
def write_renders(
    model: SplatModel, scene: Scene, folder: Path, between: Callable[[], object] = lambda: None, *, bands: int = 1
) -> Path:
    """Write photo, rendering and error of every test view, or every photo if none is held out; return the folder."""
    indices = scene.photos.test or scene.photos.train
    files = output_names((scene.photos.names[index] for index in indices), ".png", drop_suffix=True)
    for index, file in zip(indices, files, strict=True):
        between()
        view = scene.photo_view(index)
        # Without color transforms, since held-out photos have none.
        image = clamped(model.render(view.camera, bands=bands).features)
        score = "masked" if _masked_out(view) else f"{score_image(image, view).psnr:.2f} dB"
        row = strip(
            [as_picture(view.image), as_picture(image), error_picture(view.image, image)],
            COMPARED,
            f"{view.name}: {score}",
        )
        save_picture(output_path(folder, file), row)
    return folder


def write_geometry(model: SplatModel, scene: Scene, path: Path, *, bands: int = 1) -> Path:
    """Write one image with color, depth and normals of a few evenly spaced test views; return its path."""
    indices = scene.photos.test or scene.photos.train
    # Evenly spaced, because consecutive photos show nearly the same view.
    chosen = evenly_spaced(indices, GEOMETRY_VIEWS)
    rows = [render_view(model, scene.views[i], bands=bands).beside(scene.photos.names[i]) for i in chosen]
    return save_picture(path, sheet(rows))


def _masked_out(view: PhotoView) -> bool:
    return view.mask is not None and not bool(view.mask.any())


def _settings(config: SplatsConfig, scene: Scene, folder: Path) -> dict[str, Any]:
    """Return the settings that 3DGS writes to `cfg_args`, plus the parameters of the built-in scene if it is used."""
    settings: dict[str, Any] = {
        "sh_degree": config.degree,
        "model_path": str(folder.resolve()),
        "images": "images" if config.images is None else str(config.images),
        # 3DGS's value for automatic downscaling.
        "resolution": -1,
        "white_background": config.background == "white",
        "data_device": scene.device.type,
        "eval": bool(scene.photos.test),
        "antialiased": config.antialiased,
    }
    if config.data is not None:
        return settings | {"source_path": str(config.data.resolve())}
    if config.checkpoint_path is not None:
        # Without --data, the source is unknown here: keep the `source_path` of the loaded folder.
        return {**open_splat_folder(config.checkpoint_path).settings, **settings}
    built_in = {"views": len(scene.photos), "size": scene.photos.cameras[0].width, "seed": 0}
    return settings | {"source_path": "", "fieldwatch_scene": BUILT_IN, **built_in}
