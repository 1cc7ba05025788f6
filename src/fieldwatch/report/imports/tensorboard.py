"""Reader for one run of a TensorBoard folder, as a source of an import."""

import math
import re
from collections.abc import Iterator
from pathlib import Path

from fieldwatch.report.foreign import ForeignRun, read_foreign_run, read_logged_pictures
from fieldwatch.report.imports.source import BadSource, SourcePicture, SourceRun

_SESSION = re.compile(r"\d{9,}\.\d+")
"""Name of the folders into which PyTorch's `add_hparams` writes: the time in seconds."""


def is_session(folder: Path) -> bool:
    """Return whether a folder was made by PyTorch's `add_hparams`: it belongs to the run in the folder above it."""
    return _SESSION.fullmatch(folder.name) is not None


def read_tensorboard(place: Path, name: str, *, partial: bool) -> SourceRun:
    """Read the event files directly in a folder, or one file, with the hyperparameters of `add_hparams`.

    Args:
        place: folder or file.
        name: name of the run.
        partial: read a damaged file up to the damage.

    Raises:
        BadSource: a file is damaged, and `partial` is not set.
    """
    run = read_foreign_run(place)
    damaged = [file for file in run.files if file.damage]
    if damaged and not partial:
        raise BadSource(
            f"{damaged[0].path}: {damaged[0].damage}; import what comes before it with --partial, or use an intact copy"
        )
    config = dict(run.config)
    for session in _sessions(place):
        config |= read_foreign_run(session).config
    return SourceRun(
        tool="TensorBoard",
        name=name,
        place=place,
        series=run.series,
        config=config,
        pictures=lambda: _pictures(run),
        began=run.began if math.isfinite(run.began) else math.nan,
        notes=tuple(note for note in run.notes if not note.startswith("skipped")),
    )


def _sessions(place: Path) -> list[Path]:
    return sorted(path for path in place.iterdir() if path.is_dir() and is_session(path)) if place.is_dir() else []


def _pictures(run: ForeignRun) -> Iterator[SourcePicture]:
    for file in run.files:
        for picture in read_logged_pictures(file.path):
            yield SourcePicture(name=picture.tag, step=picture.step, content=picture.content)
