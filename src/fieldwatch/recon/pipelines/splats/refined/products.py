"""Products of a refinement: the mesh, Gaussians for viewers, renders, a turntable video, SuGaR's file."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.nn import functional
from torch.optim import Optimizer

from fieldwatch.files import output_path, whole_file
from fieldwatch.recon.data import write_gaussian_ply
from fieldwatch.recon.geometry import MAX_DEGREE, constant_to_colors, harmonics_count
from fieldwatch.recon.mesh import Triangles, write_mesh
from fieldwatch.recon.pipelines.splats.coarse_file import fused_cloud
from fieldwatch.recon.pipelines.splats.model import SplatModel
from fieldwatch.recon.pipelines.splats.novel_views import render_path, turntable_views
from fieldwatch.recon.pipelines.splats.products import RATE, write_geometry, write_renders
from fieldwatch.recon.pipelines.splats.refined.binding import BoundGaussians
from fieldwatch.recon.pipelines.splats.scene import Scene


def write_refined_products(  # noqa: PLR0913  the model, the folder, and the contents of its files
    model: SplatModel[BoundGaussians],
    scene: Scene,
    folder: Path,
    *,
    iteration: int,
    turntable: float = 4.0,
    losses: Sequence[float] = (),
    optimizers: Sequence[Optimizer] = (),
    between: Callable[[], object] = lambda: None,
    bands: int = 1,
) -> Mapping[str, Path]:
    """Write all products of a finished refinement and return their paths by name.

    `refined_mesh.ply` has vertex colors, `point_cloud.ply` contains the Gaussians in the format of 3DGS with the
    logarithm of the thickness as `scale_0`, and `refined_<iteration>.pt` has SuGaR's keys. All other files are as in
    the coarse stage.

    Args:
        model: trained model, with Gaussians bound to a mesh.
        scene: scene that the model was trained on.
        folder: output folder, created if missing; existing files are replaced.
        iteration: number of finished training steps.
        turntable: length of the video, seconds; 0 writes none.
        losses: recorded losses, for the `.pt` file.
        optimizers: optimizers, for the `.pt` file.
        between: function called between parts of the work; it may raise to abort.
        bands: number of bands in which images are rendered.

    Raises:
        PhotoError: A test photo cannot be read.
    """
    refined = output_path(folder, f"refined_{iteration}.pt")
    products = {
        "mesh": write_mesh(output_path(folder, "refined_mesh.ply"), refined_triangles(model.gaussians)),
        "point_cloud": write_gaussian_ply(output_path(folder, "point_cloud.ply"), fused_cloud(model)),
        "refined": write_refined_file(
            refined,
            model.gaussians,
            iteration=iteration,
            epoch=iteration // max(len(scene.photos.train), 1),
            losses=losses,
            optimizers=optimizers,
        ),
        "renders": write_renders(model, scene, output_path(folder, "renders"), between, bands=bands),
        "geometry": write_geometry(model, scene, output_path(folder, "geometry.png"), bands=bands),
    }
    frames = round(turntable * RATE)
    if frames:
        views = turntable_views(scene, frames)
        path = output_path(folder, "turntable.mp4")
        products["turntable"] = render_path(model, views, path, rate=RATE, on_frame=between, bands=bands)
    return products


def refined_triangles(gaussians: BoundGaussians) -> Triangles:
    """Return the current mesh with vertex colors from the view-independent colors of its Gaussians."""
    return Triangles(
        vertices=gaussians.vertices.detach().cpu().double().numpy(),
        faces=gaussians.faces.cpu().numpy(),
        colors=vertex_colors(gaussians),
    )


@torch.no_grad()
def vertex_colors(gaussians: BoundGaussians) -> UInt8[np.ndarray, "v 3"]:
    """Return vertex colors, blended from the SH coefficients of degree 0 of the Gaussians on adjacent faces.

    The weights are opacity times barycentric coordinate. Vertices without faces are gray.
    """
    per_triangle = gaussians.per_triangle
    faces = gaussians.faces
    colors = constant_to_colors(gaussians.constant).clamp(0, 1).view(-1, per_triangle, 3)
    # The offset makes faces whose Gaussians are all transparent count as well.
    weights = gaussians.opacities.view(-1, per_triangle, 1) * gaussians.barycentric + 1e-6
    of_corners = torch.einsum("mgc,mgk->mck", weights, colors).reshape(-1, 3)
    sums = torch.zeros_like(gaussians.vertices).index_add_(0, faces.reshape(-1), of_corners)
    totals = sums.new_zeros(len(sums)).index_add_(0, faces.reshape(-1), weights.sum(1).reshape(-1))
    blended = torch.where(totals[:, None] > 0, sums / totals[:, None].clamp_min(1e-9), 0.5)
    return (blended * 255).round().to(torch.uint8).cpu().numpy()


def write_refined_file(  # noqa: PLR0913  each is one key of the file
    path: Path,
    gaussians: BoundGaussians,
    *,
    iteration: int,
    epoch: int = 0,
    losses: Sequence[float] = (),
    optimizers: Sequence[Optimizer] = (),
) -> Path:
    """Write mesh and Gaussians atomically under the keys of SuGaR's refined checkpoints and return the path.

    SH coefficients below degree 3 are padded with zeros to the 15 functions that SuGaR expects.

    Args:
        path: path of the `.pt` file; an existing file is replaced.
        gaussians: trained Gaussians.
        iteration: number of finished training steps.
        epoch: number of epochs over the photos.
        losses: recorded training losses, in order.
        optimizers: optimizers whose states are included as a list, with their group names unchanged.
    """
    content = {
        "state_dict": _state(gaussians),
        "train_losses": [float(loss) for loss in losses],
        "epoch": epoch,
        "iteration": iteration,
        "optimizer_state_dict": [optimizer.state_dict() for optimizer in optimizers],
    }
    with whole_file(path) as draft:
        torch.save(content, draft)
    return path


def _state(gaussians: BoundGaussians) -> dict[str, Tensor]:
    parts = {name: part.detach().cpu() for name, part in gaussians.named_parameters()}
    missing = harmonics_count(MAX_DEGREE) - 1 - parts["rest"].shape[1]
    return {
        "_points": parts["vertices"],
        "_surface_mesh_faces": gaussians.faces.cpu(),
        "surface_mesh_thickness": torch.tensor(gaussians.thickness),
        "_scales": parts["plane_log_scales"],
        "_quaternions": parts["turns"],
        "all_densities": parts["opacity_logits"][:, None],
        "_sh_coordinates_dc": parts["constant"][:, None],
        # `pad` counts dimensions from the last: channels are unchanged, functions are appended.
        "_sh_coordinates_rest": functional.pad(parts["rest"], (0, 0, 0, missing)),
    }
