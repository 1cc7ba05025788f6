"""Normals from depth: exact on planes and balls, zero at borders and edges."""

import pytest
import torch

from fieldwatch.recon.geometry import Camera, look_at, normals_from_depth


def camera(position=(0.4, -2.0, 1.5), size=40):
    lens = {"fx": 45.0, "fy": 40.0, "cx": 17.0, "cy": 22.0}
    return Camera(name="a", width=size, height=size, **lens, world_from_camera=look_at(position, (0.0, 0.0, 0.0)))


def depth_of_plane(own, normal):
    """Return the depth of a plane through the origin."""
    origins, directions = own.rays()
    along = -(origins @ normal) / (directions @ normal)
    return along * (directions @ own.forward)


@pytest.mark.parametrize("normal", [(0.0, 0.0, 1.0), (0.3, -0.5, 0.8)])
def test_a_plane_has_its_normal_everywhere_but_at_the_border(normal):
    own = camera()
    normal = torch.tensor(normal, dtype=torch.float64)
    normal = normal / normal.norm()
    normals, valid = normals_from_depth(depth_of_plane(own, normal), own)
    assert torch.allclose(normals[valid], normal.expand_as(normals[valid]), atol=1e-9)
    assert bool(valid[1:-1, 1:-1].all())
    assert not bool(valid[[0, -1]].any() | valid[:, [0, -1]].any())
    assert float(normals[~valid].abs().max()) == 0


def test_normals_face_the_camera():
    own = camera()
    normals, valid = normals_from_depth(3 + 0.2 * torch.rand(40, 40, dtype=torch.float64), own)
    assert bool(((normals * own.rays()[1]).sum(-1)[valid] < 0).all())


def test_a_hole_takes_its_neighbors_along_and_a_mask_too():
    own = camera()
    depth = torch.full((40, 40), 2.0)
    depth[10, 10] = 0
    mask = torch.ones(40, 40, dtype=torch.bool)
    mask[30, 30] = False
    _, valid = normals_from_depth(depth, own.to(dtype=torch.float32), mask=mask)
    for row, column in ((10, 10), (30, 30)):
        around = [(row, column), (row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)]
        assert not any(bool(valid[place]) for place in around)
        assert bool(valid[row + 1, column + 1])


def test_gradients_are_finite_at_grazing_and_at_holes():
    own = camera(position=(0.0, -2.0, 1e-4)).to(dtype=torch.float32)
    depth = depth_of_plane(own, torch.tensor([0.0, 0.0, 1.0])).clamp(0, 50).requires_grad_()
    normals, _ = normals_from_depth(depth, own)
    (1 - normals[..., 2]).sum().backward()
    assert bool(torch.isfinite(depth.grad).all())


def test_gradients_are_right():
    own = camera(size=5)
    depth = (2 + torch.rand(5, 5, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(lambda d: normals_from_depth(d, own)[0], depth)


def test_another_size_is_refused():
    with pytest.raises(ValueError, match=r"camera 'a' .*40x30 and 40x40"):
        normals_from_depth(torch.ones(30, 40), camera())
