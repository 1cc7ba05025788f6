"""Check all photos and masks of a scene in parallel, before training starts."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fieldwatch.recon.data.photos.error import PhotoError
from fieldwatch.recon.data.photos.folder import shortened
from fieldwatch.recon.data.photos.photo_file import PhotoFacts, check_photo, mask_is_black

_MAX_REASONS = 5  # number of unreadable photos reported individually


@dataclass(frozen=True, kw_only=True)
class PhotoCandidate:
    """A photo referenced by a reconstruction.

    Attributes:
        name: name in the reconstruction.
        path: path of the photo; None if it is missing.
        mask: path of the mask, if there is one.
    """

    name: str
    path: Path | None
    mask: Path | None = None


@dataclass(frozen=True, kw_only=True)
class CheckedPhoto:
    """A readable photo.

    Attributes:
        path: path of the photo.
        mask: path of the mask, if there is one.
        transparent: whether the photo has an alpha channel.
        blank: whether the mask is completely black, so that no pixel is used.
    """

    path: Path
    mask: Path | None
    transparent: bool
    blank: bool


@dataclass(frozen=True, kw_only=True)
class UsablePhotos:
    """The usable photos of a scene.

    Attributes:
        photos: readable photos by name.
        left_out: names of the photos left out, in the order of the reconstruction.
        notes: human-readable notes about the photos left out and the reasons.
    """

    photos: Mapping[str, CheckedPhoto]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]


def check_photos(  # noqa: PLR0913 - options and names for messages
    candidates: Sequence[PhotoCandidate],
    *,
    skip: bool,
    leave_out: Sequence[str] | None,
    source: str,
    where: str,
    most_decoded: int | None = None,
) -> UsablePhotos:
    """Check that every photo and mask exists and is complete.

    JPEG files are decoded at an eighth of their size; PNG files are verified by their checksums.

    Args:
        candidates: all photos of the reconstruction.
        skip: whether missing and unreadable photos are left out instead of raising an error.
        leave_out: names of the photos left out when the run started, which are left out again even if they are
            readable now. If None, `skip` decides.
        source: human-readable origin of the photos.
        where: human-readable description of the searched folder and its contents.
        most_decoded: largest number of photos that are decoded, evenly spaced; None decodes all.

    Raises:
        PhotoError: if a photo that must not be left out is missing or unreadable, or if no photo is left.
    """
    excluded = set(leave_out or ())
    wanted = [candidate for candidate in candidates if candidate.name not in excluded]
    missing = [candidate.name for candidate in wanted if candidate.path is None]
    # A resumed run must use the photos it started with, so nothing else may be left out.
    skipping = skip and leave_out is None
    if missing and not skipping:
        msg = (
            f"{len(missing)} of {len(candidates)} photos of {source} are not in {where}: {shortened(missing)}; pass "
            "the folder that the reconstruction was made from, or leave them out with --skip-unreadable"
        )
        raise PhotoError(msg)
    # Missing files are reported first, because decoding all photos may take minutes.
    photos, reasons = _checked([candidate for candidate in wanted if candidate.path is not None], most_decoded)
    if reasons and not skipping:
        others = f"; {len(reasons) - 1} more cannot be used" if len(reasons) > 1 else ""
        msg = f"{next(iter(reasons.values()))}{others}; use --skip-unreadable to leave out such photos"
        raise PhotoError(msg)
    # Includes the excluded photos, so that the result can be stored and passed as `leave_out` again.
    left_out = tuple(candidate.name for candidate in candidates if candidate.name not in photos)
    if candidates and not photos:
        first_reason = f": {next(iter(reasons.values()))}" if reasons else ""
        msg = f"none of the {len(candidates)} photos of {source} can be used ({len(missing)} are missing){first_reason}"
        raise PhotoError(msg)
    return UsablePhotos(
        photos=photos, left_out=left_out, notes=tuple(_notes(len(candidates), left_out, reasons, excluded))
    )


def _checked(
    candidates: Sequence[PhotoCandidate], most_decoded: int | None
) -> tuple[dict[str, CheckedPhoto], dict[str, str]]:
    """Return the readable photos by name, and the reasons why the others cannot be read by name."""
    every = 1 if most_decoded is None else max(-(-len(candidates) // max(most_decoded, 1)), 1)
    decode = [most_decoded != 0 and i % every == 0 for i in range(len(candidates))]
    # Pillow's decoders release the GIL, so threads are as fast as processes.
    with ThreadPoolExecutor(os.cpu_count() or 1, "fieldwatch-check") as threads:
        results = list(threads.map(_check, candidates, decode))
    checked = list(zip(candidates, results, strict=True))
    usable = {candidate.name: result for candidate, result in checked if isinstance(result, CheckedPhoto)}
    return usable, {candidate.name: result for candidate, result in checked if isinstance(result, str)}


def _check(candidate: PhotoCandidate, decode: bool) -> CheckedPhoto | str:  # noqa: FBT001 - one of two equal lists
    """Check one photo and its mask; return the reason as text if the photo cannot be used."""
    if candidate.path is None:
        return f"photo {candidate.name} is missing"
    try:
        facts: PhotoFacts = check_photo(candidate.path, decode=decode)
        if candidate.mask is not None and not candidate.mask.is_file():
            return (
                f"mask {candidate.mask} of photo {candidate.name} does not exist: add the file, or remove the "
                "reference to it"
            )
        # Decoding the mask also proves that it is readable.
        blank = decode and candidate.mask is not None and mask_is_black(candidate.mask)
    except PhotoError as error:
        return str(error)
    return CheckedPhoto(path=candidate.path, mask=candidate.mask, transparent=facts.transparent, blank=blank)


def _notes(count: int, left_out: Sequence[str], reasons: Mapping[str, str], excluded: set[str]) -> list[str]:
    if not left_out:
        return []
    if excluded:
        return [
            f"{len(left_out)} of {count} photos are left out, as at the start of the run: {shortened(list(left_out))}"
        ]
    missing = [name for name in left_out if name not in reasons]
    # All names are listed here: the record of a run must state exactly which photos it did not use.
    causes = [f"{len(missing)} are missing ({shortened(missing, len(missing))})"] if missing else []
    causes += [f"{len(reasons)} cannot be read ({shortened(list(reasons), len(reasons))})"] if reasons else []
    reason_notes = [f"left out: {reason}" for reason in list(reasons.values())[:_MAX_REASONS]]
    return [f"{len(left_out)} of {count} photos are left out (--skip-unreadable): {'; '.join(causes)}", *reason_notes]
