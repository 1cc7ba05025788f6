"""Gaussians in 26 bytes each, for a page: what counts most is kept, and everything is rounded as finely as one sees."""

import base64
import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from fieldwatch import InputError
from fieldwatch.recon.data import GaussianCloud
from fieldwatch.recon.geometry import matrix_to_quaternion, normalized_quaternions, quaternion_to_matrix

INVISIBLE = 1 / 255
"""Opacity below which a Gaussian changes no pixel of 8 bits."""
_FINEST = 1e-5
"""Smallest standard deviation that keeps its own value, as a fraction of the radius of the scene."""
_DEGREE_0 = math.sqrt(1 / (4 * math.pi))
_DEGREE_1 = math.sqrt(3 / (4 * math.pi))
_CODES_16 = 65535
_CODES_8 = 255


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedGaussians:
    """Gaussians as a page holds them: centers around the middle of the scene, with +y up.

    Attributes:
        packed: base64 of 3 x uint16 centers, 3 x uint8 scales, 4 x int8 quaternions (w, x, y, z), 4 x uint8 colors
            with opacity, and 3 x 3 int8 changes of the colors along x, y and z of the viewing direction; each for all
            Gaussians. A code of a color is 255 times half of the color plus 0.5, since colors may be outside of 0 to 1.
        count: number of Gaussians.
        unit: length at which the spacing of the centers' codes begins to grow.
        reach: log1p of the farthest center in units.
        tilt: largest change of a color along an axis.
        log_scale: smallest logarithm of a standard deviation, and the step of its codes.
        radius: radius of the scene, in which most Gaussians are.
        invisible: number of Gaussians left out because they are transparent.
        left_out: number of visible Gaussians left out because there are too many.
        kept: fraction of the area times opacity of all Gaussians that the page has.
    """

    packed: str
    count: int
    unit: float
    reach: float
    tilt: float
    log_scale: tuple[float, float]
    radius: float
    invisible: int
    left_out: int
    kept: float


def pack_gaussians(
    cloud: GaussianCloud, *, most: int, frame: Float[Tensor, "3 3"], middle: Float[Tensor, "3"], radius: float
) -> PackedGaussians:
    """Pack Gaussians; of too many, those with the largest area times opacity are kept.

    Args:
        cloud: Gaussians; a 3D filter is fused into them.
        most: maximum number of Gaussians.
        frame: rotation from the world into a frame with +y up.
        middle: center of the view, in the world.
        radius: radius of the scene.

    Raises:
        InputError: no Gaussian is visible, or a value is not finite.
    """
    cloud = cloud.fused()
    opacities = cloud.opacity_logits.double().sigmoid()
    values = (cloud.means, cloud.log_scales, cloud.quaternions, opacities, cloud.constant)
    if not all(bool(torch.isfinite(each).all()) for each in values):
        raise InputError("expected finite Gaussians, got NaN or infinity: check them with `fieldwatch doctor --data`")
    visible = torch.nonzero(opacities >= INVISIBLE).flatten()
    if not len(visible):
        raise InputError(f"expected visible Gaussians, got {len(cloud):,} with opacities below 1/255: nothing to show")
    # The two longest axes: what a Gaussian can cover at most.
    longest = cloud.log_scales[visible].double().topk(2, dim=1).values.sum(1)
    weights = (longest - longest.amax()).exp() * opacities[visible]
    chosen = weights.topk(min(most, len(visible))).indices.sort().values
    kept = visible[chosen]
    unit = radius / 8
    centers = (cloud.means[kept].double() - middle.double()) @ frame.double().T / unit
    curved = centers.sign() * centers.abs().log1p()
    reach = float(curved.abs().amax().clamp_min(1e-9))
    places = ((curved / reach + 1) / 2 * _CODES_16).round().to(torch.int32)
    log_scales = cloud.log_scales[kept].double().clamp_min(math.log(_FINEST * radius))
    low, high = float(log_scales.amin()), float(log_scales.amax())
    step = max((high - low) / _CODES_8, 1e-9)
    axes = quaternion_to_matrix(normalized_quaternions(cloud.quaternions[kept].double()))
    quaternions = matrix_to_quaternion(frame.double() @ axes)
    # Half of the range of the codes is outside of 0 to 1: the part that depends on the view may bring colors back.
    colors = (1 + _DEGREE_0 * cloud.constant[kept].double()) / 2
    tilts = _tilts(cloud, kept) @ frame.double().T
    tilt = float(tilts.abs().amax().clamp_min(1e-9))
    parts = [
        _bytes_16(places),
        ((log_scales - low) / step).round().to(torch.uint8),
        (127 * quaternions).round().to(torch.int8).view(torch.uint8),
        (_CODES_8 * torch.cat([colors.clamp(0, 1), opacities[kept, None]], dim=1)).round().to(torch.uint8),
        (127 / tilt * tilts).round().to(torch.int8).view(torch.uint8),
    ]
    return PackedGaussians(
        packed=base64.b64encode(b"".join(part.numpy().tobytes() for part in parts)).decode("ascii"),
        count=len(kept),
        unit=unit,
        reach=reach,
        tilt=tilt,
        log_scale=(low, step),
        radius=radius,
        invisible=len(cloud) - len(visible),
        left_out=len(visible) - len(kept),
        kept=float(weights[chosen].sum() / weights.sum()),
    )


def _tilts(cloud: GaussianCloud, kept: Int64[Tensor, "k"]) -> Float[Tensor, "k 3 3"]:
    """Return the change of red, green and blue along x, y and z of the viewing direction: SH of degree 1."""
    if not cloud.rest.shape[1]:
        return torch.zeros(len(kept), 3, 3, dtype=torch.float64)
    # The functions of degree 1 are -y, z and -x.
    along_y, along_z, along_x = cloud.rest[kept, :3].double().unbind(1)
    return _DEGREE_1 * torch.stack([-along_x, -along_y, along_z], dim=-1)


def _bytes_16(codes: Tensor) -> UInt8[Tensor, "n c 2"]:
    # Little-endian on every machine, as the typed arrays of browsers are.
    return torch.stack([codes & 255, codes >> 8], dim=-1).to(torch.uint8)
