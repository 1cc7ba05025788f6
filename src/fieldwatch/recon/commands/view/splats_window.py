"""The window of a training of Gaussians, and of the refinement of a mesh with them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fieldwatch import Run
from fieldwatch.recon.commands.view.scene import ViewedScene, thumbnail
from fieldwatch.recon.commands.view.training_window import Drawing, ShownTraining, TrainingWindow, beside
from fieldwatch.recon.commands.view.window import Picture
from fieldwatch.recon.geometry import Camera
from fieldwatch.recon.pipelines.splats import Scene, SplatModel, render_view, upwards, view_of

OnStepEnd = Callable[[Run, SplatModel], None]
MODES = ("color", "depth", "normals")


@contextmanager
def splats_window(
    port: int, scene: Scene, train: Callable[..., Any], *, title: str = "Gaussians"
) -> Iterator[ShownTraining]:
    """Open the window of a training.

    Args:
        port: port of the window.
        scene: photos with their cameras.
        train: function of the run folder, the choices and a function to call after each step.
        title: what is trained.

    Raises:
        InputError: viser is not installed, or the port is out of bounds.
    """
    photos = scene.photos
    x, y, z = upwards(photos.cameras).tolist()
    shown = ViewedScene(title=title, cameras=photos.cameras, up=(x, y, z), photo=lambda index: thumbnail(photos, index))
    across = 640 if scene.device.type == "cuda" else 240
    with TrainingWindow(shown, modes=MODES, photos=photos.names, port=port, across=across) as window:

        def on_step_end(run: Run, model: SplatModel) -> None:
            window.after_step(
                run,
                Drawing(
                    draw=lambda camera, mode: draw(model, camera, mode, scene.device),
                    compare=lambda index: compare(model, scene, index),
                ),
            )

        yield ShownTraining(address=window.address, train=lambda folder, how: train(folder, how, on_step_end))


def draw(model: SplatModel, camera: Camera, mode: str, device: torch.device) -> Picture:
    """Draw Gaussians: color, depth or normals."""
    pictures = render_view(model, view_of(camera, device))
    return {"color": pictures.color, "depth": pictures.depth, "normals": pictures.normal}[mode]


def compare(model: SplatModel, scene: Scene, index: int) -> Picture:
    """Return a photo, its drawing, and their difference, which is brightened."""
    photo = scene.photos[index]
    drawn = render_view(model, view_of(photo.camera, scene.device)).color
    return beside(photo.image.cpu().numpy(), drawn)
