"""From what a reconstruction says about each photo to a `PhotoSet`."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxtyping import Float, UInt8
from torch import Tensor

from fieldwatch.recon.data.photos.error import PhotoError
from fieldwatch.recon.data.photos.folder import shortened
from fieldwatch.recon.data.photos.photo import Picture
from fieldwatch.recon.data.photos.photo_file import PhotoFile, upright_size
from fieldwatch.recon.data.photos.photo_set import GIBIBYTE, PhotoSet, every_nth
from fieldwatch.recon.data.photos.resampling import Straightening
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
class View:
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

    def __call__(self, index: int) -> Picture:
        """Decode the photo with this index."""
        return self.files[index].read()


def assemble(  # noqa: PLR0913 - the parts of a set
    views: Sequence[View],
    options: PhotoOptions,
    *,
    points: Float[Tensor, "points 3"],
    colours: UInt8[Tensor, "points 3"],
    source: str,
    notes: Sequence[str] = (),
    tested: Collection[str] | None = None,
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
        tested: names of the photos that are held out; None: every `options.held_out`-th.
        left_out: names of photos that were left out before.

    Raises:
        PhotoError: two photos of one name, a photo that cannot be read or is of another shape than its camera, masks
            that are all black, or a split that leaves nothing to train on.
    """
    twice = [name for name, number in Counter(view.name for view in views).items() if number > 1]
    if twice:
        msg = f"{source} names the photo {twice[0]} more than once: every photo may be there only once"
        raise PhotoError(msg)
    ordered = sorted(views, key=lambda view: view.name)
    train, test = _split([view.name for view in ordered], options, tested)
    _refuse_black([ordered[i] for i in train])
    cameras: list[Camera] = []
    files: list[PhotoFile] = []
    lenses: dict[tuple[Lens, int, int], Straightening] = {}
    for view in ordered:
        lens = view.lens.resized(*upright_size(view.path, (view.lens.width, view.lens.height)))
        camera = _camera(view, lens, options.longer_side)
        straightening = None
        if lens.bends:
            key = (lens, camera.width, camera.height)
            lenses[key] = straightening = lenses.get(key) or Straightening.between(lens, camera)
        cameras.append(camera)
        files.append(_file(view, camera, straightening, options))
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
        masked=any(file.mask is not None or (file.straightening and not file.straightening.fills) for file in files),
        transparent=any(view.transparent for view in ordered),
        left_out=tuple(left_out),
    )


def _split(
    names: Sequence[str], options: PhotoOptions, tested: Collection[str] | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if tested is None:
        return every_nth(len(names), options.held_out)
    chosen = set(tested)
    train = tuple(i for i, name in enumerate(names) if name not in chosen)
    if not train:
        msg = f"all of the {len(names)} photos are held out for the test: state some for training"
        raise PhotoError(msg)
    return train, tuple(i for i, name in enumerate(names) if name in chosen)


def _refuse_black(training: Sequence[View]) -> None:
    if training and all(view.blank for view in training):
        msg = (
            f"the masks of all {len(training)} photos to train on are black (such as {training[0].mask}): nothing of "
            "them would count; white is used, black is not: invert the masks, or take them away"
        )
        raise PhotoError(msg)


def _camera(view: View, lens: Lens, longer_side: int) -> Camera:
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


def _file(view: View, camera: Camera, straightening: Straightening | None, options: PhotoOptions) -> PhotoFile:
    return PhotoFile(
        path=view.path,
        stored=(view.lens.width, view.lens.height),
        width=camera.width,
        height=camera.height,
        background=options.background,
        mask=view.mask,
        straightening=straightening,
    )


def _described(views: Sequence[View], files: Sequence[PhotoFile]) -> list[str]:
    """Say what happens to the photos."""
    notes: list[str] = []
    bent = Counter(view.lens.model for view in views if view.lens.bends)
    notes += [f"{number} photos taken through a {model} lens are straightened" for model, number in bent.items()]
    partly = [f for f in files if f.straightening is not None and not f.straightening.fills]
    if partly:
        notes.append(f"{len(partly)} straightened photos do not fill their frame: the rest is masked")
    masked = sum(view.mask is not None for view in views)
    if masked:
        notes.append(f"{masked} of {len(views)} photos have a mask")
    blank = [view.name for view in views if view.blank]
    if blank:
        notes.append(f"the masks of {len(blank)} photos are black, so that nothing of them counts: {shortened(blank)}")
    return notes
