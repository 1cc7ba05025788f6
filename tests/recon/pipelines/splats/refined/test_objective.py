"""Normal consistency, against closed forms."""

import math

import pytest
import torch

from fieldwatch.recon.pipelines.splats.refined.binding import face_normals
from fieldwatch.recon.pipelines.splats.refined.objective import inner_pairs, normal_consistency

CUBE = torch.tensor([[x, y, z] for x in (0.0, 1.0) for y in (0.0, 1.0) for z in (0.0, 1.0)])
CUBE_FACES = torch.tensor(
    [
        *([0, 1, 3], [0, 3, 2], [4, 6, 7], [4, 7, 5], [0, 4, 5], [0, 5, 1]),
        *([2, 3, 7], [2, 7, 6], [0, 2, 6], [0, 6, 4], [1, 5, 7], [1, 7, 3]),
    ]
)


def consistency(vertices, faces):
    return normal_consistency(face_normals(vertices[faces]), inner_pairs(faces)).item()


def grid(size=5):
    places = torch.stack(torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij"), -1).reshape(-1, 2)
    vertices = torch.cat([places.float(), torch.zeros(size * size, 1)], 1)
    corner = (torch.arange(size - 1)[:, None] * size + torch.arange(size - 1)).reshape(-1)
    lower = torch.stack([corner, corner + size, corner + 1], 1)
    return vertices, torch.cat([lower, torch.stack([corner + size, corner + size + 1, corner + 1], 1)])


def test_a_plane_has_none_and_its_border_does_not_count():
    vertices, faces = grid()
    pairs = inner_pairs(faces)
    assert len(pairs) == 3 * 16 - 4 - 4  # edges of all cells minus those counted twice minus the border
    assert consistency(vertices, faces) == pytest.approx(0, abs=1e-6)


def test_a_cube_has_twelve_right_angles_among_eighteen_edges():
    assert len(inner_pairs(CUBE_FACES)) == 18
    assert consistency(CUBE, CUBE_FACES) == pytest.approx(12 / 18, abs=1e-6)


@pytest.mark.parametrize("angle", [0.0, 0.3, math.pi / 2, 3.0])
def test_a_fold_has_one_minus_the_cosine_of_its_angle(angle):
    vertices = torch.tensor([[0.0, 0, 0], [1.0, 0, 0], [0, 1.0, 0], [0, -math.cos(angle), math.sin(angle)]])
    faces = torch.tensor([[0, 1, 2], [1, 0, 3]])
    assert consistency(vertices, faces) == pytest.approx(1 - math.cos(angle), abs=1e-6)


def test_an_edge_of_three_faces_and_a_single_triangle_have_no_pairs():
    assert len(inner_pairs(torch.tensor([[0, 1, 2]]))) == 0
    assert len(inner_pairs(torch.tensor([[0, 1, 2], [1, 0, 3], [0, 1, 4]]))) == 0
    normals = torch.eye(3).requires_grad_()
    nothing = normal_consistency(normals, inner_pairs(torch.tensor([[0, 1, 2]])))
    nothing.backward()
    assert nothing.item() == 0
    assert torch.equal(normals.grad, torch.zeros(3, 3))


def test_a_step_against_its_gradient_flattens_a_fold():
    vertices = torch.tensor([[0.0, 0, 0], [1.0, 0, 0], [0, 1.0, 0], [0, -1.0, 0.5]], requires_grad=True)
    faces = torch.tensor([[0, 1, 2], [1, 0, 3]])
    before = normal_consistency(face_normals(vertices[faces]), inner_pairs(faces))
    before.backward()
    after = consistency(vertices.detach() - 0.1 * vertices.grad, faces)
    assert after < 0.95 * before.item()
