"""Novel views: colour, depth and normals of a view, and films along camera paths."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from fieldwatch import InputError
from fieldwatch.files import output_path, whole_file
from fieldwatch.recon.data import write_video
from fieldwatch.recon.geometry import Camera
from fieldwatch.recon.pipelines.splats.model import SplatModel, view_of
from fieldwatch.recon.pipelines.splats.orbit import Orbit
from fieldwatch.recon.pipelines.splats.pictures import (
    Picture,
    as_picture,
    depth_bounds,
    depth_picture,
    normal_picture,
    strip,
)
from fieldwatch.recon.pipelines.splats.scene import Scene
from fieldwatch.recon.render import View

PathContent = Literal["colour", "all"]
"""Content of a film: the colours alone, or depth and normals beside them."""


class Pictures(NamedTuple):
    """The renderings of one view, as 8-bit pictures.

    Attributes:
        colour: over the scene's background.
        depth: as colours, near red, far violet.
        normal: in camera axes, as colours.
    """

    colour: Picture
    depth: Picture
    normal: Picture

    def beside(self, title: str = "") -> Picture:
        """Return the three beside each other, labelled."""
        return strip(list(self), ["colour", "depth", "normals"], title)


@torch.no_grad()
def render_view(
    model: SplatModel,
    view: View,
    *,
    degree: int | None = None,
    bounds: tuple[float, float] | None = None,
    bands: int = 1,
) -> Pictures:
    """Render a view: its colours, the depth of the surface, and its normals.

    Args:
        model: the Gaussians.
        view: through which camera.
        degree: of the harmonics; None uses all there are.
        bounds: depths of the two end colours, world units; None finds those of this view.
        bands: number of bands in which it is rendered.
    """
    output = model.render(view, degree=degree, depth="planar", normals=True, bands=bands)
    normals = torch.zeros_like(output.features) if output.normals is None else output.normals
    return Pictures(
        colour=as_picture(output.features),
        depth=depth_picture(output.expected_depth(), output.alpha, bounds),
        normal=normal_picture(normals, output.alpha),
    )


def turntable_views(scene: Scene, count: int) -> list[View]:
    """Return cameras on a level circle around what the training cameras look at, as far and as high as they were.

    Where they leave a gap wider than 90 degrees, the film goes back and forth over the rest: nobody was behind.

    Raises:
        ValueError: no camera was asked for.
    """
    return _views(scene, _orbit(scene, count).turntable(count))


def spiral_views(scene: Scene, count: int) -> list[View]:
    """Return cameras that climb from the low to the high training cameras, while they circle what those look at.

    Raises:
        ValueError: no camera was asked for.
    """
    return _views(scene, _orbit(scene, count).spiral(count))


def render_path(  # noqa: PLR0913  what is rendered, where to, and how it is shown
    model: SplatModel,
    views: Sequence[View],
    path: Path,
    *,
    content: PathContent = "colour",
    rate: float = 24.0,
    frames: Path | None = None,
    on_frame: Callable[[], object] = lambda: None,
    bands: int = 1,
) -> Path:
    """Render a film along some cameras; return its path.

    Args:
        model: the Gaussians.
        views: one per frame, all of one size.
        path: of the mp4 file; replaced when it exists.
        content: the colours alone, or depth and normals beside them.
        rate: frames per second.
        frames: folder to which every frame is written as a PNG file, too; None writes none.
        on_frame: called after every frame.
        bands: number of bands in which each frame is rendered.

    Raises:
        ClipError: no view, or views of several sizes.
    """
    bounds = _path_bounds(model, views, bands) if content == "all" else None

    def film() -> Iterator[UInt8[Tensor, "3 height width"]]:
        for number, view in enumerate(views):
            picture = _frame(model, view, bounds, bands)
            if frames is not None:
                save_picture(output_path(frames, f"{number:04d}.png"), picture)
            on_frame()
            yield torch.from_numpy(picture.copy()).permute(2, 0, 1)

    return write_video(path, film(), rate=rate)


def save_picture(path: Path, picture: Picture) -> Path:
    """Write a picture as a PNG file, whole or not at all; the folder is made."""
    with whole_file(path) as draft:
        Image.fromarray(picture).save(draft, format="PNG")
    return path


@torch.no_grad()
def _frame(model: SplatModel, view: View, bounds: tuple[float, float] | None, bands: int) -> Picture:
    if bounds is None:
        return as_picture(model.render(view, bands=bands).features)
    return render_view(model, view, bounds=bounds, bands=bands).beside()


@torch.no_grad()
def _path_bounds(model: SplatModel, views: Sequence[View], bands: int) -> tuple[float, float]:
    """Depths of the end colours for a whole film, found on a few of its views."""
    outputs = [model.render(view, depth="planar", bands=bands) for view in views[:: max(len(views) // 4, 1)]]
    bounds = [depth_bounds(output.expected_depth(), output.alpha) for output in outputs]
    return min((low for low, _ in bounds), default=0.0), max((high for _, high in bounds), default=1.0)


def _orbit(scene: Scene, count: int) -> Orbit:
    if count < 1:
        raise InputError(f"a path of {count} cameras was asked for: give 1 or more, 24 for a second of film")
    return Orbit.of([scene.photos.cameras[i] for i in scene.photos.train])


def _views(scene: Scene, cameras: Sequence[Camera]) -> list[View]:
    return [view_of(camera, scene.device) for camera in cameras]
