"""Write foreground masks of photos with cameras, and say how far they agree."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from jaxtyping import Bool, Float64
from PIL import Image
from scipy.ndimage import binary_dilation, binary_erosion, label

from fieldwatch.files import decoding, output_path, whole_file
from fieldwatch.recon.data.colmap import ColmapModel, RegisteredImage
from fieldwatch.recon.data.masking.cut import minimum_cut
from fieldwatch.recon.data.masking.error import MaskingError
from fieldwatch.recon.data.masking.model import MaskAgreement, MaskingView, Progress
from fieldwatch.recon.data.masking.segment import segment, separation
from fieldwatch.recon.geometry import Camera, Lens, TargetBall, target_ball

LEAST_AGREEMENT = 0.75
"""Median agreement below which no masks are written."""
LEAST_SEPARATION = 0.7
"""Fraction of pixels that colors must assign correctly; below, no masks are written."""
_SIDE = 160  # longer side in pixels at which masks are found
_FINE_SIDE = 640  # at which their edges are refined
_BAND = 1.5  # width of the refined band to each side of the edge, coarse pixels
_FINE_SMOOTHNESS = 3.0
_LEAST_PIECE = 0.02  # pieces and holes of a mask below this fraction of its area are removed


@dataclass(frozen=True, kw_only=True)
class Masks:
    """Masks that were written.

    Attributes:
        agreements: agreement of each mask, in the order of the photos.
        replaced: photos whose own mask disagreed with the others; their mask is the hull's silhouette.
        separation: how well colors tell the object from its surroundings, see `separation`.
    """

    agreements: tuple[MaskAgreement, ...]
    replaced: tuple[str, ...]
    separation: float

    @property
    def median(self) -> float:
        """Median agreement."""
        return float(np.median([each.agreement for each in self.agreements]))


def write_masks(model: ColmapModel, images: Path, folder: Path, progress: Progress) -> Masks:
    """Write a mask for every photo of a model: white on the object that all cameras look at.

    Args:
        model: cameras.
        images: folder of the photos.
        folder: folder of the masks, `NAME.png` for the photo NAME.
        progress: called with the number of steps done and their total.

    Raises:
        MaskingError: the cameras do not look at one object, or the masks disagree; nothing was written then.
    """
    cameras = [_pinhole(model.lenses[image.camera_id], image) for image in model.images]
    ball = target_ball(cameras)
    if ball is None:
        raise MaskingError(
            "no masks can be made: the cameras do not go around an object that all of them look at, as masks need; "
            "leave --masks out, or pass masks of another program to the training with --masks FOLDER"
        )
    views = [_view(model, image, camera, images, ball) for image, camera in zip(model.images, cameras, strict=True)]
    total = 2 * len(views)

    def half(done: int, of: int) -> None:
        progress(done * len(views) // of, total)

    masks, silhouettes = segment(views, ball.center.numpy(), ball.radius, half)
    agreements = tuple(
        MaskAgreement(name=view.name, agreement=overlap(mask, shown), share=float(mask.mean()))
        for view, mask, shown in zip(views, masks, silhouettes, strict=True)
    )
    replaced = tuple(each.name for each in agreements if each.agreement < LEAST_AGREEMENT)
    found = Masks(agreements=agreements, replaced=replaced, separation=separation(views, masks))
    _refuse_disagreement(found)
    for number, (view, mask, shown) in enumerate(zip(views, masks, silhouettes, strict=True)):
        coarse = shown if view.name in replaced else _tidied(mask & binary_dilation(shown, iterations=2))
        fine = _refined(images / view.name, coarse)
        path = output_path(folder, f"{view.name}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as draft:
            Image.fromarray(np.where(fine, 255, 0).astype(np.uint8)).save(draft, "PNG")
        progress(len(views) + number + 1, total)
    return found


def overlap(a: Bool[np.ndarray, "height width"], b: Bool[np.ndarray, "height width"]) -> float:
    """Return intersection over union; 0 if both are empty."""
    return float((a & b).sum() / max((a | b).sum(), 1))


def _refuse_disagreement(found: Masks) -> None:
    if found.median < LEAST_AGREEMENT or max(each.share for each in found.agreements) == 0:
        raise MaskingError(
            f"no masks were written: those of single photos do not show one object (median overlap with the others "
            f"{found.median:.0%}, expected at least {LEAST_AGREEMENT:.0%}); the object may have the colors of its "
            "surroundings, or move; leave --masks out, or pass masks of another program to the training with --masks"
        )
    if found.separation < LEAST_SEPARATION:
        raise MaskingError(
            f"no masks were written: colors tell the object from its surroundings in only {found.separation:.0%} of "
            f"the pixels, expected at least {LEAST_SEPARATION:.0%} (chance is 50%); photograph it before a plain "
            "background of another color, leave --masks out, or pass masks of another program to the training with "
            "--masks"
        )


def _pinhole(lens: Lens, image: RegisteredImage) -> Camera:
    """Return the camera without its distortion, for directions."""
    intrinsics = {"fx": lens.fx, "fy": lens.fy, "cx": lens.cx, "cy": lens.cy}
    return Camera(
        name=image.name,
        width=lens.width,
        height=lens.height,
        **intrinsics,
        world_from_camera=image.world_from_camera.double(),
    )


def _view(model: ColmapModel, image: RegisteredImage, camera: Camera, images: Path, ball: TargetBall) -> MaskingView:
    pixels = _small(images / image.name, _SIDE)
    height, width = pixels.shape[:2]
    lens = model.lenses[image.camera_id].resized(width, height)
    small = camera.resized(width, height)
    motion = small.camera_from_world
    origins, directions = small.rays()
    towards = ball.center - origins
    along = (towards * directions).sum(-1, keepdim=True)
    nearness = (towards - along * directions).norm(dim=-1) / ball.radius

    def project(points: Float64[np.ndarray, "n 3"]) -> tuple[np.ndarray, np.ndarray]:
        local = torch.from_numpy(points) @ motion[:3, :3].T + motion[:3, 3]
        ahead = local[:, 2] > 0
        depth = torch.where(ahead, local[:, 2], 1.0)
        places, inside = lens.project(local[:, :2] / depth[:, None])
        return places.numpy(), (inside & ahead).numpy()

    return MaskingView(name=image.name, image=pixels, project=project, nearness=nearness.float().numpy())


def _small(path: Path, side: int) -> np.ndarray:
    """Return a photo's colors from 0 to 1, at most `side` pixels long."""
    with decoding(), Image.open(path) as opened:
        opened.draft("RGB", (side, side))
        photo = opened.convert("RGB")
        scale = min(side / max(photo.size), 1.0)
        size = [max(round(scale * each), 1) for each in photo.size]
        return np.asarray(photo.resize(size, Image.Resampling.BOX), np.float32) / 255


def _tidied(mask: Bool[np.ndarray, "height width"]) -> Bool[np.ndarray, "height width"]:
    """Remove small pieces, and fill small holes."""
    for side in (True, False):
        found, count = cast("tuple[np.ndarray, int]", label(mask == side))
        pieces = np.asarray(found, np.int64)
        sizes = np.bincount(pieces.ravel(), minlength=count + 1)
        small = sizes < _LEAST_PIECE * max(mask.sum(), 1)
        small[0] = False
        mask = mask ^ small[pieces]
    return mask


def _refined(path: Path, coarse: Bool[np.ndarray, "height width"]) -> Bool[np.ndarray, "height width"]:
    """Return a mask at the photo's own size, whose edge follows the photo within a band around that of `coarse`."""
    with decoding(), Image.open(path) as opened:
        size = opened.size
    fine = _small(path, _FINE_SIDE)
    height, width = fine.shape[:2]
    scale = width / coarse.shape[1]
    large = _resized(coarse, (width, height))
    reach = max(round(_BAND * scale), 1)
    core = np.asarray(binary_erosion(large, iterations=reach, border_value=1), np.bool_)
    band = np.asarray(binary_dilation(large, iterations=reach), np.bool_) & ~core
    # No colors: near the edge, only contrast decides; the pixels beside the band are given.
    odds = np.where(band, 0.0, np.where(large, 1.0, -1.0)).astype(np.float32)
    found = minimum_cut(fine, odds, _FINE_SMOOTHNESS, band)
    return _resized(found, size)


def _resized(mask: Bool[np.ndarray, "height width"], size: Sequence[int]) -> Bool[np.ndarray, "rows columns"]:
    picture = Image.fromarray(np.where(mask, 255, 0).astype(np.uint8))
    return np.asarray(picture.resize((size[0], size[1]), Image.Resampling.BILINEAR)) >= 128
