"""Pictures of the photos that the health rules suspect, each beside its neighbors."""

import numpy as np
import torch
from PIL import Image

from fieldwatch import History, Run
from fieldwatch.recon.geometry import similar_cameras
from fieldwatch.recon.pipelines.splats.model import SplatModel
from fieldwatch.recon.pipelines.splats.pictures import COMPARED, Picture, as_picture, error_picture, strip
from fieldwatch.recon.pipelines.splats.quality import clamped
from fieldwatch.recon.pipelines.splats.rules import WrongPhoto
from fieldwatch.recon.pipelines.splats.scene import Scene

TAG = "Suspects/photo"
NEIGHBORS = 2
"""Number of neighbors beside the photo: with one, the neighbor could be the wrong one."""
READABLE = 160
"""Least width of a panel in pixels."""


def record_suspects(run: Run, history: History, model: SplatModel, scene: Scene, *, bands: int = 1) -> None:
    """Log a picture of the photo that a rule names first as wrong: photo, rendering, error, and the nearest others.

    The run itself asks the rules only when it ends, which is too late for a picture.

    Args:
        run: current run, after its last step.
        history: its record.
        model: trained model.
        scene: scene that the model was trained on.
        bands: number of bands in which the photo is rendered.
    """
    for finding in WrongPhoto()(history):
        index = scene.photos.names.index(finding.subject)
        run.image(TAG, suspect_picture(model, scene, index, bands=bands), scene.plan.total)


@torch.no_grad()
def suspect_picture(model: SplatModel, scene: Scene, index: int, *, bands: int = 1) -> Picture:
    """Return photo, rendering and error of a photo, and the photos of its neighbors, which show nearly the same."""
    photos = scene.photos
    view = scene.photo_view(index)
    # Without color transforms, as all products: what is wrong with the photo must not be hidden by its transform.
    image = clamped(model.render(view.camera, bands=bands).features)
    panels = [as_picture(view.image), as_picture(image), error_picture(image, view.image)]
    labels = [*COMPARED]
    for other in similar_cameras(photos.cameras, index, photos.train, count=NEIGHBORS, size=scene.size):
        panels.append(_fitted(as_picture(scene.photo_view(other).image), panels[0]))
        labels.append(f"neighbor {photos.names[other]}")
    return strip(
        [_enlarged(panel) for panel in panels], labels, f"{view.name}: its loss is far above that of all others"
    )


def _enlarged(picture: Picture) -> Picture:
    """Repeat the pixels of a small picture, so that labels fit below it."""
    factor = -(-READABLE // picture.shape[1])
    return picture.repeat(factor, axis=0).repeat(factor, axis=1)


def _fitted(picture: Picture, like: Picture) -> Picture:
    """Scale a picture to the size of another one, with its proportions, on black."""
    if picture.shape == like.shape:
        return picture
    height, width = like.shape[:2]
    scaled = Image.fromarray(picture)
    scaled.thumbnail((width, height))
    canvas = Image.new("RGB", (width, height))
    canvas.paste(scaled, ((width - scaled.width) // 2, (height - scaled.height) // 2))
    return np.asarray(canvas)
