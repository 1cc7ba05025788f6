"""What splats are trained on: photos with their cameras, and the points that the reconstruction found."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
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
    """Split photos that are sorted by name into training and test indices: every `held_out`-th is tested, from 0 on.

    Args:
        count: photos.
        held_out: 8 is customary; 0 keeps all for training.

    Raises:
        PhotoError: a negative or a split that leaves no photo to train on.
    """
    test = tuple(range(0, count, held_out)) if held_out > 0 else ()
    train = tuple(sorted(set(range(count)) - set(test)))
    if held_out < 0 or not train:
        msg = (
            f"holding out every {held_out}. of {count} photos leaves {len(train)} to train on: "
            "use a number from 2 on (8 is customary), or 0 to hold out none"
        )
        raise PhotoError(msg)
    return train, test


@dataclass(frozen=True, kw_only=True, eq=False)
class PhotoSet:
    """Photos of one scene, sorted by name, and where they were taken.

    Attributes:
        cameras: one per photo, of the size at which the photos are read.
        read: decodes the photo with an index; `photos[i]` is what people use.
        points: of the sparse reconstruction, in world units; no rows if there is none.
        colours: of the points.
        train: indices that training may see.
        test: indices held out of everything.
        source: where it came from, for people.
        notes: what was done on the way, for people.
        memory_budget: bytes of decoded photos that are kept in memory.
        masked: False where no photo has a mask, so that none need be read to know.
        transparent: False where no photo has an alpha channel, so that none need be read to know.
        left_out: names of photos that are missing or cannot be read, and were left out as asked for.
    """

    cameras: tuple[Camera, ...]
    read: Callable[[int], PhotoPixels]
    points: Float[Tensor, "points 3"]
    colours: UInt8[Tensor, "points 3"]
    train: tuple[int, ...]
    test: tuple[int, ...]
    source: str
    notes: tuple[str, ...] = ()
    memory_budget: int = 2 * GIBIBYTE
    masked: bool = True
    transparent: bool = True
    left_out: tuple[str, ...] = ()
    _store: PhotoCache = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Make the store that holds what was decoded."""
        # The dataclass is frozen; the cache is derived state, not a field.
        object.__setattr__(self, "_store", PhotoCache(self.read, self.memory_budget))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the photos."""
        return tuple(camera.name for camera in self.cameras)

    @property
    def extent(self) -> float:
        """Spatial extent of the training cameras, in world units (E in the literature)."""
        return camera_extent([self.cameras[i] for i in self.train])

    @property
    def cached_bytes(self) -> int:
        """Bytes of decoded photos that are in memory now."""
        return self._store.nbytes

    @property
    def digest(self) -> str:
        """sha256 of names, sizes, cameras, points and split (not of the pixels)."""
        sha = hashlib.sha256(f"photos 1, {self.train}, {self.test}".encode())
        for camera in self.cameras:
            camera_key = (camera.name, camera.width, camera.height, camera.fx, camera.fy, camera.cx, camera.cy)
            sha.update(repr(camera_key).encode())
            sha.update(camera.world_from_camera.double().cpu().contiguous().numpy().data)
        for tensor in (self.points, self.colours):
            sha.update(tensor.cpu().contiguous().numpy().data)
        return sha.hexdigest()

    def __len__(self) -> int:
        return len(self.cameras)

    def __getitem__(self, index: int) -> Photo:
        """Return one photo, decoded now unless it is in memory.

        Raises:
            IndexError: no such photo.
            PhotoError: the file cannot be read, or is of another shape than its camera.
        """
        if not 0 <= index < len(self):
            msg = f"photo {index} of {len(self)} was asked for: indices run from 0 to {len(self) - 1}"
            raise IndexError(msg)
        picture = self._store.get(index)
        camera = self.cameras[index]
        if picture.image.shape[:2] != (camera.height, camera.width):
            height, width = picture.image.shape[:2]
            msg = f"photo {camera.name} came as {width}x{height}, its camera has {camera.width}x{camera.height} pixels"
            raise PhotoError(msg)
        return Photo(index=index, camera=camera, image=picture.image, mask=picture.mask, alpha=picture.alpha)

    def __iter__(self) -> Iterator[Photo]:
        return (self[i] for i in range(len(self)))

    def stream(self, order: Iterable[int], *, ahead: int = 4) -> PhotoStream:
        """Return the photos in this order, decoded ahead by a thread: `with photos.stream(order) as stream: ...`."""
        return PhotoStream(self.__getitem__, order, ahead)

    def having(self, **changed: Any) -> Self:
        """Return the set with some fields changed (another split, other points); none of its photos decoded yet."""
        return replace(self, **changed)


def no_points() -> tuple[Float[Tensor, "0 3"], UInt8[Tensor, "0 3"]]:
    """Return points and colours of a scene without a sparse reconstruction."""
    return torch.zeros(0, 3), torch.zeros(0, 3, dtype=torch.uint8)
