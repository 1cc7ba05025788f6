"""Novel views: color, depth and normals of a view, and videos along camera paths."""

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

PathContent = Literal["color", "all"]
"""Content of a video: colors only, or colors, depth and normals in a row."""


class Pictures(NamedTuple):
    """Renderings of one view as 8-bit pictures.

    Attributes:
        color: colors over the scene's background.
        depth: depth as colors, from red (near) to violet (far).
        normal: normals in camera axes as colors.
    """

    color: Picture
    depth: Picture
    normal: Picture

    def beside(self, title: str = "") -> Picture:
        """Return the three pictures in a row, with labels."""
        return strip(list(self), ["color", "depth", "normals"], title)


@torch.no_grad()
def render_view(
    model: SplatModel,
    view: View,
    *,
    degree: int | None = None,
    bounds: tuple[float, float] | None = None,
    bands: int = 1,
) -> Pictures:
    """Render color, surface depth and normals of a view.

    Args:
        model: model to render.
        view: camera to render from.
        degree: SH degree; None uses the full degree.
        bounds: depths at the two ends of the color scale, world units; None derives them from this view.
        bands: number of bands in which the image is rendered.
    """
    output = model.render(view, degree=degree, depth="planar", normals=True, bands=bands)
    # Without normals, the picture is uniform instead of missing, which keeps the row's layout.
    normals = torch.zeros_like(output.features) if output.normals is None else output.normals
    return Pictures(
        color=as_picture(output.features),
        depth=depth_picture(output.expected_depth(), output.alpha, bounds),
        normal=normal_picture(normals, output.alpha),
    )


def turntable_views(scene: Scene, count: int) -> list[View]:
    """Return cameras on a level orbit around the scene's focus, at the training cameras' distances and heights.

    If the training cameras leave a gap wider than 90 degrees, the path moves back and forth over the photographed arc.

    Raises:
        ValueError: The count is less than 1.
    """
    return _views(scene, _orbit(scene, count).turntable(count))


def spiral_views(scene: Scene, count: int) -> list[View]:
    """Return cameras that orbit the scene's focus while rising from the low to the high training cameras.

    Raises:
        ValueError: The count is less than 1.
    """
    return _views(scene, _orbit(scene, count).spiral(count))


def render_path(  # noqa: PLR0913  the model, the path, the output and its format
    model: SplatModel,
    views: Sequence[View],
    path: Path,
    *,
    content: PathContent = "color",
    rate: float = 24.0,
    frames: Path | None = None,
    on_frame: Callable[[], object] = lambda: None,
    bands: int = 1,
) -> Path:
    """Render a video along a camera path and return the path of its file.

    Args:
        model: model to render.
        views: cameras of the frames, all of the same size.
        path: path of the MP4 file; an existing file is replaced.
        content: colors only, or colors, depth and normals in a row.
        rate: frame rate, frames per second.
        frames: folder to which every frame is also written as a PNG file; None writes none.
        on_frame: function called after every frame.
        bands: number of bands in which each frame is rendered.

    Raises:
        ClipError: There are no views, or they differ in size.
    """
    # The same color scale for all frames, so that the colors of depths do not flicker.
    bounds = _path_bounds(model, views, bands) if content == "all" else None

    def film() -> Iterator[UInt8[Tensor, "3 height width"]]:
        for number, view in enumerate(views):
            picture = _frame(model, view, bounds, bands)
            if frames is not None:
                save_picture(output_path(frames, f"{number:04d}.png"), picture)
            on_frame()
            # A copy, because `strip` returns a read-only array, for which `from_numpy` warns.
            yield torch.from_numpy(picture.copy()).permute(2, 0, 1)

    return write_video(path, film(), rate=rate)


def save_picture(path: Path, picture: Picture) -> Path:
    """Write a picture atomically as a PNG file and return its path; the folder is created if missing."""
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
    """Return the depths at the ends of the color scale for a whole video, from a few of its views."""
    outputs = [model.render(view, depth="planar", bands=bands) for view in views[:: max(len(views) // 4, 1)]]
    bounds = [depth_bounds(output.expected_depth(), output.alpha) for output in outputs]
    return min((low for low, _ in bounds), default=0.0), max((high for _, high in bounds), default=1.0)


def _orbit(scene: Scene, count: int) -> Orbit:
    if count < 1:
        raise InputError(f"a path of {count} cameras is not possible: give 1 or more, 24 per second of video")
    return Orbit.of([scene.photos.cameras[i] for i in scene.photos.train])


def _views(scene: Scene, cameras: Sequence[Camera]) -> list[View]:
    return [view_of(camera, scene.device) for camera in cameras]
