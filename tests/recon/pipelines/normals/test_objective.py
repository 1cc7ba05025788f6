"""Terms of rays: only weighted ones are computed, and the scale of a view's integrated depth does not matter."""

from dataclasses import replace

import pytest
import torch

from fieldwatch.recon.losses import eikonal_error
from fieldwatch.recon.pipelines.normals.batches import RayBatch
from fieldwatch.recon.pipelines.normals.config import TermOptions
from fieldwatch.recon.pipelines.normals.objective import (
    LEAST_OPACITY,
    depth_term,
    mask_term,
    normal_term,
    staged_terms,
    view_losses,
)
from fieldwatch.recon.pipelines.normals.rendering import RenderedRays
from fieldwatch.recon.render import PackedSamples

POSES = torch.eye(4).repeat(3, 1, 1)
POSES[2, :3, :3] = torch.tensor([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
ALL = {"normal": 1.0, "depth": 2.0, "mask": 3.0, "eikonal": 0.5}


def unit(vectors):
    return vectors / vectors.norm(dim=-1, keepdim=True)


@pytest.fixture
def batch():
    rays = 12
    return RayBatch(
        view=torch.tensor([0] * 5 + [2] * 7),
        pixel=torch.arange(rays),
        directions=unit(torch.randn(rays, 3)),
        normals=unit(torch.randn(rays, 3)),
        mask=torch.tensor([True, True, True, False, True] + [True] * 5 + [False] * 2),
        known=torch.tensor([True, True, False, False, True] + [True] * 5 + [False] * 2),
        distance=3 + torch.rand(rays),
        weights=0.5 + torch.rand(rays),
    )


@pytest.fixture
def rendered():
    rays = 12
    none = torch.zeros(0)
    samples = PackedSamples(t_start=none, t_end=none, ray_index=none.long(), n_rays=rays)
    opacity = 0.2 + 0.8 * torch.rand(rays)
    return RenderedRays(
        opacity=opacity,
        normal=opacity[:, None] * unit(torch.randn(rays, 3)),
        distance=opacity * (3 + torch.rand(rays)),
        gradients=torch.randn(30, 3),
        samples=samples,
        filled=0,
        starved=0.0,
        ray_count=rays,
    )


def ray_terms(weights, batch, rendered, poses, options):
    return staged_terms(
        weights,
        normal=lambda: normal_term(batch, rendered, poses, options),
        depth=lambda: depth_term(batch, rendered, options),
        mask=lambda: mask_term(batch, rendered, options),
        eikonal=lambda: eikonal_error(rendered.gradients),
    )


def values(*arguments):
    return {name: value.item() for name, (_, value) in ray_terms(*arguments).items()}


@pytest.mark.parametrize("weights", [{"mask": 3.0}, {"normal": 1.0, "eikonal": 0.1}, ALL, {}])
def test_terms_without_a_weight_are_absent(batch, rendered, weights):
    terms = ray_terms(weights, batch, rendered, POSES, TermOptions())
    assert {name: weight for name, (weight, _) in terms.items()} == weights


def test_terms_without_a_weight_are_not_computed():
    computed = []

    def term(name):
        computed.append(name)
        return torch.tensor(2.0)

    terms = staged_terms({"mask": 3.0}, normal=lambda: term("normal"), mask=lambda: term("mask"))
    assert computed == ["mask"]
    assert float(terms.total) == 6.0


def test_normals_are_compared_where_the_pose_turns_them(batch, rendered):
    observed = torch.einsum("nij,nj->ni", POSES[batch.view, :3, :3], batch.normals)
    assert float((observed[5:] - batch.normals[5:]).abs().max()) > 0.1
    right = replace(rendered, normal=rendered.opacity[:, None] * observed)
    assert values({"normal": 1.0}, batch, right, POSES, TermOptions())["normal"] == pytest.approx(0, abs=1e-12)


def test_direction_divides_by_the_opacity_and_blended_does_not(batch, rendered):
    observed = torch.einsum("nij,nj->ni", POSES[batch.view, :3, :3], batch.normals)
    blended = values({"normal": 1.0}, batch, rendered, POSES, TermOptions(rendered_normals="blended"))["normal"]
    wanted = (rendered.normal - observed)[batch.known].square().sum(-1).mean()
    assert blended == pytest.approx(float(wanted), rel=1e-5)
    direction = values({"normal": 1.0}, batch, rendered, POSES, TermOptions())["normal"]
    shown = rendered.normal / rendered.opacity[:, None]
    assert direction == pytest.approx(float((shown - observed)[batch.known].square().sum(-1).mean()), rel=1e-5)
    lengths = TermOptions(normal_norm="l1")
    assert values({"normal": 1.0}, batch, rendered, POSES, lengths)["normal"] == pytest.approx(
        float((shown - observed)[batch.known].abs().sum(-1).mean()), rel=1e-5
    )


@pytest.mark.parametrize(("kind", "counts"), [("direction", False), ("blended", True)])
def test_rays_that_see_next_to_nothing_have_no_direction(batch, rendered, kind, counts):
    options = TermOptions(rendered_normals=kind)
    weights = {"normal": 1.0, "depth": 1.0}
    faint = rendered.opacity.clone()
    faint[0] = 0.5 * LEAST_OPACITY
    before = replace(rendered, opacity=faint, normal=rendered.normal.clone().requires_grad_())
    ray_terms(weights, batch, before, POSES, options)["normal"].value.backward()
    assert bool(before.normal.grad[0].any()) == counts
    assert bool(before.normal.grad[1].any())


@pytest.mark.parametrize("kind", ["direction", "blended"])
def test_depth_is_compared_after_one_scale_for_each_view(batch, rendered, kind):
    options = TermOptions(rendered_normals=kind)
    weights = {"depth": 1.0}
    before = values(weights, batch, rendered, POSES, options)["depth"]
    scale = torch.where(batch.view == 0, 0.01, 70.0)
    scaled = replace(batch, distance=scale * batch.distance)
    assert before > 0.01
    assert values(weights, scaled, rendered, POSES, options)["depth"] == pytest.approx(before, rel=1e-4)
    shown = scale * batch.distance * (rendered.opacity if kind == "direction" else 1)
    right = replace(rendered, distance=shown)
    assert values(weights, batch, right, POSES, options)["depth"] == pytest.approx(0, abs=1e-4)


def test_depth_is_the_mean_over_views_and_counts_known_distances_only(batch, rendered):
    weights = {"depth": 1.0}
    options = TermOptions()
    parts = []
    for own in (slice(0, 5), slice(5, 12)):
        names = ("view", "pixel", "directions", "normals", "mask", "known", "distance", "weights")
        one = RayBatch(**{name: getattr(batch, name)[own] for name in names})
        shown = {name: getattr(rendered, name)[own] for name in ("opacity", "normal", "distance")}
        seen = replace(rendered, **shown)
        parts.append(values(weights, one, seen, POSES, options)["depth"])
    both = values(weights, batch, rendered, POSES, options)["depth"]
    assert both == pytest.approx(sum(parts) / 2, rel=1e-5)
    none = replace(batch, distance=torch.where(batch.view == 2, 0.0, batch.distance))
    assert values(weights, none, rendered, POSES, options)["depth"] == pytest.approx(parts[0] / 2, rel=1e-5)


def test_rays_of_the_mask_term_count_by_their_weights_if_balanced(batch, rendered):
    weights = {"mask": 1.0}
    each = -torch.where(batch.mask, rendered.opacity, 1 - rendered.opacity).log()
    balanced = values(weights, batch, rendered, POSES, TermOptions())["mask"]
    assert balanced == pytest.approx(float((each * batch.weights).sum() / batch.weights.sum()), rel=1e-2)
    plain = values(weights, batch, rendered, POSES, TermOptions(balanced=False))["mask"]
    assert plain == pytest.approx(float(each.mean()), rel=1e-2)
    assert abs(plain - balanced) > 0.01


def test_eikonal_looks_at_all_gradients(batch, rendered):
    found = values({"eikonal": 1.0}, batch, rendered, POSES, TermOptions())["eikonal"]
    assert found == pytest.approx(float((rendered.gradients.norm(dim=-1) - 1).square().mean()), rel=1e-5)


@pytest.mark.parametrize("options", [TermOptions(), TermOptions(balanced=False, normal_norm="l1")])
def test_the_losses_of_views_are_the_terms_of_their_rays(batch, rendered, options):
    weights = {"normal": 0.5, "mask": 2.0}
    whole = replace(batch, view=torch.tensor([0] * 6 + [2] * 6), rays_per_view=6)
    losses = view_losses(weights, whole, rendered, poses=POSES, options=options, views=3)
    for number, rows in enumerate((slice(0, 6), slice(6, 12))):
        part = replace(
            rendered,
            opacity=rendered.opacity[rows],
            normal=rendered.normal[rows],
            distance=rendered.distance[rows],
        )
        terms = ray_terms(weights, whole.select(rows), part, POSES, options)
        assert losses[number].item() == pytest.approx(terms.total.item(), rel=1e-3)
    # The rays of the third view were dropped.
    assert losses[2].isnan()
