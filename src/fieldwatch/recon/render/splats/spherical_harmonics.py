"""View-dependent color: real spherical harmonics (SH) of degree 0 to 3 in plain torch."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from fieldwatch.recon.render.splats.stages import SphericalHarmonics
from fieldwatch.recon.render.splats.view import View

MAX_DEGREE = 3


def sh_basis(directions: Float[Tensor, "n 3"], degree: int) -> Float[Tensor, "n k"]:
    """Evaluate the (degree + 1)^2 SH basis functions at unit directions, in the order and signs of 3DGS files."""
    x, y, z = directions.unbind(-1)
    xx = x * x
    yy = y * y
    zz = z * z
    columns = [torch.full_like(x, 0.28209479177387814)]
    if degree > 0:
        columns += [-0.4886025119029199 * y, 0.4886025119029199 * z, -0.4886025119029199 * x]
    if degree > 1:
        columns += [
            1.0925484305920792 * x * y,
            -1.0925484305920792 * y * z,
            0.31539156525252005 * (2 * zz - xx - yy),
            -1.0925484305920792 * x * z,
            0.5462742152960396 * (xx - yy),
        ]
    if degree > 2:
        columns += [
            -0.5900435899266435 * y * (3 * xx - yy),
            2.890611442640554 * x * y * z,
            -0.4570457994644658 * y * (4 * zz - xx - yy),
            0.3731763325901154 * z * (2 * zz - 3 * xx - 3 * yy),
            -0.4570457994644658 * x * (4 * zz - xx - yy),
            1.445305721320277 * z * (xx - yy),
            -0.5900435899266435 * x * (xx - 3 * yy),
        ]
    return torch.stack(columns, -1)


def sh_colors(
    harmonics: SphericalHarmonics, means: Float[Tensor, "n 3"], ids: Int[Tensor, " visible"], view: View
) -> Float[Tensor, "visible 3"]:
    """Evaluate the colors of Gaussians for the viewing direction: SH sum plus 0.5, clamped to at least 0."""
    directions = functional.normalize(means[ids] - view.position.to(means), dim=-1)
    # Coefficients beyond the active degree are stored but not evaluated.
    basis = sh_basis(directions, harmonics.degree)
    coefficients = torch.cat([harmonics.dc[ids], harmonics.rest[ids][:, : basis.shape[1] - 1]], 1)
    return ((basis[:, :, None] * coefficients).sum(1) + 0.5).clamp_min(0)
