"""Flags of ``fieldwatch data photos``; importing them needs no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from fieldwatch.cli.kit import BadInput, FlagGroups
from fieldwatch.recon.data.capture import Cameras, CaptureSettings, Mapper, Matching


@dataclass(frozen=True, kw_only=True)
class PhotosFlags:
    """Find the cameras of a film or a folder of photos: the input of `fieldwatch train splats`.

    Example: fieldwatch data photos film.mp4 -o scene

    Example: fieldwatch data photos DCIM/ -o scene --threads 4

    Sharp frames are chosen from a film; photos may be JPEG, PNG, TIFF, WebP or HEIC of any size. The folder holds
    images/, sparse/0/ (COLMAP's layout), report.html, contact_sheet.png and capture.json. Interrupted, the same command
    continues. work/ holds features and matches, and may be deleted. Needs pip install 'fieldwatch[photos]'.

    Exit codes: 0; 1 if fewer than half of the photos got a camera; 2 for bad input; 3 if COLMAP failed.
    """

    main_flags: ClassVar[FlagGroups] = {}

    input: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILM-OR-FOLDER")]
    """Film in any format of FFmpeg, or folder of photos, which may have subfolders. It is not changed."""
    out: Annotated[Path, tyro.conf.arg(aliases=("-o",))]
    """Folder of the scene."""
    frames: int = 150
    """Number of frames to choose from a film: the sharpest one of as many equal parts."""
    start: float = 0.0
    """First second of the film to use."""
    end: float | None = None
    """Last second of the film to use."""
    feature_size: int = 1600
    """Longer side in pixels at which features are detected; the photos keep their size."""
    features: int = 4096
    """Maximum number of features per photo."""
    matching: Matching = "auto"
    """Pairs of photos to match: sequential (films), exhaustive (all; up to 150 photos), similar (the 20 that look most
    alike and the next 5 in time; more photos)."""
    cameras: Cameras = "auto"
    """Photos that share focal length and distortion: those of one camera and size by EXIF (auto), all of one size
    (one), or none (each)."""
    mapper: Mapper = "auto"
    """Algorithm for poses: global (all at once), incremental (one after the other; slower), or global first (auto)."""
    masks: bool = False
    """Also write foreground masks of the object that the cameras go around to masks/, where the training finds them,
    and say how far they agree."""
    threads: int = 0
    """Number of threads; 0 for all cores."""
    seed: int = 0
    """Seed of all random choices."""
    overwrite: bool = False
    """Replace the cameras of another film or folder that this command wrote into the folder before."""
    json: bool = False
    """Print the files and the facts as JSON, and nothing else on standard output."""

    @property
    def settings(self) -> CaptureSettings:
        """Settings of the capture.

        Raises:
            BadInput: a number is out of bounds.
        """
        if self.frames < 3:
            raise BadInput(f"--frames must be at least 3, as in 150, got {self.frames}")
        if min(self.feature_size, self.features) < 100:
            raise BadInput(
                "--feature-size and --features must be at least 100, as in --feature-size 1600 --features 4096, got "
                f"{self.feature_size} and {self.features}"
            )
        if self.threads < 0 or self.seed < 0:
            raise BadInput(f"--threads and --seed must be 0 or more, got {self.threads} and {self.seed}")
        if not 0 <= self.start < (float("inf") if self.end is None else self.end):
            raise BadInput(
                f"--start must be at least 0 and less than --end, as in --start 2 --end 12.5, got "
                f"--start {self.start:g} --end {self.end}"
            )
        return CaptureSettings(
            frames=self.frames,
            start=self.start,
            end=self.end,
            feature_size=self.feature_size,
            features=self.features,
            matching=self.matching,
            cameras=self.cameras,
            mapper=self.mapper,
            masks=self.masks,
            threads=self.threads,
            seed=self.seed,
        )
