"""Open a folder of normal maps in any supported layout."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from fieldwatch.recon.data.normal_maps.captures import MODEL_FOLDERS, REACH, has_model, read_normal_captures
from fieldwatch.recon.data.normal_maps.error import NormalMapError
from fieldwatch.recon.data.normal_maps.folder import CAMERAS, DEPTH, read_normal_maps
from fieldwatch.recon.data.normal_maps.layout import MASK_FOLDERS, NORMAL_FOLDERS, Axes
from fieldwatch.recon.data.normal_maps.model import NormalSet

NormalLayout = Literal["cameras_sphere", "colmap"]
"""Layout with a `cameras_sphere.npz` (DiLiGenT-MV, SuperNormal, PMNI), or custom captures with a COLMAP model."""


def normal_layout(folder: Path | str) -> NormalLayout | None:
    """Return the normal map layout of a folder, or None if it has neither."""
    folder = Path(folder).expanduser()
    if (folder / CAMERAS).is_file():
        return "cameras_sphere"
    has_normals = any((folder / name).is_dir() for name in NORMAL_FOLDERS)
    has_poses = any(has_model(folder / name) for name in MODEL_FOLDERS)
    return "colmap" if has_normals and has_poses else None


def open_normal_maps(  # noqa: PLR0913 - independent options of the folder layout
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
    """Read normal maps with `read_normal_maps` if there is a `cameras_sphere.npz`, else with `read_normal_captures`.

    Args:
        folder: folder of one object.
        axes: axes of the normals in the files; None means OpenGL with a `cameras_sphere.npz`, else detection.
        normals: folder of normals; None uses the first existing one of the usual names.
        exclude: views to leave out, by number, or by name for custom captures.
        fill_holes: whether to add holes of the masks that contain normals to the masks.
        depth: folder of integrated depth, used if it exists; ignored for custom captures.
        masks: folder of masks, for custom captures only.
        sparse: folder of the sparse model, for custom captures only.
        ratio: extent of the object in the unit sphere, for custom captures only; None means 0.8.

    Raises:
        NormalMapError: if the folder has neither layout, an option does not apply to its layout, or the set is invalid.
        ColmapError: if the model cannot be read.
    """
    folder = Path(folder).expanduser()
    # An explicit model takes precedence over a cameras_sphere.npz in the same folder.
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
    # Options of the other layout are rejected instead of being ignored.
    names = [view for view in exclude if not isinstance(view, int)]
    captures_only = {"masks": masks, "ratio": ratio, "exclude": names or None}
    if wrong := {name: value for name, value in captures_only.items() if value is not None}:
        msg = (
            f"{folder} has a {CAMERAS}, which fixes masks (mask/), views (by number) and the unit sphere (scale_mat): "
            f"omit {', '.join(f'{name}={value!r}' for name, value in wrong.items())}, which applies only to custom "
            "captures"
        )
        raise NormalMapError(msg)
    numbers = [view for view in exclude if isinstance(view, int)]
    return read_normal_maps(
        folder, axes=axes or "opengl", normals=normals, depth=depth, exclude=numbers, fill_holes=fill_holes
    )


def _neither(folder: Path) -> str:
    if not folder.is_dir():
        problem = "is a file" if folder.is_file() else "does not exist"
        return (
            f"{folder} {problem}: pass the folder that contains the normal maps of one object, their masks and cameras"
        )
    # Listing the contents often reveals that the folder is one level too high or too low.
    entries = ", ".join(sorted(path.name for path in folder.iterdir())[:12]) or "nothing"
    return (
        f"no normal maps in {folder} (found: {entries}). Expected either {CAMERAS} with {NORMAL_FOLDERS[0]}/ and mask/ "
        f"(layout of DiLiGenT-MV, SuperNormal and PMNI), or normals/ and {MASK_FOLDERS[-1]}/ with the names of the "
        "photos and a COLMAP model in sparse/0/ (cameras, images)"
    )
