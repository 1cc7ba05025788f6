"""Gaussians on a page: what a browser unpacks is what was packed, as finely as one sees; what counts most is kept."""

import base64
import math

import numpy as np
import pytest
import torch

from fieldwatch import InputError
from fieldwatch.recon.commands.view.packing import pack_gaussians
from fieldwatch.recon.data import GaussianCloud
from fieldwatch.recon.geometry import harmonics, quaternion_to_matrix

EYE = torch.eye(3, dtype=torch.float64)
ZERO = torch.zeros(3, dtype=torch.float64)


def cloud(count=200, seed=0, **changes):
    draw = torch.Generator().manual_seed(seed)
    values = {
        "means": torch.randn(count, 3, generator=draw) * torch.rand(count, 1, generator=draw) * 20,
        "log_scales": torch.randn(count, 3, generator=draw) - 3,
        "quaternions": torch.randn(count, 4, generator=draw),
        "opacity_logits": torch.randn(count, generator=draw),
        # Codes of colors reach from -0.5 to 1.5.
        "constant": torch.randn(count, 3, generator=draw).clamp(-3, 3),
        "rest": 0.3 * torch.randn(count, 15, 3, generator=draw),
    }
    return GaussianCloud(**values | changes)


def unpacked(packed):
    """Read the arrays as assets/splats.js does."""
    data = np.frombuffer(base64.b64decode(packed.packed), np.uint8)
    ends = np.cumsum([6, 3, 4, 4, 9]) * packed.count
    places, scales, turns, tints, tilts = np.split(data, ends[:-1])
    assert len(tilts) == 9 * packed.count
    codes = places.view("<u2").reshape(-1, 3) / 65535 * 2 - 1
    low, step = packed.log_scale
    return {
        "centers": np.sign(codes) * packed.unit * np.expm1(np.abs(codes) * packed.reach),
        "log_scales": low + step * scales.reshape(-1, 3),
        "quaternions": turns.view(np.int8).reshape(-1, 4) / 127,
        "colors": 2.0 * tints.reshape(-1, 4)[:, :3].astype(float) / 255 - 0.5,
        "opacities": tints.reshape(-1, 4)[:, 3] / 255,
        "tilts": packed.tilt / 127 * tilts.view(np.int8).reshape(-1, 3, 3),
    }


def pack(given, **changes):
    return pack_gaussians(given, **{"most": 1000, "frame": EYE, "middle": ZERO, "radius": 4.0} | changes)


def test_values_are_as_near_as_one_sees():
    given = cloud(opacity_logits=torch.linspace(-3, 3, 200))
    read = unpacked(pack(given))
    distances = given.means.double().norm(dim=1).numpy()
    errors = np.linalg.norm(read["centers"] - given.means.numpy(), axis=1)
    assert (errors < 2e-4 * (0.5 + distances)).all()
    assert np.abs(read["log_scales"] - given.log_scales.numpy()).max() < 0.02
    assert np.abs(read["opacities"] - given.opacity_logits.sigmoid().numpy()).max() < 1 / 500
    turned = quaternion_to_matrix(torch.tensor(read["quaternions"]))
    straight = quaternion_to_matrix(given.quaternions.double())
    assert float((turned - straight).abs().max()) < 0.04


def test_colors_are_those_of_the_harmonics_up_to_degree_1():
    given = cloud()
    read = unpacked(pack(given))
    direction = torch.nn.functional.normalize(torch.tensor([[0.3, -0.5, 0.8]], dtype=torch.float64), dim=1)
    base = harmonics(direction, 1)[0]
    coefficients = torch.cat([given.constant[:, None], given.rest[:, :3]], dim=1).double()
    colors = 0.5 + torch.einsum("f,nfc->nc", base, coefficients).numpy()
    shown = read["colors"] + read["tilts"] @ direction[0].numpy()
    assert np.abs(shown - colors).max() < 0.02


def test_another_frame_turns_centers_axes_and_colors():
    frame = quaternion_to_matrix(torch.tensor([0.5, 0.5, -0.5, 0.5], dtype=torch.float64))
    middle = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    given = cloud()
    read = unpacked(pack(given, frame=frame, middle=middle))
    wanted = (given.means.double() - middle) @ frame.T
    assert np.abs(read["centers"] - wanted.numpy()).max() < 0.02
    axes = frame @ quaternion_to_matrix(given.quaternions.double())
    assert float((quaternion_to_matrix(torch.tensor(read["quaternions"])) - axes).abs().max()) < 0.04
    plain = unpacked(pack(given))["tilts"]
    assert np.abs(read["tilts"] - plain @ frame.T.numpy()).max() < 0.02


def test_of_too_many_the_largest_and_most_opaque_are_kept_in_order():
    sizes = torch.tensor([-1.0, -3.0, -1.0, -2.0, -6.0])[:, None].expand(5, 3)
    opacities = torch.logit(torch.tensor([0.9, 0.9, 1e-3, 0.9, 0.9]))
    packed = pack(cloud(5, log_scales=sizes, opacity_logits=opacities), most=2)
    assert (packed.count, packed.left_out, packed.invisible) == (2, 2, 1)
    areas = [math.exp(2 * size) for size in (-1, -2, -3, -6)]
    assert packed.kept == pytest.approx(sum(areas[:2]) / sum(areas))
    assert unpacked(packed)["log_scales"][:, 0] == pytest.approx([-1.0, -2.0])


def test_gaussians_without_harmonics_have_one_color():
    assert (unpacked(pack(cloud(rest=torch.zeros(200, 0, 3))))["tilts"] == 0).all()


@pytest.mark.parametrize("changes", [{"opacity_logits": torch.full((3,), -9.0)}, {"means": torch.full((3, 3), np.nan)}])
def test_what_cannot_be_shown_is_refused(changes):
    with pytest.raises(InputError, match="expected"):
        pack(cloud(3, **changes))
