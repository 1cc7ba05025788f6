"""Products of a refinement: read back, they render the same image."""

import math

import numpy as np
import torch

from fieldwatch.recon.data import read_gaussian_ply, write_gaussian_ply
from fieldwatch.recon.geometry import colors_to_constant
from fieldwatch.recon.pipelines.splats import Gaussians, SplatModel, fused_cloud
from fieldwatch.recon.pipelines.splats.refined.products import refined_triangles, vertex_colors, write_refined_file


def test_the_ply_reads_back_and_draws_the_same_picture(refinement, tmp_path):
    model = refinement.model
    view = refinement.scene.views[1]
    with torch.no_grad():
        model.gaussians.turns.copy_(torch.randn_like(model.gaussians.turns))
        model.gaussians.plane_log_scales[:, 1] += 0.7
    path = write_gaussian_ply(tmp_path / "bound.ply", fused_cloud(model))
    cloud = read_gaussian_ply(path)
    assert torch.allclose(cloud.log_scales[:, 0], torch.tensor(math.log(model.gaussians.thickness)))
    free = SplatModel(Gaussians.from_cloud(cloud), model.background, antialiased=True)
    with torch.no_grad():
        one = model.render(view).features
        other = free.render(view).features
    assert one.std() > 0.05
    assert torch.allclose(one, other, atol=1e-4)


def test_vertices_take_the_colors_of_the_gaussians_around_them(make_bound):
    gaussians = make_bound([[0.0, 0, 0], [1.0, 0, 0], [0, 1.0, 0], [5.0, 5, 5]], [[0, 1, 2]], 3)
    shades = torch.tensor([[0.8, 0.2, 0.2], [0.2, 0.8, 0.2], [0.2, 0.2, 0.8]])
    with torch.no_grad():
        gaussians.constant.copy_(colors_to_constant(shades))
    expected = [
        [128, 89, 89],
        [89, 128, 89],
        [89, 89, 128],
        [128, 128, 128],
    ]  # halves and quarters; gray without a face
    assert np.abs(vertex_colors(gaussians).astype(int) - expected).max() <= 1


def test_the_mesh_keeps_its_faces_and_takes_the_vertices_as_they_are(refinement, solid_mesh):
    with torch.no_grad():
        refinement.gaussians.vertices.mul_(2)
    mesh = refined_triangles(refinement.gaussians)
    assert np.array_equal(mesh.faces, solid_mesh.faces)
    assert np.allclose(mesh.vertices, 2 * solid_mesh.vertices, atol=1e-5)


def test_the_file_of_the_original_has_its_keys_and_shapes(make_bound, tmp_path):
    gaussians = make_bound([[0.0, 0, 0], [1.0, 0, 0], [0, 1.0, 0]], [[0, 1, 2]], 6)
    path = write_refined_file(tmp_path / "refined.pt", gaussians, iteration=7, epoch=2, losses=[0.5, 0.25])
    content = torch.load(path, weights_only=True)
    assert {name: tuple(part.shape) for name, part in content["state_dict"].items()} == {
        "_points": (3, 3),
        "_surface_mesh_faces": (1, 3),
        "surface_mesh_thickness": (),
        "_scales": (6, 2),
        "_quaternions": (6, 2),
        "all_densities": (6, 1),
        "_sh_coordinates_dc": (6, 1, 3),
        "_sh_coordinates_rest": (6, 15, 3),
    }
    assert (content["iteration"], content["epoch"], content["train_losses"]) == (7, 2, [0.5, 0.25])
