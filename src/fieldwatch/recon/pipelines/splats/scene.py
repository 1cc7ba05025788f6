"""Scene of a splats run: photos, their cameras, and the points or Gaussians that training starts from."""

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from fieldwatch import Shuffled
from fieldwatch.recon.data import GaussianCloud, PhotoSet, PhotoStream
from fieldwatch.recon.data import Photo as StoredPhoto
from fieldwatch.recon.geometry import Camera
from fieldwatch.recon.pipelines.splats.densification import reference_lengths
from fieldwatch.recon.pipelines.splats.schedule import Plan
from fieldwatch.recon.pipelines.splats.view_pairs import neighboring_views
from fieldwatch.recon.render import View
from fieldwatch.recon.transfers import upload

AHEAD = 4
"""Number of photos decoded ahead of the training loop if not all fit into memory."""
_SIZE_SAMPLES = 20_000  # maximum number of points whose distances determine the size of a scene

Distance = Callable[[Float[Tensor, "n 3"]], Float[Tensor, " n"]]
"""Function from points to their signed distance to the true surface, world units."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PhotoView:
    """One photo on the training device.

    Attributes:
        index: index of the photo in its set.
        train_index: index of the photo among the training photos; None for a held-out photo.
        name: name of the photo.
        camera: camera of the photo.
        image: pixels, RGB in [0, 1].
        mask: 1 for pixels to use, 0 for pixels to ignore; None uses all.
        alpha: opacity of the pixels in [0, 1]; None for an opaque photo.
    """

    index: int
    train_index: int | None
    name: str
    camera: View
    image: Float[Tensor, "height width 3"]
    mask: Float[Tensor, "height width 1"] | None
    alpha: Float[Tensor, "height width 1"] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """The photos of one step.

    Attributes:
        train_indices: indices of all photos of the step among the training photos.
        names: names of all photos of the step.
        first: position in the batch of the first photo that this process renders.
        views: photos that this process renders.
    """

    train_indices: tuple[int, ...]
    names: tuple[str, ...]
    first: int
    views: tuple[PhotoView, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Scene:
    """Photos of a scene, ready for training.

    Attributes:
        photos: all photos; `photos.train` and `photos.test` are the indices of the split.
        views: camera of every photo, on the training device.
        device: training device.
        background: background color, RGB in [0, 1].
        plan: schedule of the run.
        extent: extent of the training cameras, world units.
        cloud: trained Gaussians to start from; None starts from the photos' point cloud.
        loaded: iteration of `cloud`; None if there is none.
        distance: signed distance to the true surface; None if it is unknown.
        notes: messages about the input, for the user.
        backdrop: color of a plain backdrop that the photos show, RGB in [0, 1]; None if they show none.
    """

    photos: PhotoSet
    views: tuple[View, ...]
    device: torch.device
    background: Float[Tensor, "3"]
    plan: Plan
    extent: float
    cloud: GaussianCloud | None
    loaded: int | None
    distance: Distance | None
    notes: tuple[str, ...]
    backdrop: Float[Tensor, "3"] | None = None

    def photo_view(self, index: int) -> PhotoView:
        """Return one photo on the training device.

        Raises:
            PhotoError: The photo cannot be read.
        """
        return self._on_device(self.photos[index])

    @cached_property
    def cameras(self) -> tuple[Camera, ...]:
        """Camera of every photo, in single precision on the training device."""
        return tuple(camera.to(self.device, torch.float32) for camera in self.photos.cameras)

    @property
    def training_views(self) -> tuple[View, ...]:
        """Cameras of the training photos."""
        return tuple(self.views[i] for i in self.photos.train)

    @cached_property
    def size(self) -> float:
        """Size of the scene, world units: the distance of its points to the cameras, at least the cameras' extent.

        The distance is the median over the points, each to the nearest training camera that faces it. For cameras
        around an object, the size is the extent; for cameras close together in front of a deep scene, it is larger.
        """
        points = self.photos.points if self.cloud is None else self.cloud.means
        if not len(points):
            return self.extent
        # Strided instead of random: the size must be the same on every rank and after a resume.
        # Ceiling division: the stride leaves at most `_SIZE_SAMPLES` points.
        samples = points[:: -(-len(points) // _SIZE_SAMPLES)].to(self.device)
        return max(float(reference_lengths(samples, self.training_views, 0.0).median()), self.extent)

    @cached_property
    def neighbors(self) -> tuple[tuple[int, ...], ...]:
        """Neighbors of every training photo, as indices among the training photos, the best first."""
        points = self.photos.points if self.cloud is None else self.cloud.means
        return neighboring_views([self.photos.cameras[i] for i in self.photos.train], points, self.size)

    @contextmanager
    def batches(
        self, order: Shuffled, views: int = 1, local: slice = slice(None)
    ) -> Generator[Callable[[], Batch], None, None]:
        """Yield a function that returns the next batch; photos are decoded ahead if not all fit into memory.

        ``order`` advances ``views`` times per call and never ahead, so that a checkpoint stores the loop's position.

        Args:
            order: iterator over indices of training photos, one at a time.
            views: number of photos per batch.
            local: slice of the batch that this process renders; only these photos are read.
        """
        train = self.photos.train

        def batch(view_of: Callable[[int], PhotoView]) -> Batch:
            train_indices = tuple(int(next(order)) for _ in range(views))
            # Names of all views, also of those that other ranks render: they identify samples in the record.
            names = tuple(self.photos.names[train[index]] for index in train_indices)
            # The order advances by the whole batch on every rank, but only local photos are read.
            local_views = tuple(view_of(train[index]) for index in train_indices[local])
            return Batch(train_indices=train_indices, names=names, first=local.start or 0, views=local_views)

        if self._fits_in_memory:
            for index in train:  # decode now, so that the steps of the first epoch do not wait for it
                self.photos[index]
            yield lambda: batch(self.photo_view)
            return
        with ExitStack() as open_streams:
            streams: list[PhotoStream] = []

            def streamed(index: int) -> PhotoView:
                photo = next(streams[0]) if streams else self.photos[index]
                if photo.index != index:  # the run rolled back and restored the order: the stream is out of date
                    open_streams.close()
                    streams.clear()
                    photo = self.photos[index]
                return self._on_device(photo)

            def next_batch() -> Batch:
                if not streams:  # opened lazily: a resumed run restores the order only before the first call
                    ahead = self._ahead_of(order, views, local)
                    streams.append(open_streams.enter_context(self.photos.stream(ahead, ahead=AHEAD)))
                return batch(streamed)

            yield next_batch

    def _ahead_of(self, order: Shuffled, views: int, local: slice) -> Iterator[int]:
        """Yield the indices of the photos that this process will render, from a copy of the order."""
        ahead = Shuffled(order.length, order.batch, drop_last=order.drop_last)
        # A copy, so that decoding ahead does not advance the order that checkpoints store.
        ahead.load_state_dict(order.state_dict())
        while True:
            train_indices = [int(next(ahead)) for _ in range(views)]
            yield from (self.photos.train[index] for index in train_indices[local])

    @cached_property
    def _train_indices(self) -> dict[int, int]:
        return {index: train_index for train_index, index in enumerate(self.photos.train)}

    @property
    def _fits_in_memory(self) -> bool:
        cameras = self.photos.cameras
        # Three bytes per pixel; masks and alpha are small in comparison.
        return sum(3 * camera.width * camera.height for camera in cameras) <= self.photos.memory_budget

    def _on_device(self, photo: StoredPhoto) -> PhotoView:
        mask = None if photo.mask is None else self._unit_range(photo.mask)[..., None]
        alpha = None if photo.alpha is None else self._unit_range(photo.alpha)[..., None]
        image = self._unit_range(photo.image)
        camera = self.views[photo.index]
        return PhotoView(
            index=photo.index,
            train_index=self._train_indices.get(photo.index),
            name=photo.name,
            camera=camera,
            image=image,
            mask=mask,
            alpha=alpha,
        )

    def _unit_range(self, pixels: UInt8[Tensor, "height width *channels"]) -> Float[Tensor, "height width *channels"]:
        return upload(pixels, self.device) / 255  # in single precision
