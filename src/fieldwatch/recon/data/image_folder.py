"""Read a clip from a folder of images."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from fieldwatch.recon.data.clip_error import ClipError
from fieldwatch.recon.data.framing import Framing, Size
from fieldwatch.recon.data.image_file import image_size, read_image
from fieldwatch.recon.data.image_names import IMAGE_SUFFIXES, natural_key


def image_tensor(image: Image.Image) -> UInt8[Tensor, "3 height width"]:
    """Copy an RGB image into a channels-first tensor."""
    return torch.from_numpy(np.array(image, np.uint8)).permute(2, 0, 1).contiguous()


def read_picture(path: Path) -> UInt8[Tensor, "3 height width"]:
    """Decode one image file to 8-bit RGB, with its EXIF orientation applied.

    Raises:
        ClipError: if the file is unreadable or truncated.
    """
    return image_tensor(read_image(path).image)


@dataclass(frozen=True)
class FrameSelection:
    """Selection of frames from a source.

    Attributes:
        start: index of the first frame to use.
        count: maximum number of frames; None for all.
        stride: step between two frames to use.

    Raises:
        ClipError: if the numbers cannot select any frame.
    """

    start: int = 0
    count: int | None = None
    stride: int = 1

    def __post_init__(self) -> None:
        """Validate the numbers."""
        if self.start < 0 or self.stride < 1 or (self.count is not None and self.count < 1):
            msg = (
                "start must be at least 0, count and stride at least 1, got "
                f"start={self.start}, count={self.count}, stride={self.stride}"
            )
            raise ClipError(msg)

    def includes(self, index: int) -> bool:
        """Return whether the frame at this index of the source is used."""
        offset = index - self.start
        # Negative offsets would pass the modulus test.
        return offset >= 0 and offset % self.stride == 0 and not self.ends_before(index)

    def ends_before(self, index: int) -> bool:
        """Return whether no frame at or after this index is used."""
        return self.count is not None and index > self.start + (self.count - 1) * self.stride

    def refuse_nothing(self, taken: int, available: int, source: Path) -> None:
        """Raise if no frame was selected.

        Raises:
            ClipError: if `taken` is 0.
        """
        if taken == 0:
            msg = (
                f"no frame of {source} is selected: it has {available} frames, got start={self.start}, "
                f"stride={self.stride}; use a smaller start"
            )
            raise ClipError(msg)


@dataclass
class ImageFolder:
    """Reads the images of a folder in natural order; other files are ignored and counted in `notes`.

    Raises:
        ClipError: if there are no images, their sizes differ, or the crop is larger than a frame. This is checked from
            the file headers, before any decoding.
    """

    folder: Path
    framing: Framing
    selection: FrameSelection
    notes: list[str] = field(default_factory=list)
    _paths: list[Path] = field(default_factory=list)
    _changes: dict[str, set[str]] = field(default_factory=dict)
    _size: Size = (0, 0)

    def __post_init__(self) -> None:
        """List the frames and check that they will all have the same size."""
        images = _list_images(self.folder, self.notes)
        # The selection counts all images, so start and stride refer to positions in the folder.
        self._paths = [path for i, path in enumerate(images) if self.selection.includes(i)]
        self.selection.refuse_nothing(len(self._paths), len(images), self.folder)
        # Only headers are read here, so this fails before any expensive decoding.
        self._check_sizes()

    @property
    def names(self) -> Sequence[str]:
        """File names of the selected frames."""
        return [path.name for path in self._paths]

    def scan(self) -> Iterator[UInt8[Tensor, "3 height width"]]:
        """Decode every frame once, in order; `notes` is complete afterwards."""
        for i in range(len(self._paths)):
            yield self.read(i)
        counts = Counter(change for changes in self._changes.values() for change in changes)
        self.notes += [f"{number} of {len(self._paths)} frames: {change}" for change, number in sorted(counts.items())]

    def read(self, index: int) -> UInt8[Tensor, "3 height width"]:
        """Decode one frame."""
        path = self._paths[index]
        image, changes = read_image(path)
        self._changes[path.name] = set(changes)
        frame = image_tensor(self.framing.apply(image, path.name))
        # EXIF data behind the pixels of a PNG, or a replaced file, is only detected after decoding.
        if frame.shape[1:] != self._size:
            msg = (
                f"{path} is {frame.shape[1]}_{frame.shape[2]} (height_width), expected {self._size[0]}_{self._size[1]} "
                "from its header: the file was replaced, or EXIF data behind its pixels rotates it; save it again"
            )
            raise ClipError(msg)
        return frame

    def close(self) -> None:
        """Do nothing; no files are kept open."""

    def _check_sizes(self) -> None:
        before = {path.name: image_size(path) for path in self._paths}
        after = {name: self.framing.size_after(size, name) for name, size in before.items()}
        if len(set(after.values())) > 1:
            msg = (
                f"the frames of {self.folder} have different sizes (height_width): {_by_size(after)}; "
                "use --resize H_W to resize them to a common size, or remove the frames that do not belong"
            )
            raise ClipError(msg)
        if len(set(before.values())) > 1:
            self.notes.append(f"frames of different sizes were resized to a common size: {_by_size(before)}")
        self._size = next(iter(after.values()))


def _by_size(sizes: dict[str, Size]) -> str:
    """Format the sizes with their frequencies and first frames, most frequent first."""
    counts = Counter(sizes.values())
    first = {size: next(name for name, other in sizes.items() if other == size) for size in counts}
    return ", ".join(
        f"{height}_{width} ({counts[height, width]} frames, first {first[height, width]})"
        for height, width in sorted(counts, key=lambda size: (-counts[size], size))
    )


def _list_images(folder: Path, notes: list[str]) -> list[Path]:
    entries = list(folder.iterdir())
    images = [p for p in entries if p.suffix.lower() in IMAGE_SUFFIXES and not p.name.startswith(".") and p.is_file()]
    if not entries:
        msg = f"{folder} is empty: set --data to a folder of images or a video file"
        raise ClipError(msg)
    if not images:
        raise ClipError(_no_images(folder, entries))
    if len(images) < len(entries):
        others = sorted({p.name for p in entries} - {p.name for p in images})
        count = "1 entry" if len(others) == 1 else f"{len(others)} entries"
        notes.append(f"{folder}: ignored {count} other than images, for example {others[0]}")
    # The name itself breaks ties between names that differ only in leading zeros or case.
    ordered = sorted(images, key=lambda p: (natural_key(p.name), p.name))
    if ordered != sorted(images, key=lambda p: p.name):
        notes.append("frames are sorted in natural order (2 before 10), which differs from alphabetical order")
    return ordered


def _no_images(folder: Path, entries: list[Path]) -> str:
    subfolders = [e for e in entries if e.is_dir() and any(p.suffix.lower() in IMAGE_SUFFIXES for p in e.iterdir())]
    kinds = Counter(p.suffix.lower() or "(no extension)" for p in entries if p.is_file())
    summary = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common(5)) or f"{len(entries)} folders"
    # The frames are often one level deeper than the given folder.
    remedy = (
        f"did you mean {min(subfolders)}?" if subfolders else "convert the frames to PNG, or pass the video file itself"
    )
    return f"no images among the {len(entries)} entries of {folder} (found {summary}): {remedy}"
