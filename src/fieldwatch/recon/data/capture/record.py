"""The record of a capture's folder: its input, and the stages that are complete."""

import hashlib
import json
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from fieldwatch.files import output_path, write_file
from fieldwatch.recon.data.capture.error import CaptureError
from fieldwatch.recon.data.capture.settings import CaptureSettings
from fieldwatch.recon.data.capture.source import CaptureSource

RECORD: Final = "capture.json"
IMAGES: Final = "images"
MODEL: Final = ("sparse", "0")
MASKS: Final = "masks"
WORK: Final = "work"
REPORTS = ("report.html", "contact_sheet.png")
KIND: Final = "fieldwatch data photos"
STAGES: Final = {
    "frames": ("frames", "start", "end", "cameras"),
    "features": ("features", "feature_size", "seed"),
    "matching": ("matching",),
    "mapping": ("mapper",),
    "masks": ("masks",),
}
"""Stages in order, and the settings that each depends on, besides those of the stages before it."""
# What a folder may hold before this command has written to it: the lock of a process that was stopped at once.
_IGNORED = frozenset({".lock"})


@dataclass
class CaptureRecord:
    """The record of a capture's folder.

    Attributes:
        folder: the folder.
        input: path of the film or the folder of photos.
        digest: digest of the input.
        stages: complete stages by name: key, and result as plain values.
        begun: key of every stage whose files, complete or not, are in the database.
    """

    folder: Path
    input: str
    digest: str
    stages: dict[str, dict[str, Any]] = field(default_factory=dict)
    begun: dict[str, str] = field(default_factory=dict)

    def is_complete(self, stage: str, settings: CaptureSettings) -> bool:
        """Return whether a stage was completed with this input and these settings."""
        return self.stages.get(stage, {}).get("key") == self.key(stage, settings)

    def key(self, stage: str, settings: CaptureSettings) -> str:
        """Return a hash of everything that a stage depends on: the input, and the settings of it and all before it."""
        values = asdict(settings)
        names = list(STAGES)
        relevant = [values[name] for each in names[: names.index(stage) + 1] for name in STAGES[each]]
        return hashlib.sha256(json.dumps([self.digest, stage, relevant]).encode()).hexdigest()

    def complete(self, stage: str, settings: CaptureSettings, result: dict[str, Any]) -> None:
        """Record a complete stage; those after it are no longer valid."""
        self.forget(stage)
        self.stages[stage] = {"key": self.key(stage, settings), "settings": asdict(settings), "result": result}
        self.write()

    def begin(self, stage: str, settings: CaptureSettings) -> bool:
        """Record that a stage begins, and return whether files of it are to be continued.

        Files from other settings must be deleted before anything is added to them.
        """
        key = self.key(stage, settings)
        continued = self.begun.get(stage) == key
        self.forget(stage)
        if not continued:
            # Until its files are deleted, the folder has none that may be continued.
            self.begun.pop(stage, None)
        self.write()
        return continued

    def started(self, stage: str, settings: CaptureSettings) -> None:
        """Record that the files of a stage, from now on, are of these settings."""
        self.begun[stage] = self.key(stage, settings)
        self.write()

    def forget(self, stage: str) -> None:
        """Forget a stage and those after it."""
        names = list(STAGES)
        for name in names[names.index(stage) :]:
            self.stages.pop(name, None)

    def write(self) -> None:
        """Write the record atomically."""
        content = {"kind": KIND, "input": self.input, "digest": self.digest, "begun": self.begun, "stages": self.stages}
        write_file(output_path(self.folder, RECORD), json.dumps(content, indent=1).encode(), durable=True)

    def delete(self) -> None:
        """Delete everything that a capture writes, and the folder if it is empty then."""
        for name in (IMAGES, MODEL[0], MASKS, WORK):
            place = output_path(self.folder, name)
            if place.is_dir():
                shutil.rmtree(place)
        for name in (*REPORTS, RECORD):
            output_path(self.folder, name).unlink(missing_ok=True)


def read_record(folder: Path) -> CaptureRecord | None:
    """Return the record of a folder; None if there is none."""
    try:
        content = json.loads((folder / RECORD).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict) or content.get("kind") != KIND or not isinstance(content.get("stages"), dict):
        return None
    return CaptureRecord(
        folder=folder,
        input=str(content.get("input")),
        digest=str(content.get("digest")),
        stages=content["stages"],
        begun=dict(content.get("begun") or {}),
    )


def record_for(folder: Path, source: CaptureSource, *, overwrite: bool = False) -> CaptureRecord:
    """Return the record to continue, or a new one for a new or empty folder. Nothing is written.

    Raises:
        CaptureError: if the folder holds another capture, unless `overwrite`, or anything else.
    """
    if folder.exists() and not folder.is_dir():
        raise CaptureError(f"-o {folder} is a file: give a folder that does not exist yet, such as -o scene")
    if source.path.is_dir() and folder.resolve().is_relative_to(source.path.resolve()):
        raise CaptureError(f"-o {folder} is inside {source.path}, which stays unchanged: give a folder outside of it")
    new = CaptureRecord(folder=folder, input=str(source.path.absolute()), digest=source.digest)
    known = read_record(folder)
    if known is not None and known.digest == source.digest:
        return known
    if known is not None and not overwrite:
        raise CaptureError(
            f"-o {folder} holds the cameras of {known.input}, and {source.path} has other content: give another "
            "folder, or replace them with --overwrite"
        )
    entries = sorted({path.name for path in folder.iterdir()} - _IGNORED) if folder.is_dir() else []
    if known is None and entries:
        listed = ", ".join(entries[:5]) + (", ..." if len(entries) > 5 else "")
        raise CaptureError(
            f"-o {folder} is not empty ({listed}): give a folder that does not exist yet, such as -o scene"
        )
    return new
