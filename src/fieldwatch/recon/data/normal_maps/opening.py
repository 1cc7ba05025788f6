"""Normal maps in whichever layout a folder has."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from fieldwatch.recon.data.normal_maps.captures import MODEL_FOLDERS, REACH, has_model, read_normal_captures
from fieldwatch.recon.data.normal_maps.error import NormalMapError
from fieldwatch.recon.data.normal_maps.folder import CAMERAS, DEPTH, read_normal_maps
from fieldwatch.recon.data.normal_maps.layout import MASK_FOLDERS, NORMAL_FOLDERS, Axes
from fieldwatch.recon.data.normal_maps.model import NormalSet

NormalLayout = Literal["cameras_sphere", "colmap"]
"""DiLiGenT-MV's, SuperNormal's and PMNI's layout with its file of cameras, or own captures with a COLMAP model."""


def normal_layout(folder: Path | str) -> NormalLayout | None:
    """Return which layout of normal maps a folder has, by what is in it; None for any other folder."""
    folder = Path(folder).expanduser()
    if (folder / CAMERAS).is_file():
        return "cameras_sphere"
    has_normals = any((folder / name).is_dir() for name in NORMAL_FOLDERS)
    has_poses = any(has_model(folder / name) for name in MODEL_FOLDERS)
    return "colmap" if has_normals and has_poses else None


def open_normal_maps(  # noqa: PLR0913 - what differs between people's folders
    folder: Path | str,
    *,
    axes: Axes | None = None,
    normals: str | None = None,
    exclude: Sequence[str | int] = (),
    fill_holes: bool = False,
    depth: str | None = DEPTH,
    masks: str | None = None,
    sparse: str | None = None,
    ratio: float | None = None,
) -> NormalSet:
    """Read normal maps by `read_normal_maps` where there is a `cameras_sphere.npz`, else by `read_normal_captures`.

    Args:
        folder: of one object.
        axes: of the normals in the files; if None, OpenGL's beside a `cameras_sphere.npz` and recognised elsewhere.
        normals: folder of normals; if None, the first there is of the usual names.
        exclude: views to leave out: their numbers; of own captures, names as well.
        fill_holes: add holes of the masks to them where there are normals in the holes.
        depth: folder of integrated depth, used if it exists; own captures have none.
        masks: folder of masks of own captures.
        sparse: folder of the sparse model of own captures.
        ratio: how far own captures reach in the unit sphere; 0.8, if None.

    Raises:
        NormalMapError: the folder has neither layout (the message says what each would need), an option does not
            belong to its layout, or the set is refused.
        ColmapError: the model cannot be read.
    """
    folder = Path(folder).expanduser()
    layout = "colmap" if sparse is not None else normal_layout(folder)
    if layout is None:
        raise NormalMapError(_neither(folder))
    if layout == "colmap":
        return read_normal_captures(
            folder,
            normals=normals,
            masks=masks,
            sparse=sparse,
            axes=axes or "auto",
            ratio=REACH if ratio is None else ratio,
            exclude=exclude,
            fill_holes=fill_holes,
        )
    names = [view for view in exclude if not isinstance(view, int)]
    captures_only = {"masks": masks, "ratio": ratio, "exclude": names or None}
    if wrong := {name: value for name, value in captures_only.items() if value is not None}:
        msg = (
            f"{folder} has a {CAMERAS}, which fixes masks (mask/), views (by number) and the unit sphere (scale_mat): "
            f"leave out {', '.join(f'{name}={value!r}' for name, value in wrong.items())}, which is for own captures"
        )
        raise NormalMapError(msg)
    numbers = [view for view in exclude if isinstance(view, int)]
    return read_normal_maps(
        folder, axes=axes or "opengl", normals=normals, depth=depth, exclude=numbers, fill_holes=fill_holes
    )


def _neither(folder: Path) -> str:
    if not folder.is_dir():
        problem = "a file" if folder.is_file() else "not there"
        return (
            f"{folder} is {problem}: give the folder that holds the normal maps of one object, their masks and cameras"
        )
    entries = ", ".join(sorted(path.name for path in folder.iterdir())[:12]) or "nothing"
    return (
        f"{folder} holds no set of normal maps (found: {entries}). Wanted is either {CAMERAS} with "
        f"{NORMAL_FOLDERS[0]}/ and mask/, as DiLiGenT-MV, SuperNormal and PMNI have it, or normals/ and "
        f"{MASK_FOLDERS[-1]}/ named as the photos, with COLMAP's model in sparse/0/ (cameras, images)"
    )
