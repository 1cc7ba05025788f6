"""Assemble a `PhotoSet` from the posed photos of a reconstruction."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxtyping import Float, UInt8
from torch import Tensor

from fieldwatch.recon.data.photos.error import PhotoError
from fieldwatch.recon.data.photos.folder import shortened
from fieldwatch.recon.data.photos.photo import PhotoPixels
from fieldwatch.recon.data.photos.photo_file import PhotoFile, upright_size
from fieldwatch.recon.data.photos.photo_set import GIBIBYTE, PhotoSet, every_nth
from fieldwatch.recon.data.photos.resampling import Undistortion
from fieldwatch.recon.geometry import Camera, Lens


@dataclass(frozen=True, kw_only=True)
class PhotoOptions:
    """Options for reading photos.

    Attributes:
        longer_side: maximum length of the longer side in pixels; photos are never enlarged.
        held_out: test split: every n-th photo by name is held out, starting with the first; 0 holds out none. Ignored
            for scenes that define their own split.
        background: RGB color (0 to 255) behind transparent photos.
        memory_budget: maximum number of bytes of decoded photos kept in memory; other photos are decoded on every
            access.
        skip_unreadable: whether missing and unreadable photos are left out instead of raising an error.
        leave_out: names of exactly the photos to leave out, used to resume a run with the photos it started with. If
            None, `skip_unreadable` decides.
        most_decoded: largest number of photos that are decoded to prove that they are complete, evenly spaced; the
            others are only checked for a header and an end. None decodes all.

    Raises:
        PhotoError: if the size is below one pixel, or the background is not an RGB color.
    """

    longer_side: int = 1920
    held_out: int = 8
    background: tuple[int, int, int] = (0, 0, 0)
    memory_budget: int = 2 * GIBIBYTE
    skip_unreadable: bool = False
    leave_out: tuple[str, ...] | None = None
    most_decoded: int | None = None

    def __post_init__(self) -> None:
        """Validate size and background."""
        if self.longer_side < 1 or not all(0 <= value <= 255 for value in self.background):
            msg = (
                "the longer side of photos must be at least 1 pixel and the background three numbers from 0 to 255, "
                f"got longer side {self.longer_side} and background {self.background}"
            )
            raise PhotoError(msg)


@dataclass(frozen=True, kw_only=True, eq=False)
class PosedPhoto:
    """A photo with the lens and pose given by a reconstruction.

    Attributes:
        name: file name relative to the photo folder.
        path: path of the photo.
        lens: calibrated lens; the photo may have another size with the same aspect ratio.
        world_from_camera: camera pose in OpenCV axes.
        mask: path of the mask, if there is one.
        transparent: False if the photo is known to have no alpha channel.
        blank: whether the mask is known to be completely black.
    """

    name: str
    path: Path
    lens: Lens
    world_from_camera: Float[Tensor, "4 4"]
    mask: Path | None = None
    transparent: bool = True
    blank: bool = False


class PhotoFiles:
    """Reads the photos of a set from disk by index.

    Args:
        files: one entry per photo.
    """

    def __init__(self, files: Sequence[PhotoFile]) -> None:
        self.files = tuple(files)

    def __call__(self, index: int) -> PhotoPixels:
        """Decode the photo at an index."""
        return self.files[index].read()


def assemble(  # noqa: PLR0913 - the parts of a set
    views: Sequence[PosedPhoto],
    options: PhotoOptions,
    *,
    points: Float[Tensor, "points 3"],
    colors: UInt8[Tensor, "points 3"],
    source: str,
    notes: Sequence[str] = (),
    test_names: Collection[str] | None = None,
    left_out: Sequence[str] = (),
) -> PhotoSet:
    """Build a photo set from posed photos: sorted by name, resized, undistorted and split.

    Args:
        views: posed photos in any order.
        options: size, split and background of the photos.
        points: points of the sparse reconstruction in world units.
        colors: RGB colors of the points.
        source: human-readable origin of the set, such as its path.
        notes: human-readable notes about earlier processing.
        test_names: names of the held-out photos; None holds out every `options.held_out`-th photo.
        left_out: names of the photos that were left out earlier.

    Raises:
        PhotoError: if two photos have the same name, a photo cannot be read or does not have the aspect ratio of its
            camera, all masks are black, or the split leaves nothing to train on.
    """
    # Photos are identified by name in splits, evaluations and cameras.json.
    repeated = [name for name, number in Counter(view.name for view in views).items() if number > 1]
    if repeated:
        msg = f"{source} lists photo {repeated[0]} more than once: photo names must be unique"
        raise PhotoError(msg)
    # The split counts photos by name, so their order must not depend on the source.
    ordered = sorted(views, key=lambda view: view.name)
    train, test = _split([view.name for view in ordered], options, test_names)
    _refuse_black_masks([ordered[i] for i in train])
    cameras: list[Camera] = []
    files: list[PhotoFile] = []
    undistortions: dict[tuple[Lens, int, int], Undistortion] = {}
    for view in ordered:
        # The photos may be downscaled copies of those that were calibrated.
        lens = view.lens.resized(*upright_size(view.path, (view.lens.width, view.lens.height)))
        camera = _camera(view, lens, options.longer_side)
        undistortion = None
        if lens.distorts:
            # Photos with the same lens and size share one resampling grid, which is expensive to compute.
            key = (lens, camera.width, camera.height)
            undistortions[key] = undistortion = undistortions.get(key) or Undistortion.between(lens, camera)
        cameras.append(camera)
        files.append(_file(view, camera, undistortion, options))
    return PhotoSet(
        cameras=tuple(cameras),
        read=PhotoFiles(files),
        points=points,
        colors=colors,
        train=train,
        test=test,
        source=source,
        notes=(*notes, *_described(ordered, files)),
        memory_budget=options.memory_budget,
        # Known without decoding any photo, so training without masks can skip them from the start.
        masked=any(file.mask is not None or (file.undistortion and not file.undistortion.fills) for file in files),
        transparent=any(view.transparent for view in ordered),
        left_out=tuple(left_out),
    )


def _split(
    names: Sequence[str], options: PhotoOptions, test_names: Collection[str] | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if test_names is None:
        return every_nth(len(names), options.held_out)
    held_out = set(test_names)
    train = tuple(i for i, name in enumerate(names) if name not in held_out)
    if not train:
        msg = f"all {len(names)} photos are held out for testing: assign some of them to training"
        raise PhotoError(msg)
    return train, tuple(i for i, name in enumerate(names) if name in held_out)


def _refuse_black_masks(training: Sequence[PosedPhoto]) -> None:
    # A few black masks are only noted; if all are black, the masks are probably inverted.
    if training and all(view.blank for view in training):
        msg = (
            f"the masks of all {len(training)} training photos are black (for example {training[0].mask}), so no pixel "
            "would be used: white pixels are used, black pixels are not; invert the masks, or remove them"
        )
        raise PhotoError(msg)


def _camera(view: PosedPhoto, lens: Lens, longer_side: int) -> Camera:
    """Return the pinhole camera of the undistorted photo, scaled down to `longer_side`."""
    # Enlarging would cost memory and add no detail.
    scale = min(longer_side / max(lens.width, lens.height), 1.0)
    whole = Camera(
        name=view.name,
        width=lens.width,
        height=lens.height,
        fx=lens.fx,
        fy=lens.fy,
        cx=lens.cx,
        cy=lens.cy,
        world_from_camera=view.world_from_camera,
    )
    return whole.scaled(scale)


def _file(view: PosedPhoto, camera: Camera, undistortion: Undistortion | None, options: PhotoOptions) -> PhotoFile:
    return PhotoFile(
        path=view.path,
        stored=(view.lens.width, view.lens.height),
        width=camera.width,
        height=camera.height,
        background=options.background,
        mask=view.mask,
        undistortion=undistortion,
    )


def _described(views: Sequence[PosedPhoto], files: Sequence[PhotoFile]) -> list[str]:
    """Return notes about undistortion and masks."""
    notes: list[str] = []
    distorted = Counter(view.lens.model for view in views if view.lens.distorts)
    notes += [f"{number} photos with a {model} lens are undistorted" for model, number in distorted.items()]
    # Strong distortion leaves corners of the pinhole image without data.
    partial = [f for f in files if f.undistortion is not None and not f.undistortion.fills]
    if partial:
        notes.append(f"{len(partial)} undistorted photos do not fill their frame: the empty pixels are masked")
    masked = sum(view.mask is not None for view in views)
    if masked:
        notes.append(f"{masked} of {len(views)} photos have a mask")
    black_masked = [view.name for view in views if view.blank]
    if black_masked:
        notes.append(
            f"the masks of {len(black_masked)} photos are black, so none of their pixels are used: "
            f"{shortened(black_masked)}"
        )
    return notes
