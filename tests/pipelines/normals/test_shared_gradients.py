"""Rays divided among ranks: their gradients and terms together are those of one process, whoever runs out of memory."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from fieldwatch import Parts, Step
from fieldwatch.data import synthetic_normal_maps
from fieldwatch.pipelines.normals.batches import RaySource, patches_of_graphs
from fieldwatch.pipelines.normals.config import PoseOptions, RayOptions, TermOptions
from fieldwatch.pipelines.normals.exchange import Exchange, ShortElsewhereError
from fieldwatch.pipelines.normals.gradients import Gradients
from fieldwatch.pipelines.normals.instruments import Instruments
from fieldwatch.pipelines.normals.learning import Learning
from fieldwatch.pipelines.normals.model import first_model
from fieldwatch.pipelines.normals.ray_budget import RayBudget
from fieldwatch.pipelines.normals.shared_gradients import SharedGradients
from fieldwatch.pipelines.normals.shared_rays import SharedRays
from fieldwatch.pipelines.normals.view_terms import ViewTerms
from fieldwatch.run import Ranks

ALL = "all@0 normal=1 depth=0.5 mask=2 eikonal=0.1 point_cloud=0.3 surface=0.4 consistency=0.2"


class FirstStep(Step):
    """A step of no run."""

    def __init__(self):
        self.index = 0

    def span(self, name):  # noqa: ARG002  as a step has it
        """Measure nothing."""
        return nullcontext()


class ThreadRank(Ranks):
    """A rank that is a thread, and meets the others as its `Together` says."""

    def __init__(self, rank, world, meet):
        super().__init__(rank, world)
        self._meet_as = meet

    def sum(self, tensors):
        """Sum over the threads."""
        self._meet_as(self.rank, tensors)


class Together:
    """Ranks that are threads of one process: each adds its tensors to the others'."""

    def __init__(self, world):
        self.world, self.met = world, 0
        self._shown = [None] * world
        self._barrier = threading.Barrier(world, timeout=30)

    def rank(self, number):
        return ThreadRank(number, self.world, self._sum)

    def _sum(self, number, tensors):
        self._shown[number] = [one.clone() for one in tensors]
        self._barrier.wait()
        totals = [torch.stack(parts).sum(0) for parts in zip(*self._shown, strict=True)]
        self.met += number == 0
        self._barrier.wait()
        for one, total in zip(tensors, totals, strict=True):
            one.copy_(total)

    def run(self, work):
        """Do the work as every rank at once; returns what came of it, by rank."""

        def alive(number):
            try:
                return work(self.rank(number))
            except BaseException:
                self._barrier.abort()
                raise

        with ThreadPoolExecutor(self.world) as pool:
            waiting = [pool.submit(alive, number) for number in range(self.world)]
        errors = [one.exception() for one in waiting]
        causes = [error for error in errors if error and not isinstance(error, threading.BrokenBarrierError)]
        assert not causes, causes
        return [one.result() for one in waiting]


class Bounded(RayBudget):
    """A budget with a bound of samples that bites."""

    bound = 1 << 20

    def most_of(self, parts):
        return self.bound // parts


MAPS = synthetic_normal_maps(views=8, size=24)


def make(scene_of, config, bound=1 << 20):
    """All that a step needs: a field that is no sphere, poses that have moved, a grid that lacks a part."""
    scene = scene_of(config, MAPS)
    torch.manual_seed(1)
    model = first_model(config, scene)
    with torch.no_grad():
        for one in model.parameters():
            one.add_(0.02 * torch.randn_like(one))
    model.grid.rebuild(model.sdf, model.sharpness)
    model.grid.occupied[:6] = False
    source = RaySource(scene.pixels, config.rays, patch=config.rendering.patch, seed=3)
    budget = Bounded(config.rays)
    budget.bound = bound
    learning, views = Learning(config, model, scene.plan), ViewTerms(scene.pixels, config.terms)
    return Gradients(config, scene, model, learning, source, budget, views, Instruments(scene, model))


def outcome(made, work, parts=1):
    """What a step leaves behind: terms, gradients, numbers, estimates, and the state of the generator."""
    terms = work(FirstStep(), made.source.draw(made.config.rays.rays), Parts("rays", count=parts)).terms()
    gradients = {name: one.grad for name, one in made.model.named_parameters() if one.grad is not None}
    shown = made.instruments
    return SimpleNamespace(
        terms={name: (weight, value.item()) for name, (weight, value) in terms.items()},
        gradients=gradients,
        numbers=(shown.rays, shown.samples, shown.views(), shown._filled),
        starved=shown.starved,
        scales=made.view_terms.scales.values,
        generator=made.source.state_dict()["generator"],
    )


def compare(scene_of, config, *, world=2, parts=1, bound=1 << 20):
    """Check that ranks together have what one process has; returns that."""
    alone = make(scene_of, config, bound)
    one = outcome(alone, alone.of, parts)

    made = [make(scene_of, config, bound) for _ in range(world)]

    def as_rank(ranks):
        own = made[ranks.rank]
        return outcome(own, SharedGradients(own, ranks).of, parts)

    many = Together(world).run(as_rank)
    for name, (weight, value) in one.terms.items():
        assert {rank.terms[name][0] for rank in many} == {weight}
        assert sum(rank.terms[name][1] for rank in many) / world == pytest.approx(value, rel=1e-5, abs=1e-9), name
    for name, wanted in one.gradients.items():
        found = sum(rank.gradients[name] for rank in many if name in rank.gradients) / world
        assert float((found - wanted).norm()) <= 2e-5 * float(wanted.norm()) + 1e-9, name
    for rank in many:
        assert rank.numbers == one.numbers
        assert rank.starved == pytest.approx(one.starved, rel=1e-6)
        assert torch.allclose(rank.scales, one.scales, rtol=1e-5)
        assert torch.equal(rank.generator, one.generator)
    return one


def with_poses(settings, *, gradient_method="ad", patch=1, terms=None, **rays):
    config = settings(
        stages=(ALL,),
        views=8,
        poses=PoseOptions(learn_rotation=True, learn_translation=True),
        rays=RayOptions(**({"rays": 50, "views_per_graph": 4} | rays)),
        terms=terms or TermOptions(),
    )
    rendering = replace(config.rendering, gradient_method=gradient_method, patch=patch, first_sharpness=40.0)
    return replace(config, rendering=rendering)


@pytest.mark.parametrize("world", [2, 3])
def test_all_terms_and_gradients_are_those_of_one_process(settings, scene_of, world):
    one = compare(scene_of, with_poses(settings, views_per_graph=3), world=world)
    assert set(one.terms) == {"normal", "depth", "mask", "eikonal", "point_cloud", "surface", "consistency"}
    assert all(value > 0 for _, value in one.terms.values())
    assert 0 < one.starved < 1
    assert one.numbers[-1] > 0
    assert {"poses.rotations", "poses.translations", "sdf.encoding.table"} <= set(one.gradients)


def test_blended_normals_without_balance(settings, scene_of):
    terms = TermOptions(rendered_normals="blended", balanced=False)
    compare(scene_of, with_poses(settings, terms=terms))


def test_patches_stay_whole(settings, scene_of):
    compare(scene_of, with_poses(settings, gradient_method="dfd", patch=3, rays=90))


def test_parts_of_a_graph_with_fewer_rays_than_ranks(settings, scene_of):
    compare(scene_of, with_poses(settings, rays=12), parts=12, world=3)


def test_the_bound_of_samples_is_one_for_all_ranks(settings, scene_of):
    config = with_poses(settings)
    free, bound = compare(scene_of, config), compare(scene_of, config, bound=150)
    assert 0 < bound.numbers[0] < free.numbers[0]


def test_rays_are_divided_by_patches_and_each_is_somebodys(settings, scene_of):
    made = make(scene_of, with_poses(settings, gradient_method="dfd", patch=3, rays=400))
    batch = made.source.draw(400)[0]
    exchanges = [Exchange(Ranks(rank, 3), 9, torch.device("cpu")) for rank in range(3)]
    parts = [SharedRays(batch, made.source, exchange, in_patches=True).own for exchange in exchanges]
    keys = [
        (view, pixel) for part in parts for view, pixel in zip(part.view.tolist(), part.pixel.tolist(), strict=True)
    ]
    assert sorted(keys) == sorted(zip(batch.view.tolist(), batch.pixel.tolist(), strict=True))
    assert all(part.views.tolist() == batch.views.tolist() for part in parts)
    assert all(len(part) % 9 == 0 and float(part.mask.float().mean()) > 0.3 for part in parts)


@pytest.mark.parametrize(("patch", "views_per_graph", "rays"), [(1, 1, 50), (1, 3, 50), (3, 4, 90), (3, 3, 4)])
def test_patches_of_graphs_are_those_that_are_drawn(settings, scene_of, patch, views_per_graph, rays):
    config = with_poses(settings, patch=patch, views_per_graph=views_per_graph, rays=rays)
    made = make(scene_of, config)
    drawn = [len(batch) // patch**2 for batch in made.source.draw(rays)]
    assert patches_of_graphs(config.rays, 8, patch, rays) == drawn


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_rank_that_runs_out_of_memory_ends_the_attempt_of_all(after):
    """It fails after some meetings; the others learn it at the next one, and nobody waits for anybody."""

    def attempt(ranks):
        with Exchange(ranks, 5, torch.device("cpu")) as exchange:
            for meeting in range(3):
                if ranks.rank == 1 and meeting == after:
                    raise MemoryError("no room")
                assert exchange.sum(torch.ones(meeting)).tolist() == [3.0] * meeting
            if ranks.rank == 1 and after == 3:
                raise MemoryError("no room")

    def caught(ranks):
        try:
            attempt(ranks)
        except MemoryError as error:
            return type(error)

    together = Together(3)
    assert together.run(caught) == [ShortElsewhereError, MemoryError, ShortElsewhereError]
    assert together.met == after + 1


def test_all_ranks_do_the_step_again_in_as_many_parts(settings, scene_of):
    config = with_poses(settings, views_per_graph=3)
    alone, made = make(scene_of, config), [make(scene_of, config) for _ in range(2)]
    batches = alone.source.draw(50)
    one = alone.of(FirstStep(), batches, Parts("rays", count=2)).terms()

    def as_rank(ranks):
        own = made[ranks.rank]
        shared, looked, rays = SharedGradients(own, ranks), own.instruments.take, own.source.draw(50)
        before, met = own.source.state_dict(), []

        def short(*words, **numbers):
            met.append(words)
            if ranks.rank == 1 and len(met) == 2:
                raise torch.OutOfMemoryError("no room")
            looked(*words, **numbers)

        own.instruments.take = short
        with pytest.raises((ShortElsewhereError, torch.OutOfMemoryError)):
            shared.of(FirstStep(), rays, Parts("rays"))
        own.source.load_state_dict(before)
        own.view_terms.scales.values.zero_()
        return shared.of(FirstStep(), rays, Parts("rays", count=2)).terms()

    both = Together(2).run(as_rank)
    for name, (_, value) in one.items():
        assert float(sum(rank[name].value for rank in both)) / 2 == pytest.approx(float(value), rel=1e-5), name


def test_other_errors_go_on_their_way_alone():
    met = []
    ranks = ThreadRank(0, 2, lambda *tensors: met.append(tensors))
    with pytest.raises(ValueError, match="wrong"), Exchange(ranks, 2, torch.device("cpu")):
        raise ValueError("wrong")
    assert not met
