"""Products of a refinement: the mesh, Gaussians for viewers, renders, a film, SuGaR's file."""

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
from fieldwatch.recon.geometry import MAX_DEGREE, constant_to_colours, harmonics_count
from fieldwatch.recon.mesh import Triangles, write_mesh
from fieldwatch.recon.pipelines.splats.coarse_file import fused_cloud
from fieldwatch.recon.pipelines.splats.model import SplatModel
from fieldwatch.recon.pipelines.splats.novel_views import render_path, turntable_views
from fieldwatch.recon.pipelines.splats.products import RATE, write_geometry, write_renders
from fieldwatch.recon.pipelines.splats.refined.binding import BoundGaussians
from fieldwatch.recon.pipelines.splats.scene import Scene


def write_refined_products(  # noqa: PLR0913  the model, where to, and the numbers that go into its files
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
    """Write all products of a finished refinement; return their paths by name.

    `refined_mesh.ply` has the vertices' colours, `point_cloud.ply` the Gaussians as 3DGS stores them, with the
    logarithm of the thickness as `scale_0`, `refined_<iteration>.pt` SuGaR's keys; the rest is as in the coarse stage.

    Args:
        model: what was trained; its Gaussians are bound to a mesh.
        scene: what it was trained on.
        folder: where to; made if missing, files of the same names are replaced.
        iteration: number of training steps made.
        turntable: seconds of film; 0 makes none.
        losses: for the `.pt` file.
        optimizers: for the `.pt` file.
        between: called between parts of the work; it may raise, to give up.
        bands: number of bands in which images are rendered.

    Raises:
        PhotoError: a test photo cannot be read.
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
    """Return the mesh as it is now, with the colours that its Gaussians have from all sides."""
    return Triangles(
        vertices=gaussians.vertices.detach().cpu().double().numpy(),
        faces=gaussians.faces.cpu().numpy(),
        colours=vertex_colours(gaussians),
    )


@torch.no_grad()
def vertex_colours(gaussians: BoundGaussians) -> UInt8[np.ndarray, "v 3"]:
    """Blend at each vertex the constant colours of the Gaussians on its faces, by opacity and barycentric share.

    A vertex that no face has is grey.
    """
    per_triangle = gaussians.per_triangle
    faces = gaussians.faces
    colours = constant_to_colours(gaussians.constant).clamp(0, 1).view(-1, per_triangle, 3)
    weights = (
        gaussians.opacities.view(-1, per_triangle, 1) * gaussians.barycentric + 1e-6
    )  # so that faces of no opacity count, too
    of_corners = torch.einsum("mgc,mgk->mck", weights, colours).reshape(-1, 3)
    sums = torch.zeros_like(gaussians.vertices).index_add_(0, faces.reshape(-1), of_corners)
    shares = sums.new_zeros(len(sums)).index_add_(0, faces.reshape(-1), weights.sum(1).reshape(-1))
    blended = torch.where(shares[:, None] > 0, sums / shares[:, None].clamp_min(1e-9), 0.5)
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
    """Write mesh and Gaussians under the names of SuGaR's refined checkpoints; whole or not at all. Return the path.

    Harmonics below degree 3 are filled up with zeros, to the 15 functions that SuGaR expects.

    Args:
        path: of the `.pt` file; replaced when it exists.
        gaussians: what was trained.
        iteration: number of training steps made.
        epoch: number of passes over the photos.
        losses: of training, in the order in which they were noted.
        optimizers: whose states go along, as a list; their groups keep our names.
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
        "_sh_coordinates_rest": functional.pad(parts["rest"], (0, 0, 0, missing)),
    }
