"""From what a reconstruction says about each photo to a `PhotoSet`."""

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
    """How photos are read.

    Attributes:
        longer_side: at most so many pixels; photos are never enlarged.
        held_out: every so many-th photo by name, from the first on, is held out for the test; 0 holds out none. A
            source that states its own split keeps it.
        background: red, green, blue (0 .. 255) that show where photos are transparent.
        memory_budget: bytes of decoded photos kept in memory; the others are decoded whenever they are wanted.
        skip_unreadable: leave out photos that are missing or cannot be read, instead of refusing the set.
        leave_out: names of photos that are left out in any case: those that a run left out when it began. Nothing else
            is left out then. None: `skip_unreadable` decides.

    Raises:
        PhotoError: a size below one pixel, or a background that is no colour.
    """

    longer_side: int = 1920
    held_out: int = 8
    background: tuple[int, int, int] = (0, 0, 0)
    memory_budget: int = 2 * GIBIBYTE
    skip_unreadable: bool = False
    leave_out: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse what can not be meant."""
        if self.longer_side < 1 or not all(0 <= value <= 255 for value in self.background):
            msg = (
                f"photos with a longer side of {self.longer_side} pixels on a background of {self.background}: the "
                "side must be at least 1, the colour three numbers from 0 to 255"
            )
            raise PhotoError(msg)


@dataclass(frozen=True, kw_only=True, eq=False)
class PosedPhoto:
    """What a reconstruction says about one photo.

    Attributes:
        name: relative to the folder of photos.
        path: of the photo.
        lens: as calibrated; the photo may have another size of the same shape.
        world_from_camera: where it was taken.
        mask: path of its mask, if there is one.
        transparent: False where it is known to have no alpha channel.
        blank: whether its mask is known to be black everywhere.
    """

    name: str
    path: Path
    lens: Lens
    world_from_camera: Float[Tensor, "4 4"]
    mask: Path | None = None
    transparent: bool = True
    blank: bool = False


class PhotoFiles:
    """Reads the photos of a set from the disk, by index.

    Args:
        files: one per photo.
    """

    def __init__(self, files: Sequence[PhotoFile]) -> None:
        self.files = tuple(files)

    def __call__(self, index: int) -> PhotoPixels:
        """Decode the photo with this index."""
        return self.files[index].read()


def assemble(  # noqa: PLR0913 - the parts of a set
    views: Sequence[PosedPhoto],
    options: PhotoOptions,
    *,
    points: Float[Tensor, "points 3"],
    colours: UInt8[Tensor, "points 3"],
    source: str,
    notes: Sequence[str] = (),
    test_names: Collection[str] | None = None,
    left_out: Sequence[str] = (),
) -> PhotoSet:
    """Make a set of views: sorted by name, sized, straightened and split.

    Args:
        views: in any order.
        options: how photos are read.
        points: of the sparse reconstruction.
        colours: of the points.
        source: where it came from, for people.
        notes: what was done on the way.
        test_names: names of the photos that are held out; None: every `options.held_out`-th.
        left_out: names of photos that were left out before.

    Raises:
        PhotoError: two photos of one name, a photo that cannot be read or is of another shape than its camera, masks
            that are all black, or a split that leaves nothing to train on.
    """
    repeated = [name for name, number in Counter(view.name for view in views).items() if number > 1]
    if repeated:
        msg = f"{source} names the photo {repeated[0]} more than once: every photo may be there only once"
        raise PhotoError(msg)
    # The split counts by name, so the order must not depend on the source.
    ordered = sorted(views, key=lambda view: view.name)
    train, test = _split([view.name for view in ordered], options, test_names)
    _refuse_black_masks([ordered[i] for i in train])
    cameras: list[Camera] = []
    files: list[PhotoFile] = []
    undistortions: dict[tuple[Lens, int, int], Undistortion] = {}
    for view in ordered:
        lens = view.lens.resized(*upright_size(view.path, (view.lens.width, view.lens.height)))
        camera = _camera(view, lens, options.longer_side)
        undistortion = None
        if lens.distorts:
            # Photos through one lens at one size share the resampling grid.
            key = (lens, camera.width, camera.height)
            undistortions[key] = undistortion = undistortions.get(key) or Undistortion.between(lens, camera)
        cameras.append(camera)
        files.append(_file(view, camera, undistortion, options))
    return PhotoSet(
        cameras=tuple(cameras),
        read=PhotoFiles(files),
        points=points,
        colours=colours,
        train=train,
        test=test,
        source=source,
        notes=(*notes, *_described(ordered, files)),
        memory_budget=options.memory_budget,
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
        msg = f"all of the {len(names)} photos are held out for the test: state some for training"
        raise PhotoError(msg)
    return train, tuple(i for i, name in enumerate(names) if name in held_out)


def _refuse_black_masks(training: Sequence[PosedPhoto]) -> None:
    if training and all(view.blank for view in training):
        msg = (
            f"the masks of all {len(training)} photos to train on are black (such as {training[0].mask}): nothing of "
            "them would count; white is used, black is not: invert the masks, or take them away"
        )
        raise PhotoError(msg)


def _camera(view: PosedPhoto, lens: Lens, longer_side: int) -> Camera:
    """Return the pinhole camera that shows what the lens in front of this photo saw, at the wanted size."""
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
    """Say what happens to the photos."""
    notes: list[str] = []
    distorted = Counter(view.lens.model for view in views if view.lens.distorts)
    notes += [f"{number} photos taken through a {model} lens are straightened" for model, number in distorted.items()]
    partial = [f for f in files if f.undistortion is not None and not f.undistortion.fills]
    if partial:
        notes.append(f"{len(partial)} straightened photos do not fill their frame: the rest is masked")
    masked = sum(view.mask is not None for view in views)
    if masked:
        notes.append(f"{masked} of {len(views)} photos have a mask")
    black_masked = [view.name for view in views if view.blank]
    if black_masked:
        notes.append(
            f"the masks of {len(black_masked)} photos are black, so that nothing of them counts: "
            f"{shortened(black_masked)}"
        )
    return notes
