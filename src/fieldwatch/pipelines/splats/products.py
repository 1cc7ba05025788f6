"""What a trained splats run gives to others: a point cloud for viewers, renders, geometry, a film, SuGaR's files."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch.optim import Optimizer

from fieldwatch.data import open_splat_folder, write_gaussian_ply, write_point_ply, write_splat_folder
from fieldwatch.pipelines.splats.coarse_file import fused_cloud, write_coarse_file
from fieldwatch.pipelines.splats.config import SplatsConfig
from fieldwatch.pipelines.splats.model import SplatModel
from fieldwatch.pipelines.splats.novel_views import render_path, render_view, save_picture, turntable_views
from fieldwatch.pipelines.splats.pictures import COMPARED, as_picture, error_picture, sheet, strip
from fieldwatch.pipelines.splats.quality import clamped, score_image
from fieldwatch.pipelines.splats.scene import Scene, Shot
from fieldwatch.pipelines.splats.start import BUILT_IN

RATE = 24.0
"""Frames per second of the turntable."""
GEOMETRY_VIEWS = 4
"""Test views whose depth and normals are drawn."""


def write_products(  # noqa: PLR0913  the trained thing, where to, and the numbers that go into its files
    model: SplatModel,
    scene: Scene,
    folder: Path,
    *,
    iteration: int,
    turntable: float = 4.0,
    losses: Sequence[float] = (),
    optimizer: Optimizer | None = None,
    between: Callable[[], object] = lambda: None,
) -> Mapping[str, Path]:
    """Write everything that a finished run gives to others; return the paths by what they are.

    `point_cloud.ply` is for viewers, `coarse_<iteration>.pt` has SuGaR's keys; in both a 3D filter is fused into scales
    and opacities. `renders/` has photo, drawing and error of each test view, `geometry.png` depth and normals of a few,
    `turntable.mp4` a film around what the training cameras look at.

    Args:
        model: what was trained.
        scene: what it was trained on.
        folder: where to; made if missing, files of the same names are replaced.
        iteration: number of training steps made.
        turntable: seconds of film; 0 makes none.
        losses: for the `.pt` file.
        optimizer: for the `.pt` file.
        between: called between parts of the work; it may raise, to give up.

    Raises:
        PhotoError: a test photo cannot be read.
    """
    epoch = iteration // max(len(scene.photos.train), 1)
    coarse = folder / f"coarse_{iteration}.pt"
    made = {
        "point_cloud": write_gaussian_ply(folder / "point_cloud.ply", fused_cloud(model)),
        "coarse": write_coarse_file(
            coarse, model, iteration=iteration, epoch=epoch, losses=losses, optimizer=optimizer
        ),
        "renders": write_renders(model, scene, folder / "renders", between),
        "geometry": write_geometry(model, scene, folder / "geometry.png"),
    }
    frames = round(turntable * RATE)
    if frames:
        views, path = turntable_views(scene, frames), folder / "turntable.mp4"
        made["turntable"] = render_path(model, views, path, rate=RATE, drawn=between)
    return made


def write_stage0(model: SplatModel, scene: Scene, folder: Path, iteration: int, *, config: SplatsConfig) -> Path:
    """Write the Gaussians as a folder of 3D Gaussian splatting, from which other tools and `-c` can go on.

    Args:
        model: what was trained; a 3D filter is fused into it.
        scene: what it was trained on.
        folder: made if missing; other iterations in it stay.
        iteration: number of training steps made.
        config: of the run: it says where the scene came from.

    Returns:
        The path of the PLY file.
    """
    cameras, photos = scene.photos.cameras, scene.photos
    folder.mkdir(parents=True, exist_ok=True)
    if len(photos.points):
        write_point_ply(folder / "input.ply", photos.points, photos.colours)
    settings = _settings(config, scene, folder)
    return write_splat_folder(folder, iteration, fused_cloud(model), cameras=cameras, settings=settings)


@torch.no_grad()
def write_renders(model: SplatModel, scene: Scene, folder: Path, between: Callable[[], object] = lambda: None) -> Path:
    """Write photo, drawing and error of every test view (of every photo, where none is held out); return the folder."""
    for index in scene.photos.test or scene.photos.train:
        between()
        shot = scene.shot(index)
        image = clamped(model.draw(shot.view).features)
        worth = "masked" if _masked_out(shot) else f"{score_image(image, shot).psnr:.2f} dB"
        row = strip(
            [as_picture(shot.image), as_picture(image), error_picture(shot.image, image)],
            COMPARED,
            f"{shot.name}: {worth}",
        )
        save_picture(folder / PurePosixPath(shot.name).with_suffix(".png"), row)
    return folder


def write_geometry(model: SplatModel, scene: Scene, path: Path) -> Path:
    """Write one sheet with colour, depth and normals of a few test views, evenly spaced; return its path."""
    indices = scene.photos.test or scene.photos.train
    count = min(len(indices), GEOMETRY_VIEWS)
    chosen = [indices[i * len(indices) // count] for i in range(count)]
    rows = [render_view(model, scene.views[i]).beside(scene.photos.names[i]) for i in chosen]
    return save_picture(path, sheet(rows))


def _masked_out(shot: Shot) -> bool:
    return shot.mask is not None and not bool(shot.mask.any())


def _settings(config: SplatsConfig, scene: Scene, folder: Path) -> dict[str, Any]:
    """Return what 3DGS notes in `cfg_args`; for the built-in scene, from which numbers it is made again."""
    usual: dict[str, Any] = {
        "sh_degree": config.degree,
        "model_path": str(folder.resolve()),
        "images": "images" if config.images is None else str(config.images),
        "resolution": -1,
        "white_background": config.background == "white",
        "data_device": scene.device.type,
        "eval": bool(scene.photos.test),
        "antialiased": config.antialiased,
    }
    if config.data is not None:
        return usual | {"source_path": str(config.data.resolve())}
    if config.checkpoint_path is not None:
        return {**open_splat_folder(config.checkpoint_path).settings, **usual}
    made = {"views": len(scene.photos), "size": scene.photos.cameras[0].width, "seed": 0}
    return usual | {"source_path": "", "fieldwatch_scene": BUILT_IN, **made}
