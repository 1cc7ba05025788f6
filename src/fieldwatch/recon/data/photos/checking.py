"""All photos and masks of a scene opened and checked, in threads, before anything is trained on them."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fieldwatch.recon.data.photos.error import PhotoError
from fieldwatch.recon.data.photos.folder import shortened
from fieldwatch.recon.data.photos.photo_file import PhotoFacts, check_photo, mask_is_black

_MAX_REASONS = 5  # photos whose reasons are given one by one


@dataclass(frozen=True, kw_only=True)
class PhotoCandidate:
    """A photo that a reconstruction names.

    Attributes:
        name: as the reconstruction has it.
        path: where it was found; None where it is missing.
        mask: path of its mask, if there is one.
    """

    name: str
    path: Path | None
    mask: Path | None = None


@dataclass(frozen=True, kw_only=True)
class CheckedPhoto:
    """A photo that can be read.

    Attributes:
        path: of the photo.
        mask: path of its mask, if there is one.
        transparent: whether it has an alpha channel.
        blank: whether its mask is black everywhere, so that nothing of it counts.
    """

    path: Path
    mask: Path | None
    transparent: bool
    blank: bool


@dataclass(frozen=True, kw_only=True)
class UsablePhotos:
    """What is left of the photos of a scene.

    Attributes:
        photos: those that can be read, by name.
        left_out: names of the others, in the order of the reconstruction.
        notes: what was left out and why, for people.
    """

    photos: Mapping[str, CheckedPhoto]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]


def check_photos(
    candidates: Sequence[PhotoCandidate], *, skip: bool, leave_out: Sequence[str] | None, source: str, where: str
) -> UsablePhotos:
    """Check every photo and mask: found, and whole. JPEG is decoded at an eighth of its size, PNG by its checksums.

    Args:
        candidates: all photos of the reconstruction.
        skip: leave out what is missing or cannot be read, instead of refusing it.
        leave_out: names that a run left out when it began, and that stay left out, whatever they are now; None: it is
            decided here.
        source: of the photos, for people.
        where: the folder that was looked into, and what it holds, for people.

    Raises:
        PhotoError: a photo is missing or cannot be read and is not to be left out, or none is left.
    """
    excluded = set(leave_out or ())
    wanted = [candidate for candidate in candidates if candidate.name not in excluded]
    missing = [candidate.name for candidate in wanted if candidate.path is None]
    skipping = skip and leave_out is None
    if missing and not skipping:
        msg = (
            f"{len(missing)} of {len(candidates)} photos of {source} are not in {where}: {shortened(missing)}; give "
            "the folder that the reconstruction was made from, or leave them out with --skip-unreadable"
        )
        raise PhotoError(msg)
    photos, reasons = _checked([candidate for candidate in wanted if candidate.path is not None])
    if reasons and not skipping:
        others = f"; {len(reasons) - 1} more cannot be used" if len(reasons) > 1 else ""
        msg = f"{next(iter(reasons.values()))}{others}; --skip-unreadable leaves out such photos"
        raise PhotoError(msg)
    left_out = tuple(candidate.name for candidate in candidates if candidate.name not in photos)
    if candidates and not photos:
        first_reason = f": {next(iter(reasons.values()))}" if reasons else ""
        msg = f"none of the {len(candidates)} photos of {source} can be used ({len(missing)} are missing){first_reason}"
        raise PhotoError(msg)
    return UsablePhotos(
        photos=photos, left_out=left_out, notes=tuple(_notes(len(candidates), left_out, reasons, excluded))
    )


def _checked(candidates: Sequence[PhotoCandidate]) -> tuple[dict[str, CheckedPhoto], dict[str, str]]:
    """Return the photos that can be read, and why the others cannot, by name."""
    # Decoders release Python's lock, so threads suffice.
    with ThreadPoolExecutor(os.cpu_count() or 1, "fieldwatch-check") as threads:
        results = list(threads.map(_check, candidates))
    checked = list(zip(candidates, results, strict=True))
    usable = {candidate.name: result for candidate, result in checked if isinstance(result, CheckedPhoto)}
    return usable, {candidate.name: result for candidate, result in checked if isinstance(result, str)}


def _check(candidate: PhotoCandidate) -> CheckedPhoto | str:
    """Return what is known of a photo; the reason where it cannot be used."""
    if candidate.path is None:
        return f"photo {candidate.name} is missing"
    try:
        facts: PhotoFacts = check_photo(candidate.path)
        if candidate.mask is not None and not candidate.mask.is_file():
            return f"the mask {candidate.mask} of photo {candidate.name} does not exist: put it there, or name none"
        blank = candidate.mask is not None and mask_is_black(candidate.mask)
    except PhotoError as error:
        return str(error)
    return CheckedPhoto(path=candidate.path, mask=candidate.mask, transparent=facts.transparent, blank=blank)


def _notes(count: int, left_out: Sequence[str], reasons: Mapping[str, str], excluded: set[str]) -> list[str]:
    if not left_out:
        return []
    if excluded:
        return [f"{len(left_out)} of {count} photos stay left out, as when the run began: {shortened(list(left_out))}"]
    missing = [name for name in left_out if name not in reasons]
    causes = [f"{len(missing)} are missing ({shortened(missing, len(missing))})"] if missing else []
    causes += [f"{len(reasons)} cannot be read ({shortened(list(reasons), len(reasons))})"] if reasons else []
    reason_notes = [f"left out: {reason}" for reason in list(reasons.values())[:_MAX_REASONS]]
    return [f"{len(left_out)} of {count} photos are left out (--skip-unreadable): {'; '.join(causes)}", *reason_notes]
