"""Pictures and films of meshes, for every command that writes one."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from fieldwatch.files import whole_file
from fieldwatch.recon.data import write_video
from fieldwatch.recon.mesh import MeshRenderer, Triangles, mesh_still, turntable_cameras

RATE = 24.0
UPWARDS = (0.0, 0.0, 1.0)


def write_still_and_film(  # noqa: PLR0913  mesh, path, size, duration, direction and callback
    mesh: Triangles,
    stem: Path,
    *,
    size: int = 480,
    seconds: float = 4.0,
    up: Sequence[float] = UPWARDS,
    on_frame: Callable[[], None] | None = None,
) -> dict[str, Path]:
    """Write STEM_still.png, a mesh from four sides, and STEM_turntable.mp4, a film around it.

    Args:
        mesh: mesh with faces.
        stem: folder and first part of the file names, such as runs/garden/mesh/garden.
        size: width and height of each view and of the film, pixels.
        seconds: duration of the film.
        up: upward direction of the scene.
        on_frame: callback after the still and after each frame, called `frames_in(seconds) + 1` times.

    Returns:
        Files by content: `still`, `turntable`.

    Raises:
        MeshError: the mesh has no faces.
        OSError: a file cannot be written.
    """
    still = stem.with_name(f"{stem.name}_still.png")
    film = stem.with_name(f"{stem.name}_turntable.mp4")
    write_still(mesh, still, size=size, up=up)
    if on_frame is not None:
        on_frame()
    write_turntable(mesh, film, size=size, seconds=seconds, up=up, on_frame=on_frame)
    return {"still": still, "turntable": film}


def frames_in(seconds: float) -> int:
    """Return the number of frames of a film, at least one."""
    return max(round(seconds * RATE), 1)


def write_still(mesh: Triangles, path: Path, *, size: int, up: Sequence[float] = UPWARDS) -> Path:
    """Write a mesh from four sides, each `size` pixels across, as PNG, atomically."""
    picture = Image.fromarray(mesh_still(mesh, size=size, up=up))
    with whole_file(path) as draft:
        picture.save(draft, "PNG")
    return path


def write_turntable(  # noqa: PLR0913  as above
    mesh: Triangles,
    path: Path,
    *,
    size: int,
    seconds: float,
    up: Sequence[float] = UPWARDS,
    on_frame: Callable[[], None] | None = None,
) -> Path:
    """Write a film around a mesh, in its colors or as clay; `on_frame` is called after each frame."""
    cameras = turntable_cameras(mesh, frames_in(seconds), size, up=up)
    renderer = MeshRenderer(mesh)

    # A generator: a long film is never in memory as a whole.
    def frames() -> Iterator[UInt8[Tensor, "3 height width"]]:
        for camera in cameras:
            yield torch.from_numpy(renderer.render(camera)).permute(2, 0, 1)
            if on_frame is not None:
                on_frame()

    return write_video(path, frames(), rate=RATE)
