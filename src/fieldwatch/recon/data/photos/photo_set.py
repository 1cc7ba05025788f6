"""`PhotoSet`, the training data of splats: photos with their cameras and sparse points."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from fieldwatch.recon.data.photos.cache import PhotoCache, PhotoStream
from fieldwatch.recon.data.photos.error import PhotoError
from fieldwatch.recon.data.photos.photo import Photo, PhotoPixels
from fieldwatch.recon.geometry import Camera, camera_extent

GIBIBYTE = 1 << 30


def every_nth(count: int, held_out: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Split photos sorted by name into training and test indices; every `held_out`-th photo, from index 0, is tested.

    Args:
        count: number of photos.
        held_out: spacing of the test photos, 8 by convention; 0 uses all photos for training.

    Raises:
        PhotoError: if `held_out` is negative or leaves no photo for training.
    """
    # The split of Mip-NeRF 360 and 3D Gaussian splatting starts with the first photo.
    test = tuple(range(0, count, held_out)) if held_out > 0 else ()
    train = tuple(sorted(set(range(count)) - set(test)))
    if count < 2 and held_out >= 0 and not train:
        msg = f"expected photos to train on, got {count} in all: add photos taken from different positions"
        raise PhotoError(msg)
    if held_out < 0 or not train:
        msg = (
            f"holding out every n-th photo with n = {held_out} leaves {len(train)} of {count} "
            "photos for training: use a number of at least 2 (8 by convention), or 0 to hold out none"
        )
        raise PhotoError(msg)
    return train, test


@dataclass(frozen=True, kw_only=True, eq=False)
class PhotoSet:
    """Photos of one scene, sorted by name, with their cameras and sparse points.

    `photos[i]` returns a decoded `Photo`, `photos.stream(order)` decodes ahead.

    Attributes:
        cameras: one camera per photo, with the size at which the photo is read.
        read: function that decodes the photo at an index, without caching; prefer `photos[i]`.
        points: points of the sparse reconstruction in world units; empty if there is none.
        colors: RGB colors of the points.
        train: indices of the training photos.
        test: indices of the held-out photos.
        source: human-readable origin of the set, such as its path.
        notes: human-readable notes about how the photos were processed.
        memory_budget: maximum number of bytes of decoded photos kept in memory.
        masked: False if it is known, without reading the photos, that none has a mask.
        transparent: False if it is known, without reading the photos, that none has an alpha channel.
        left_out: names of missing or unreadable photos that were left out.
    """

    cameras: tuple[Camera, ...]
    read: Callable[[int], PhotoPixels]
    points: Float[Tensor, "points 3"]
    colors: UInt8[Tensor, "points 3"]
    train: tuple[int, ...]
    test: tuple[int, ...]
    source: str
    notes: tuple[str, ...] = ()
    memory_budget: int = 2 * GIBIBYTE
    # True is always safe: it only means that masks may exist.
    masked: bool = True
    transparent: bool = True
    left_out: tuple[str, ...] = ()
    _store: PhotoCache = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Create the cache of decoded photos."""
        # The dataclass is frozen; the cache is derived state, not a field.
        object.__setattr__(self, "_store", PhotoCache(self.read, self.memory_budget))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the photos."""
        return tuple(camera.name for camera in self.cameras)

    @property
    def extent(self) -> float:
        """Spatial extent of the training cameras in world units, which scales learning rates and thresholds."""
        return camera_extent([self.cameras[i] for i in self.train])

    @property
    def cached_bytes(self) -> int:
        """Bytes of decoded photos currently in memory."""
        return self._store.nbytes

    @property
    def digest(self) -> str:
        """SHA-256 of names, sizes, cameras, points and split (not of the pixels)."""
        # "photos 1" is the version of the digest. Hashing pixels would require decoding every photo.
        sha = hashlib.sha256(f"photos 1, {self.train}, {self.test}".encode())
        for camera in self.cameras:
            camera_key = (camera.name, camera.width, camera.height, camera.fx, camera.fy, camera.cx, camera.cy)
            sha.update(repr(camera_key).encode())
            sha.update(camera.world_from_camera.double().cpu().contiguous().numpy().data)
        for tensor in (self.points, self.colors):
            sha.update(tensor.cpu().contiguous().numpy().data)
        return sha.hexdigest()

    def __len__(self) -> int:
        return len(self.cameras)

    def __getitem__(self, index: int) -> Photo:
        """Return one photo, decoding it unless it is cached.

        Raises:
            IndexError: if the index is out of range; negative indices are not supported.
            PhotoError: if the file cannot be read or does not have the size of its camera.
        """
        if not 0 <= index < len(self):
            msg = f"photo index {index} is out of range for {len(self)} photos: expected 0 to {len(self) - 1}"
            raise IndexError(msg)
        picture = self._store.get(index)
        camera = self.cameras[index]
        # Files may have been replaced since the set was opened, and `read` can be any function.
        if picture.image.shape[:2] != (camera.height, camera.width):
            height, width = picture.image.shape[:2]
            msg = f"photo {camera.name}: expected {camera.width}x{camera.height} pixels, got {width}x{height}"
            raise PhotoError(msg)
        return Photo(index=index, camera=camera, image=picture.image, mask=picture.mask, alpha=picture.alpha)

    def __iter__(self) -> Iterator[Photo]:
        return (self[i] for i in range(len(self)))

    def stream(self, order: Iterable[int], *, ahead: int = 4) -> PhotoStream:
        """Stream photos in a given order, decoded ahead in a thread: `with photos.stream(order) as stream: ...`."""
        return PhotoStream(self.__getitem__, order, ahead)

    def having(self, **changed: Any) -> Self:
        """Return a copy with some fields changed, such as the split or the points; its cache is empty."""
        return replace(self, **changed)


def no_points() -> tuple[Float[Tensor, "0 3"], UInt8[Tensor, "0 3"]]:
    """Return the empty points and colors of a scene without a sparse reconstruction."""
    return torch.zeros(0, 3), torch.zeros(0, 3, dtype=torch.uint8)
