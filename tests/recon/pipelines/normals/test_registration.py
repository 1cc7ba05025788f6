"""Registration of views to known surfaces: from any direction, noisy, with holes, of other objects."""

from dataclasses import replace

import numpy as np
import orjson
import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn

from fieldwatch.recon.data import SolidUnion, read_mask_file, read_normal_file, synthetic_normal_maps, write_normal_maps
from fieldwatch.recon.data.normal_maps import PlacedShape, read_normal_maps
from fieldwatch.recon.geometry import Camera, exponential, look_at
from fieldwatch.recon.pipelines.normals.pose_accuracy import rotation_angles
from fieldwatch.recon.pipelines.normals.registration import RegistrationOptions, register_view
from fieldwatch.recon.pipelines.normals.registration_files import read_view, write_registration
from fieldwatch.recon.pipelines.normals.registration_refine import refine_pose
from fieldwatch.recon.pipelines.normals.registration_search import rotation_between, towards
from fieldwatch.recon.pipelines.normals.registration_shape import Shape, moments

FEW = RegistrationOptions(
    cells=36, directions=80, rolls=16, window=20, candidates=2, finalists=1, fine=80, coarse=40, steps=10
)
NOWHERE = torch.eye(4, dtype=torch.float64)


class SolidField(nn.Module):
    """The built-in object's signed distance, exact, in place of a trained field."""

    def __init__(self) -> None:
        super().__init__()
        self.solid = SolidUnion()

    def forward(self, points: Float[Tensor, "n 3"]) -> Float[Tensor, " n"]:
        """Distance to the nearest shape."""
        return self.solid.distance(points)

    def with_gradient(self, points: Float[Tensor, "n 3"]) -> tuple[Float[Tensor, " n"], Float[Tensor, "n 3"]]:
        """Distance, and the normal of the nearest shape."""
        places = points.detach().double().numpy()
        parts = self.solid.shapes
        distances = np.stack([part.shape.distance(part.local(places)) for part in parts])
        normals = np.stack([part.shape.normals(part.local(places)) @ part.rotation.T for part in parts])
        nearest = distances.argmin(0)
        chosen = normals[nearest, np.arange(len(places))]
        return torch.from_numpy(distances.min(0)).to(points), torch.from_numpy(chosen).to(points)


@pytest.fixture(scope="module")
def solid(ball):
    """The built-in object as a model, and its settings."""
    config = ball.config()
    model = ball.model(config, ball.scene(config))
    model.sdf = SolidField()
    return model, config.rendering


def placed(direction, distance=3.2, roll=0.0, size=72) -> Camera:
    """Return a rolled camera that looks slightly past the object, through an off-center lens."""
    place = distance * torch.nn.functional.normalize(torch.tensor(direction, dtype=torch.float64), dim=0)
    pose = look_at(place.tolist(), (0.08, -0.05, 0.04))
    pose[:3, :3] = pose[:3, :3] @ exponential(torch.tensor([[0.0, 0.0, roll]], dtype=torch.float64))[0]
    lens = {"fx": 100.0, "fy": 101.0, "cx": 34.0, "cy": 40.0}
    return Camera(name="new", width=size, height=size + 8, **lens, world_from_camera=pose)


def observed(camera, **how):
    """Return the camera's view of the built-in object with its pose removed."""
    view = synthetic_normal_maps(cameras=[camera], depth="none", **how).views[0]
    return replace(view, camera=replace(camera, world_from_camera=NOWHERE))


def off(pose, camera) -> tuple[float, float]:
    known = camera.world_from_camera
    return rotation_between(pose, known), float((pose[:3, 3] - known[:3, 3]).norm())


@pytest.fixture(scope="module")
def found(solid):
    camera = placed((0.4, -0.7, 0.55), roll=2.1)
    return register_view(solid[0], observed(camera), solid[1], options=replace(FEW, candidates=5, finalists=2)), camera


def test_a_view_from_anywhere_is_registered_from_scratch(found):
    registration, camera = found
    angle, distance = off(registration.best.pose, camera)
    assert angle < 0.1
    assert distance < 0.003
    assert registration.fits
    assert not registration.ambiguous
    figures = registration.figures()
    assert figures["mae"] < 1.5
    assert figures["iou"] > 0.97
    assert figures["rival_score"] > 4 * figures["score"]
    assert figures["rival_rotation"] >= FEW.distinct


def test_noisy_normals_from_below_and_near(solid):
    camera = placed((-0.5, 0.2, -0.8), distance=2.4, roll=-1.0)
    registration = register_view(solid[0], observed(camera, noise=5.0, seed=3), solid[1], options=FEW)
    angle, distance = off(registration.best.pose, camera)
    assert angle < 0.5
    assert distance < 0.02
    assert registration.fits
    # the mean length of a normal vector of two dimensions: the noise is what is left
    assert registration.figures()["mae"] == pytest.approx(5 * (np.pi / 2) ** 0.5, abs=1.0)


def test_holes_of_the_mask_do_no_harm_and_are_completed(solid):
    camera = placed((0.9, 0.3, 0.3), roll=0.4)
    whole = observed(camera)
    mask = whole.mask.clone()
    rows, columns = (int(each.double().mean()) for each in torch.nonzero(mask, as_tuple=True))
    mask[rows - 5 : rows + 6, columns - 7 : columns + 5] = False
    normals = torch.where(mask[..., None], whole.normals, torch.zeros(()))
    registration = register_view(solid[0], replace(whole, mask=mask, normals=normals), solid[1], options=FEW)
    angle, distance = off(registration.best.pose, camera)
    assert angle < 0.3
    assert distance < 0.01
    assert registration.iou > 0.97
    hole = whole.mask & ~mask & registration.added
    assert int(hole.sum()) > 0.95 * int((whole.mask & ~mask).sum())
    wrong = torch.rad2deg((registration.completed[hole] * whole.normals[hole]).sum(-1).clamp(-1, 1).acos())
    assert float(wrong.median()) < 1
    torch.testing.assert_close(registration.completed[mask], whole.normals[mask], rtol=0, atol=0)


def test_another_object_does_not_fit(solid):
    box = SolidUnion().shapes[2]
    other = SolidUnion((PlacedShape(box.shape, np.zeros(3), np.eye(3)),))
    view = synthetic_normal_maps(other, cameras=[placed((0.5, 0.6, 0.4))], depth="none").views[0]
    registration = register_view(solid[0], view, solid[1], options=FEW)
    assert not registration.fits
    assert registration.figures()["mae"] > FEW.most_error or registration.iou < FEW.least_iou


def test_a_ball_fits_from_everywhere_and_that_is_said(ball):
    config = ball.config()
    scene = ball.scene(config, size=32)
    options = replace(FEW, directions=40, rolls=6, cells=32, finalists=2)
    registration = register_view(ball.model(config, scene), scene.maps.views[0], config.rendering, options=options)
    assert registration.fits
    assert registration.ambiguous
    known = scene.maps.views[0].camera.position.norm()
    assert float(registration.best.pose[:3, 3].norm()) == pytest.approx(float(known), rel=0.01)


@pytest.mark.parametrize(
    ("empty", "message"), [("mask", "has an empty mask"), ("normals", r"no normal at any of the \d+ pixels")]
)
def test_nothing_to_register_is_refused(solid, empty, message):
    view = observed(placed((1.0, 0.0, 0.3)))
    with pytest.raises(ValueError, match=message):
        register_view(solid[0], replace(view, **{empty: torch.zeros_like(getattr(view, empty))}), solid[1])


def test_a_field_without_a_surface_is_refused(ball):
    config = ball.config()
    scene = ball.scene(config)
    with pytest.raises(ValueError, match=r"no zero crossing.*--checkpoint"):
        register_view(ball.model(config, scene, ((0.0, 0.0, 0.0), -0.3)), scene.maps.views[0], config.rendering)


@pytest.mark.parametrize("wrong", [{"rolls": 0}, {"directions": 1}, {"most_error": 0.0}, {"least_iou": 1.2}])
def test_options_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RegistrationOptions(**wrong)


def test_refining_a_near_pose_converges_to_the_exact_one(solid):
    """Without noise, only the quantization of the outline remains."""
    camera = placed((0.1, -0.9, 0.2))
    turn = torch.eye(4, dtype=torch.float64)
    turn[:3, :3] = exponential(torch.tensor([[0.03, -0.02, 0.02]], dtype=torch.float64))[0]
    turn[:3, 3] = torch.tensor([0.02, 0.03, -0.02], dtype=torch.float64)
    shape = Shape(solid[0], 40)
    better = refine_pose(shape, observed(camera), turn @ camera.world_from_camera, 20)
    angle, distance = off(better.pose, camera)
    assert angle < 0.05
    assert distance < 0.002


def test_directions_and_sizes_do_not_depend_on_where_the_camera_looks():
    camera = placed((1.0, 0.0, 0.0), size=160)
    mask = torch.zeros(168, 160, dtype=torch.bool)
    mask[20:50, 110:140] = True
    middle, size = moments(mask, camera)
    assert size == pytest.approx(900 / (100 * 101) * float(middle[2]) ** 3, rel=0.05)
    assert torch.allclose(towards(middle) @ torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64), middle)
    assert float(rotation_angles(towards(middle)[None], torch.eye(3, dtype=torch.float64)[None])[0]) == pytest.approx(
        float(torch.rad2deg(middle[2].acos())), abs=1e-6
    )


def test_files_hold_the_pose_in_both_frames_and_a_set_that_is_read_again(found, ball, tmp_path):
    registration, camera = found
    scene = ball.scene(ball.config())
    matrix = torch.tensor([[2.0, 0, 0, 1], [0, 2, 0, -3], [0, 0, 2, 5], [0, 0, 0, 1]], dtype=torch.float64)
    scene = replace(scene, maps=replace(scene.maps, world_from_unit=matrix))
    files = write_registration(registration, scene, tmp_path / "out", {"step": 7})
    table = orjson.loads(files["pose"].read_bytes())
    assert table["step"] == 7
    assert table["fit"]["fits"] is True
    known = camera.world_from_camera
    world = np.load(files["pose_world"])
    np.testing.assert_allclose(np.load(files["pose_unit"]), known, atol=0.005)
    np.testing.assert_allclose(world[:3, 3], (2 * known[:3, 3] + matrix[:3, 3]).numpy(), atol=0.01)
    np.testing.assert_allclose(table["world_from_camera"], world)
    depth = np.load(files["depth"])
    exact = 2 * SolidUnion().depth(camera).numpy()
    both = np.isfinite(depth) & (exact > 0)
    assert np.abs(depth - exact)[both].mean() < 0.02
    assert np.isnan(depth).any()
    again = read_normal_maps(files["completed"]).views[0]
    torch.testing.assert_close(again.normals, registration.completed, atol=1e-4, rtol=0)
    torch.testing.assert_close(again.camera.world_from_camera, registration.best.pose, atol=1e-6, rtol=0)
    assert {path.suffix for path in files.values()} == {".json", ".npy", ".png", ""}


@pytest.fixture
def map_file(tmp_path):
    """Write a map and its mask as files, in OpenGL axes; return them with the observed view."""
    view = observed(placed((0.3, 0.8, 0.5)))
    folder = write_normal_maps(synthetic_normal_maps(cameras=[placed((0.3, 0.8, 0.5))], depth="none"), tmp_path / "set")
    return folder / "normal_camera_space_GT" / "000.png", folder / "mask" / "000.png", view


def test_a_map_is_read_in_our_axes_with_the_lens_that_is_given(map_file):
    image, mask, known = map_file
    lens = (100.0, 101.0, 34.0, 40.0)
    view = read_view(image, mask, lens)
    torch.testing.assert_close(view.normals, known.normals, atol=1e-4, rtol=0)
    assert torch.equal(view.mask, read_mask_file(mask))
    bare = read_view(image, None, replace(known.camera, width=144, height=160, fx=200.0, fy=202.0, cx=68.0, cy=80.0))
    assert torch.equal(bare.mask, known.mask)
    assert (bare.camera.fx, bare.camera.fy, bare.camera.cx, bare.camera.cy) == lens
    turned = read_view(image, mask, lens, axes="opencv")
    torch.testing.assert_close(turned.normals[..., 2], -known.normals[..., 2], atol=1e-4, rtol=0)


def test_what_cannot_be_read_is_told(map_file, tmp_path):
    image, mask, known = map_file
    with pytest.raises(ValueError, match=r"the lens of .* is unknown"):
        read_view(image, mask, None)
    with pytest.raises(ValueError, match="same aspect ratio"):
        read_view(image, mask, replace(known.camera, width=200))
    with pytest.raises(ValueError, match="does not exist"):
        read_view(tmp_path / "no.png", mask, known.camera)
    np.save(tmp_path / "mask.npy", np.ones((5, 5), np.uint8))
    with pytest.raises(ValueError, match=r"same size, got .* with \(\d+, \d+\)"):
        read_view(image, tmp_path / "mask.npy", known.camera)
    mixed = read_normal_file(image).numpy()
    mixed[::2] *= -1
    np.save(tmp_path / "mixed.npy", mixed)
    with pytest.raises(ValueError, match=r"mixed\.npy.* detect .*axes .*--axes opengl"):
        read_view(tmp_path / "mixed.npy", mask, known.camera)
