"""Open a folder of normal maps in any supported layout."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from fieldwatch.recon.data.normal_maps.axes import Channels, PixelCenter, Space
from fieldwatch.recon.data.normal_maps.captures import MODEL_FOLDERS, has_model, read_normal_captures
from fieldwatch.recon.data.normal_maps.diligent_mv import (
    CALIBRATION,
    lens_file,
    read_diligent_mv,
    read_unposed_normal_maps,
    view_folders,
)
from fieldwatch.recon.data.normal_maps.error import NormalMapError
from fieldwatch.recon.data.normal_maps.folder import CAMERAS, DEPTH, cameras_file, read_normal_maps
from fieldwatch.recon.data.normal_maps.layout import MASK_FOLDERS, NORMAL_FOLDERS
from fieldwatch.recon.data.normal_maps.model import NormalSet
from fieldwatch.recon.data.normal_maps.posed_frames import frames_file, names_normals, read_normal_frames
from fieldwatch.recon.data.normal_maps.single_view import is_single_view

NormalLayout = Literal["cameras_sphere", "colmap", "transforms", "diligent_mv", "unposed"]
"""Layout: projection matrices (`cameras_sphere.npz` of DiLiGenT-MV, SuperNormal, PMNI; `cameras.npz` of IDR, NeuS,
MonoSDF), a COLMAP model, frames of a `transforms.json`, DiLiGenT-MV's own folders, or intrinsics without poses."""


def normal_layout(folder: Path | str) -> NormalLayout | None:  # noqa: PLR0911  one return per layout
    """Return the normal map layout of a folder, or None if it has none."""
    folder = Path(folder).expanduser()
    if cameras_file(folder) is not None:
        return "cameras_sphere"
    if (folder / CALIBRATION).is_file() and view_folders(folder):
        return "diligent_mv"
    has_normals = any((folder / name).is_dir() for name in NORMAL_FOLDERS)
    has_masks = any((folder / name).is_dir() for name in MASK_FOLDERS)
    if has_normals and any(has_model(folder / name) for name in MODEL_FOLDERS):
        return "colmap"
    frames = frames_file(folder) if folder.is_dir() else None
    if frames is not None and (has_normals or names_normals(frames)):
        return "transforms"
    if has_normals and lens_file(folder) is not None:
        return "unposed"
    # Masks alone: photos with masks have images/, too, and are a scene of photos.
    photos = (folder / "images").is_dir() or (folder / "train").is_dir()
    if has_masks and not photos and any(has_model(folder / name) for name in MODEL_FOLDERS):
        return "colmap"
    return None


def open_normal_maps(  # noqa: PLR0913 - independent options of the folder layout
    folder: Path | str,
    *,
    axes: str | None = None,
    space: Space | None = None,
    channels: Channels | None = None,
    pixel_center: PixelCenter | None = None,
    normals: str | None = None,
    exclude: Sequence[str | int] = (),
    fill_holes: bool = False,
    depth: str | None = DEPTH,
    masks: str | None = None,
    sparse: str | None = None,
    ratio: float | None = None,
) -> NormalSet:
    """Read normal maps of any layout (`normal_layout`).

    Args:
        folder: folder of one object.
        axes: axes of the normals in the files, as of `read_normal_maps`; None or `auto` finds them from the data.
        space: whether normals are in `camera` or `world` axes; None finds it.
        channels: `rgb` or `bgr`; None finds it.
        pixel_center: center of the first pixel in the intrinsics, `half` or `whole`; None finds it.
        normals: folder of normals; None uses the first existing one of the usual names.
        exclude: views to leave out, by number, or by name for photos and frames.
        fill_holes: whether to add holes of the masks that contain normals to the masks.
        depth: folder of integrated depth, used if it exists, with projection matrices only.
        masks: folder of masks; `normals` for the pixels that have one, `none` for no silhouettes.
        sparse: folder of the sparse model of COLMAP, which then takes precedence.
        ratio: extent of the object in the unit sphere, for layouts that do not state it; None means 0.8.

    Raises:
        NormalMapError: if the folder has no layout, an option does not apply to its layout, or the set is invalid.
        ColmapError: if the model cannot be read.
        TransformsError: if the frames cannot be read.
    """
    folder = Path(folder).expanduser()
    # An explicit model takes precedence over a cameras_sphere.npz in the same folder.
    layout = "colmap" if sparse is not None else normal_layout(folder)
    common: dict[str, Any] = {
        "axes": axes,
        "space": space,
        "channels": channels,
        "pixel_center": pixel_center,
        "normals": normals,
        "masks": masks,
        "fill_holes": fill_holes,
    }
    sized = common if ratio is None else {**common, "ratio": ratio}
    if layout is None:
        raise NormalMapError(_neither(folder))
    if layout == "colmap":
        return read_normal_captures(folder, exclude=exclude, sparse=sparse, **sized)
    if layout == "transforms":
        return read_normal_frames(folder, exclude=exclude, **sized)
    if layout == "unposed":
        _refuse_ratio(folder, ratio, "maps without poses")
        return read_unposed_normal_maps(folder, exclude=exclude, **common)
    # Options of the other layouts are rejected instead of being ignored.
    names = [view for view in exclude if not isinstance(view, int)]
    if names:
        msg = (
            f"{folder} numbers its views: omit exclude={names!r}, names, which apply only to photos and frames; give "
            "numbers with --exclude"
        )
        raise NormalMapError(msg)
    numbers = [view for view in exclude if isinstance(view, int)]
    if layout == "diligent_mv":
        return read_diligent_mv(folder, exclude=numbers, **sized)
    _refuse_ratio(folder, ratio, "a file of projection matrices, which states the unit sphere (scale_mat)")
    return read_normal_maps(folder, depth=depth, exclude=numbers, **common)


def _refuse_ratio(folder: Path, ratio: float | None, what: str) -> None:
    if ratio is not None:
        msg = f"{folder} has {what}: omit ratio={ratio!r}, which applies only to custom captures"
        raise NormalMapError(msg)


def _neither(folder: Path) -> str:
    if not folder.is_dir():
        problem = "is a file" if folder.is_file() else "does not exist"
        return (
            f"{folder} {problem}: pass the folder that contains the normal maps of one object, their masks and cameras"
        )
    if is_single_view(folder):
        return (
            f"{folder} holds the normal map of a single view, which shows one side: integrate it to depth and a mesh "
            f"with `fieldwatch data integrate-normals {folder} --out OUT`"
        )
    # Listing the contents often reveals that the folder is one level too high or too low.
    entries = ", ".join(sorted(path.name for path in folder.iterdir())[:12]) or "nothing"
    return (
        f"no normal maps in {folder} (found: {entries}). Expected normals in {NORMAL_FOLDERS[0]}/, normals/ or normal/ "
        f"and masks in {MASK_FOLDERS[0]}/ or {MASK_FOLDERS[-1]}/ (unless the normals end at the object), with one of "
        f"{CAMERAS} (layout of DiLiGenT-MV, SuperNormal and PMNI), cameras.npz (NeuS, MonoSDF), transforms.json "
        "(Blender, Nerfstudio), a COLMAP model in sparse/0/ (cameras, images), or K.txt (no poses); or DiLiGenT-MV's "
        f"{CALIBRATION} with view_01/, view_02/, ..."
    )
