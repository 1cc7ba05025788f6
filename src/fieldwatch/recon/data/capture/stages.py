"""The stages of a capture, from a film or photos to a scene with cameras; complete stages are not repeated."""

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fieldwatch.files import output_path
from fieldwatch.recon.data.capture.film import choose_frames
from fieldwatch.recon.data.capture.model import Chosen, ChosenPhoto, LeftOut, SharedCamera
from fieldwatch.recon.data.capture.photos import collect_photos
from fieldwatch.recon.data.capture.record import IMAGES, MASKS, MODEL, WORK, CaptureRecord
from fieldwatch.recon.data.capture.settings import CaptureSettings
from fieldwatch.recon.data.capture.source import CaptureSource

Report = Callable[[str, int, int], None]
"""Called with the stage, the number of its items that are done, and their total."""


@dataclass(frozen=True, kw_only=True)
class StageFiles:
    """Files and folders of a capture."""

    images: Path
    model: Path
    masks: Path
    database: Path

    @classmethod
    def of(cls, folder: Path) -> "StageFiles":
        """Return the files of a capture's folder, none of which is a link."""
        return cls(
            images=output_path(folder, IMAGES),
            model=output_path(folder, *MODEL),
            masks=output_path(folder, MASKS),
            database=output_path(folder, WORK, "database.db"),
        )


def run_stages(source: CaptureSource, record: CaptureRecord, settings: CaptureSettings, report: Report) -> None:
    """Run the stages that are not complete. The folder must be locked.

    Args:
        source: film or folder of photos.
        record: record of the folder; updated and written after every stage.
        settings: settings of the capture.
        report: called whenever an item of a stage is done.

    Raises:
        CaptureError: if the input cannot be used, or no cameras can be found.
    """
    # Imports pycolmap, so that choosing frames works, and is tested, without it.
    from fieldwatch.recon.data.capture import mapping  # noqa: PLC0415  optional: needs pycolmap

    files = StageFiles.of(record.folder)
    if not record.is_complete("frames", settings):
        choose(source, record, settings, report)
    chosen = chosen_of(record)
    work = (files.database, files.images, chosen, settings)
    if not record.is_complete("features", settings):
        # The database holds what was done of a stage that was interrupted.
        if not record.begin("features", settings):
            shutil.rmtree(files.database.parent, ignore_errors=True)
            files.database.parent.mkdir(parents=True)
            record.begun.pop("matching", None)
            record.started("features", settings)
        count = mapping.extract_features(*work, lambda done, total: report("features", done, total))
        record.complete("features", settings, {"features": count})
    if not record.is_complete("matching", settings):
        if not record.begin("matching", settings):
            mapping.clear_matches(files.database)
            record.started("matching", settings)
        result = mapping.match_features(*work, lambda done, total: report("matching", done, total))
        record.complete("matching", settings, result)
    if not record.is_complete("mapping", settings):
        record.begin("mapping", settings)
        shutil.rmtree(files.model, ignore_errors=True)
        report("mapping", 0, len(chosen.photos))
        mapped = mapping.map_photos(*work, files.model, lambda done, total: report("mapping", done, total))
        record.complete("mapping", settings, asdict(mapped))
    if not record.is_complete("masks", settings):
        record.begin("masks", settings)
        shutil.rmtree(files.masks, ignore_errors=True)
        record.complete("masks", settings, mask(files, report) if settings.masks else {})


def mask(files: StageFiles, report: Report) -> dict[str, Any]:
    """Write a foreground mask for every photo with a camera to `masks/`; return how far they agree, as plain values.

    Raises:
        MaskingError: if no masks can be made; nothing was written then.
    """
    # They need scipy and torch, which finding cameras does not.
    from fieldwatch.recon.data.colmap import read_colmap_model  # noqa: PLC0415  at first use
    from fieldwatch.recon.data.masking import write_masks  # noqa: PLC0415  optional: needs scipy

    model = read_colmap_model(files.model)
    return asdict(write_masks(model, files.images, files.masks, lambda done, total: report("masks", done, total)))


def choose(source: CaptureSource, record: CaptureRecord, settings: CaptureSettings, report: Report) -> Chosen:
    """Write the photos of a capture to `images/`, and record them.

    Raises:
        CaptureError: if the input cannot be used; the folder is as before then, or empty.
    """
    files = StageFiles.of(record.folder)
    record.begin("frames", settings)
    for place in (files.images, files.model.parent, files.masks):
        shutil.rmtree(place, ignore_errors=True)
    files.images.mkdir(parents=True)

    def progress(done: int, total: int) -> None:
        report("frames", done, total)

    if source.is_film:
        chosen = choose_frames(source.path, files.images, settings, progress)
    else:
        chosen = collect_photos(source, files.images, settings.cameras, progress)
    record.complete("frames", settings, asdict(chosen))
    return chosen


def chosen_of(record: CaptureRecord) -> Chosen:
    """Return the photos that the record of a capture lists."""
    plain: dict[str, Any] = record.stages["frames"]["result"]
    return Chosen(
        kind=plain["kind"],
        photos=tuple(ChosenPhoto(**each) for each in plain["photos"]),
        cameras=tuple(SharedCamera(**each) for each in plain["cameras"]),
        left_out=tuple(LeftOut(**each) for each in plain["left_out"]),
    )
