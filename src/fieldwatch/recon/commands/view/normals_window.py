"""The window of a training on normal maps, in the frame of the scene's sphere."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from fieldwatch import Run
from fieldwatch.recon.commands.view.scene import ViewedScene
from fieldwatch.recon.commands.view.training_window import Drawing, ShownTraining, TrainingWindow, beside
from fieldwatch.recon.commands.view.window import Picture
from fieldwatch.recon.geometry import Camera
from fieldwatch.recon.pipelines.normals import (
    NormalsConfig,
    NormalsModel,
    NormalsScene,
    depth_colors,
    normal_colors,
    render_view,
    train_normals,
)
from fieldwatch.recon.pipelines.splats import upwards

MODES = ("normals", "depth")


@contextmanager
def normals_window(port: int, config: NormalsConfig, scene: NormalsScene) -> Iterator[ShownTraining]:
    """Open the window of a training.

    Raises:
        InputError: viser is not installed, or the port is out of bounds.
    """
    cameras = scene.maps.cameras
    x, y, z = upwards(cameras).tolist()

    def photo(index: int) -> Picture:
        every = max(1, max(scene.maps.views[index].size) // 192)
        return np.ascontiguousarray(normal_colors(scene.maps.views[index].normals)[::every, ::every])

    shown = ViewedScene(title="a surface from normals", cameras=cameras, up=(x, y, z), photo=photo)
    across = 320 if scene.device.type == "cuda" else 96
    with TrainingWindow(shown, modes=MODES, photos=scene.maps.names, port=port, across=across) as window:

        def on_step_end(run: Run, model: NormalsModel) -> None:
            step = scene.schedule.march_step(run.step_index)
            window.after_step(
                run,
                Drawing(
                    draw=lambda camera, mode: draw(model, camera, mode, config, step),
                    compare=lambda index: compare(model, scene, index, config, step),
                ),
            )

        yield ShownTraining(
            address=window.address, train=lambda folder, how: train_normals(config, scene, folder, on_step_end, **how)
        )


def draw(model: NormalsModel, camera: Camera, mode: str, config: NormalsConfig, step: float) -> Picture:
    """Draw the surface: normals or depth."""
    rendered = render_view(model, camera, config.rendering, step)
    return normal_colors(rendered.camera_normals) if mode == "normals" else depth_colors(rendered.depth, rendered.mask)


def compare(model: NormalsModel, scene: NormalsScene, index: int, config: NormalsConfig, step: float) -> Picture:
    """Return the normal map of a view, the drawn one from the camera of the data, and their difference."""
    view = scene.maps.views[index]
    drawn = draw(model, view.camera, "normals", config, step)
    return beside(normal_colors(view.normals), drawn)
