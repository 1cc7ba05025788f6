"""Films and photos without cameras as input of a training: their cameras are found first, inside the run folder."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rich.text import Text

from fieldwatch import InputError, Ranks
from fieldwatch.cli.kit import Terminal
from fieldwatch.recon.commands.capture.outcome import print_outcome
from fieldwatch.recon.commands.capture.photos import find_cameras
from fieldwatch.recon.commands.splats.doctor_photos import has_colmap, has_transforms
from fieldwatch.recon.data.capture import CaptureSettings, image_files
from fieldwatch.recon.data.exports import is_camera_export, unread_export
from fieldwatch.recon.pipelines.splats import SplatsConfig

SCENE = "scene"
"""Folder of the cameras in the run folder."""
FILM_SUFFIXES = frozenset(
    {
        ".3gp", ".avi", ".gif", ".m2ts", ".m4v", ".mkv", ".mov",
        ".mp4", ".mpeg", ".mpg", ".mts", ".ts", ".webm", ".wmv",
    }
)  # fmt: skip


def convert(config: SplatsConfig, folder: Path) -> tuple[SplatsConfig, Callable[[], None]] | None:
    """Return the config with the scene inside the run folder, and the function that makes it.

    None for input that has cameras already.

    Raises:
        InputError: several processes train together; each would find the cameras.
    """
    if config.data is None or config.images is not None or not lacks_cameras(config.data):
        return None
    data = config.data
    scene = folder / SCENE
    if not Ranks.of_process().alone:
        raise InputError(
            f"{data} has no cameras: find them before several processes train, with `fieldwatch data photos {data} "
            "-o scene`, and train with --data scene"
        )

    def make() -> None:
        console = Terminal(stderr=True)
        # Cameras that exist are better and faster than those found anew.
        why = f"{named}. Instead of that" if (named := unread_export(data)) else f"{data} has no cameras"
        console.print(Text(f"{why}: finding them, into {scene}"), soft_wrap=True)
        settings = CaptureSettings(threads=config.threads, seed=config.seed)
        print_outcome(console, find_cameras(data, scene, settings, console))

    return replace(config, data=scene), make


def lacks_cameras(data: Path) -> bool:
    """Return whether a path is a film, or a folder with photos and without any part of a model."""
    if data.is_file():
        return data.suffix.lower() in FILM_SUFFIXES
    if not data.is_dir() or has_colmap(data) or has_transforms(data) or (data / "sparse").exists():
        return False
    if is_camera_export(data):
        return False
    return bool(image_files(data))
