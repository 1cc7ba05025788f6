"""Lenses against projections of the same points by pycolmap 4.2.1, recorded here."""

import math

import pytest
import torch

from fieldwatch.recon.geometry import LENS_MODELS, Lens, LensError

POINTS = [[0.164, -0.276], [-0.551, -0.58], [0.376, 0.495], [0.128, 0.275], [0.052, 0.522]]

PROJECTED = {
    "SIMPLE_PINHOLE": (
        [500.0, 310.0, 245.0],
        [[392.0, 107.0], [34.5, -45.0], [498.0, 492.5], [374.0, 382.5], [336.0, 506.0]],
    ),
    "PINHOLE": (
        [510.0, 490.0, 310.0, 245.0],
        [[393.64, 109.76], [28.99, -39.2], [501.76, 487.55], [375.28, 379.75], [336.52, 500.78]],
    ),
    "SIMPLE_RADIAL": (
        [500.0, 310.0, 245.0, 0.019],
        [
            [392.160586, 106.729745],
            [31.149915, -48.526406],
            [499.380224, 494.317051],
            [374.111883, 382.740374],
            [336.135943, 507.364657],
        ],
    ),
    "SIMPLE_RADIAL_FISHEYE": (
        [500.0, 310.0, 245.0, -0.0298],
        [
            [389.116865, 111.852105],
            [80.78867, 3.724916],
            [476.654109, 464.398361],
            [371.978243, 378.156381],
            [333.778411, 483.698666],
        ],
    ),
    "RADIAL": (
        [500.0, 310.0, 245.0, 0.0214, -0.028],
        [
            [392.156478, 106.736658],
            [33.88641, -45.645884],
            [498.768623, 493.511884],
            [374.110845, 382.738144],
            [336.097984, 506.983612],
        ],
    ),
    "RADIAL_FISHEYE": (
        [500.0, 310.0, 245.0, 0.0138, -0.0195],
        [
            [389.436311, 111.314501],
            [77.115429, -0.141654],
            [478.608711, 466.971574],
            [372.204116, 378.641655],
            [333.996649, 485.889441],
        ],
    ),
    "OPENCV": (
        [510.0, 490.0, 310.0, 245.0, 0.0218, 0.0025, -0.012, -0.0046],
        [
            [394.016186, 108.154685],
            [17.94399, -52.616123],
            [499.598934, 483.691104],
            [374.688745, 378.434088],
            [335.693596, 497.417992],
        ],
    ),
    "OPENCV_FISHEYE": (
        [510.0, 490.0, 310.0, 245.0, -0.0283, -0.0225, 0.0102, 0.0088],
        [
            [390.694762, 114.522242],
            [76.830193, 9.18327],
            [479.76307, 459.726912],
            [373.215779, 375.489065],
            [334.236398, 478.755126],
        ],
    ),
    "FULL_OPENCV": (
        [510.0, 490.0, 310.0, 245.0, 0.0069, -0.007, 0.0298, 0.0289, 0.0111, 0.009, 0.0113, -0.0067],
        [
            [394.543473, 112.260609],
            [58.249243, -9.803372],
            [516.799619, 505.011676],
            [378.167226, 384.254],
            [341.438667, 513.118585],
        ],
    ),
    "FOV": (
        [510.0, 490.0, 310.0, 245.0, 0.9],
        [
            [397.060207, 104.229765],
            [53.192313, -14.722945],
            [495.374252, 479.472908],
            [378.166626, 385.70853],
            [336.348787, 499.128681],
        ],
    ),
    "THIN_PRISM_FISHEYE": (
        [510.0, 490.0, 310.0, 245.0, -0.0219, 0.0133, 0.0015, -0.0114, -0.0008, 0.0234, 0.026, -0.0085],
        [
            [391.131951, 114.646219],
            [75.704712, 3.05495],
            [481.872577, 458.421045],
            [373.784638, 375.032675],
            [336.064653, 478.825636],
        ],
    ),
    "RAD_TAN_THIN_PRISM_FISHEYE": (
        [
            510.0,
            490.0,
            310.0,
            245.0,
            0.0043,
            -0.0107,
            0.0057,
            -0.0097,
            -0.0065,
            0.0234,
            -0.0164,
            0.0074,
            -0.025,
            0.02,
            0.0172,
            -0.0156,
        ],
        [
            [388.272395, 116.388784],
            [63.608093, 7.297254],
            [475.307584, 464.120965],
            [371.636871, 376.842325],
            [330.194734, 484.37847],
        ],
    ),
    "SIMPLE_DIVISION": (
        [500.0, 310.0, 245.0, 0.0226],
        [
            [392.191908, 106.677033],
            [30.395543, -49.320481],
            [499.671056, 494.699927],
            [374.133638, 382.787113],
            [336.163744, 507.643734],
        ],
    ),
    "DIVISION": (
        [510.0, 490.0, 310.0, 245.0, -0.0265],
        [
            [393.412785, 110.127391],
            [33.600821, -34.536838],
            [499.835661, 485.115975],
            [375.121603, 379.42304],
            [336.329374, 498.941448],
        ],
    ),
    "SIMPLE_FISHEYE": (
        [500.0, 310.0, 245.0],
        [
            [389.345051, 111.468085],
            [77.636138, 0.406461],
            [478.204538, 466.439484],
            [372.138854, 378.501445],
            [333.94496, 485.37056],
        ],
    ),
    "FISHEYE": (
        [510.0, 490.0, 310.0, 245.0],
        [
            [390.931952, 114.138724],
            [72.988861, 5.298332],
            [481.568628, 462.010695],
            [373.381631, 375.831416],
            [334.423859, 480.563148],
        ],
    ),
    "EUCM": (
        [510.0, 490.0, 310.0, 245.0, 0.6, 1.1],
        [
            [390.960161, 114.093111],
            [72.504889, 4.808866],
            [481.789395, 462.289934],
            [373.401336, 375.872091],
            [334.446518, 480.781684],
        ],
    ),
}


def lens(model="OPENCV", **distortion):
    names = LENS_MODELS[model][1]
    own = {"f": 100.0, "fx": 100.0, "fy": 100.0, "cx": 50.0, "cy": 40.0, **distortion}
    return Lens.of(model, 100, 80, [own.get(name, 0.0) for name in names])


def test_every_model_is_compared():
    assert set(PROJECTED) == set(LENS_MODELS)


@pytest.mark.parametrize("model", PROJECTED)
def test_points_fall_where_colmap_says(model):
    parameters, expected = PROJECTED[model]
    found, _ = Lens.of(model, 640, 480, parameters).project(torch.tensor(POINTS, dtype=torch.float64))
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), atol=1e-6)


@pytest.mark.parametrize("model", PROJECTED)
def test_the_axis_falls_onto_the_principal_point_with_a_finite_gradient(model):
    parameters, _ = PROJECTED[model]
    own = Lens.of(model, 640, 480, parameters)
    axis = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    pixels, inside = own.project(axis)
    pixels.sum().backward()
    assert torch.allclose(pixels, torch.tensor([[310.0, 245.0]], dtype=torch.float64))
    assert bool(inside)
    assert bool(torch.isfinite(axis.grad).all())


@pytest.mark.parametrize("model", PROJECTED)
def test_a_smaller_picture_moves_points_in_proportion(model):
    parameters, _ = PROJECTED[model]
    own = Lens.of(model, 640, 480, parameters)
    points = torch.tensor(POINTS, dtype=torch.float64)
    share = torch.tensor([0.5, 0.25], dtype=torch.float64)
    assert torch.allclose(own.resized(320, 120).project(points)[0], own.project(points)[0] * share)


def test_which_lenses_bend():
    straight = [lens("PINHOLE"), lens("SIMPLE_PINHOLE"), lens("OPENCV"), lens("FULL_OPENCV"), lens("DIVISION")]
    assert not any(own.distorts for own in straight)
    assert all(own.distorts for own in (lens(k1=0.1), lens(p2=0.1), lens("FISHEYE"), lens("OPENCV_FISHEYE")))


def test_beyond_the_fold_of_its_formula_a_lens_sees_nothing():
    """r (1 - r^2 / 3) is not monotonic beyond r = 1, so points farther out would appear twice."""
    radii = torch.tensor([0.3, 0.9, 0.99, 1.02, 1.2])
    _, inside = lens("SIMPLE_RADIAL", f=50.0, k1=-1 / 3).project(torch.stack([radii, radii * 0], -1))
    assert inside.tolist() == [True, True, True, False, False]
    _, folded = lens("SIMPLE_RADIAL", k1=-20.0).project(torch.stack([radii, radii * 0], -1))
    assert not bool(folded.any())


def test_a_division_lens_sees_nothing_where_its_formula_has_no_value():
    _, inside = lens("DIVISION", k1=4.0).project(torch.tensor([[0.1, 0.0], [0.4, 0.0]]))
    assert inside.tolist() == [True, False]


def test_a_panorama_is_refused_with_what_to_do():
    with pytest.raises(LensError, match=r"unsupported camera model 'EQUIRECTANGULAR'.* undistort"):
        Lens.of("EQUIRECTANGULAR", 100, 50, [100, 50])


@pytest.mark.parametrize("parameters", [[100.0], [0.0, 50.0, 40.0], [math.nan, 50.0, 40.0], [100.0, math.inf, 40.0]])
def test_parameters_that_no_lens_has_are_refused(parameters):
    with pytest.raises(
        LensError, match=r"SIMPLE_PINHOLE.* 3 parameters .*got 1|focal lengths .*than 0 .*SIMPLE_PINHOLE"
    ):
        Lens.of("SIMPLE_PINHOLE", 100, 80, parameters)
