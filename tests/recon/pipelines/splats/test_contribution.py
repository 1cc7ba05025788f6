"""Contribution of Gaussians: all light of a single one, none of one behind a wall; those with little can be pruned."""

import pytest
import torch

from fieldwatch.recon.pipelines.splats import Gaussians, Rows, SplatModel
from fieldwatch.recon.pipelines.splats.contribution import contributes_little, contributions
from fieldwatch.recon.render import View


def model_of(places: list[list[float]], opacity: float, size: float = 0.05) -> SplatModel:
    count = len(places)
    logits = torch.full((count,), opacity).logit()
    quaternions = torch.tensor([[1.0, 0.0, 0.0, 0.0]]).repeat(count, 1)
    rows = Rows(
        torch.tensor(places),
        torch.full((count, 3), size).log(),
        quaternions,
        logits,
        torch.zeros(count, 3),
        torch.zeros(count, 0, 3),
    )
    return SplatModel(Gaussians(rows), torch.zeros(3))


def view(side: float = 1.0) -> View:
    pose = torch.diag(torch.tensor([side, 1.0, side, 1.0]))
    pose[2, 3] = 4.0
    return View(camera_from_world=pose, fx=100.0, fy=100.0, cx=32.0, cy=32.0, width=64, height=64)


def test_a_lone_gaussian_adds_what_is_drawn_of_it() -> None:
    model = model_of([[0.0, 0.0, 0.0]], 0.9)
    alpha = model.render(view()).alpha.detach().sum()

    assert contributions(model, view()).item() == pytest.approx(alpha.item(), rel=1e-5)


def test_what_is_hidden_adds_nothing_and_is_seen_from_the_other_side() -> None:
    front = [[0.05 * i, 0.05 * j, -0.5] for i in range(-4, 5) for j in range(-4, 5)]
    model = model_of([*front, [0.0, 0.0, 0.5]], 0.98)

    assert contributions(model, view())[-1].item() < 1e-3
    assert contributions(model, view(-1.0))[-1].item() > 1.0


def test_no_gradient_is_left_on_the_model() -> None:
    model = model_of([[0.0, 0.0, 0.0]], 0.9)
    contributions(model, view())

    assert all(parameter.grad is None for parameter in model.gaussians.parameters())


def test_what_adds_little_may_go() -> None:
    light = torch.tensor([0.9, 40.0, 0.0, 60.0, 0.4])

    assert contributes_little(light, 1.0).tolist() == [True, False, True, False, True]
    assert contributes_little(light, 0.5).tolist() == [False, False, True, False, True]


def test_what_adds_as_much_as_the_others_stays_however_little_each_adds() -> None:
    light = torch.cat([torch.full((900,), 0.5), torch.full((100,), 0.01), torch.zeros(50)])

    assert int(contributes_little(light, 1.0).sum()) == 150
    assert int(contributes_little(light, 1e-3).sum()) == 50


@pytest.mark.parametrize("light", [torch.zeros(0), torch.zeros(3), torch.full((3,), torch.nan)])
def test_without_light_nothing_breaks(light: torch.Tensor) -> None:
    assert bool((contributes_little(light, 1.0) == (light == 0)).all())
