"""Population statistics, against plain torch and with injected faults."""

import math

import pytest
import torch

from fieldwatch.recon.pipelines.splats import Gaussians, Rows
from fieldwatch.recon.pipelines.splats.last_visible import LastVisible
from fieldwatch.recon.pipelines.splats.population import parameter_statistics, population_shares
from fieldwatch.recon.pipelines.splats.tags import REST_EVERY, SPLATS_METRICS

EXTENT = 2.0


@pytest.fixture
def rows():
    generator = torch.Generator().manual_seed(4)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731  one line, eight uses
    shape = {"means": draw(100, 3) + 500, "log_scales": draw(100, 3) * 0.3 - 4, "quaternions": draw(100, 4)}
    return Rows(**shape, opacity_logits=draw(100), constant=draw(100, 3), rest=0.1 * draw(100, 15, 3))


@pytest.fixture
def shares(rows):
    """Measure Gaussians with some values replaced."""

    def measure(number=0, last_visible=None, visible=40, **changes):
        gaussians = Gaussians(rows)
        with torch.no_grad():
            for name, (chosen, value) in changes.items():
                gaussians.get_parameter(name)[chosen] = value
        found = population_shares(
            gaussians, number, size=EXTENT, last_visible=last_visible or LastVisible(3), visible=visible
        )
        return {name.removeprefix("Population/"): pytest.approx(float(value)) for name, value in found.items()}

    return measure


def test_moments_are_those_of_torch_far_from_the_origin_too(rows):
    gaussians = Gaussians(rows)
    found = parameter_statistics(gaussians, 0)
    wanted = {
        "points": rows.means,
        "scales": rows.log_scales.exp(),
        "quaternions": rows.quaternions,
        "sh_dc": rows.constant,
        "sh_rest": rows.rest,
        "opacities": rows.opacity_logits.sigmoid(),
    }
    for name, values in wanted.items():
        std, mean = torch.std_mean(values.double())
        assert float(found[f"Stats/{name}_mean"]) == pytest.approx(float(mean), rel=1e-5, abs=1e-6)
        assert float(found[f"Stats/{name}_std"]) == pytest.approx(float(std), rel=1e-5)
    assert int(found["Stats/n_active_gaussians"]) == 100


def test_all_coefficients_are_read_at_every_fifth_measurement_only(rows):
    gaussians = Gaussians(rows)
    numbers = [number for number in range(11) if "Stats/sh_rest_mean" in parameter_statistics(gaussians, number)]
    assert numbers == [0, REST_EVERY, 2 * REST_EVERY]
    flat = Gaussians(rows._replace(rest=rows.rest[:, :0]))
    assert "Stats/sh_rest_mean" not in parameter_statistics(flat, 0)


def test_one_gaussian_has_no_spread(rows):
    one = Gaussians(Rows(*(part[:1] for part in rows)))
    assert float(parameter_statistics(one, 0)["Stats/opacities_std"]) == 0


def test_what_the_samples_are_drawn_from_is_absent_while_the_term_is_off(rows):
    gaussians = Gaussians(rows)
    assert "Stats/n_gaussians_sdf_sampling" not in parameter_statistics(gaussians, 0)
    assert parameter_statistics(gaussians, 0, sampled=31)["Stats/n_gaussians_sdf_sampling"] == 31


def test_healthy_gaussians_are_none_of_them(shares):
    assert shares() == {"transparent": 0, "giant": 0, "needle": 0, "non_finite": 0, "visible": 0.4}


@pytest.mark.parametrize(
    ("kind", "share", "changes"),
    [
        ("transparent", 0.07, {"opacity_logits": (slice(7), -6.0)}),
        ("giant", 0.2, {"log_scales": ((slice(20), slice(1)), math.log(0.21))}),
        ("needle", 0.3, {"log_scales": (slice(30), torch.tensor([-4.0, -1.6, -4.1]))}),
        ("non_finite", 0.01, {"means": ((7, 2), math.nan)}),
        ("non_finite", 0.02, {"rest": ((slice(2), 14), math.inf)}),
        ("non_finite", 0.05, {"opacity_logits": (slice(5), -math.inf)}),
    ],
)
def test_planted_ones_are_counted_under_their_kind(shares, kind, share, changes):
    assert shares(**changes)[kind] == share


def test_a_disc_is_no_needle_and_a_large_scene_has_larger_giants(shares):
    disc = torch.tensor([-1.7, -1.7, -9.0])
    assert shares(log_scales=(slice(30), disc))["needle"] == 0
    assert shares(log_scales=(slice(30), math.log(0.19)))["giant"] == 0


def test_unseen_ones_are_counted_once_two_rounds_were_watched(shares):
    last_visible = LastVisible(3)
    for step in range(5):
        assert "never_visible" not in shares(last_visible=last_visible)
        last_visible.add(torch.arange(10 * step, 10 * step + 60), 100, step)
    assert shares(last_visible=last_visible)["never_visible"] == 0
    last_visible.add(torch.arange(60), 100, 5)
    assert shares(last_visible=last_visible)["never_visible"] == 0
    for step in (6, 7, 8, 9):
        last_visible.add(torch.arange(60), 100, step)
    assert shares(last_visible=last_visible)["never_visible"] == 0.4


def test_every_name_is_declared(rows, shares):
    last_visible = LastVisible(1)
    last_visible.add(torch.arange(3), 100, 0)
    names = [
        *parameter_statistics(Gaussians(rows), 0, sampled=2),
        *(f"Population/{name}" for name in shares(last_visible=last_visible)),
    ]
    assert [name for name in names if name not in SPLATS_METRICS] == []
