"""Rays divided among ranks: gradients and terms equal those of one process, even after out-of-memory errors."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from fieldwatch import MicroBatches, Ranks, Terms
from fieldwatch.recon.data import synthetic_normal_maps
from fieldwatch.recon.losses import eikonal_error
from fieldwatch.recon.pipelines.normals.batches import RaySource, patches_of_graphs
from fieldwatch.recon.pipelines.normals.config import PoseOptions, RayOptions, TermOptions
from fieldwatch.recon.pipelines.normals.model import first_model
from fieldwatch.recon.pipelines.normals.objective import mask_term, normal_term, staged_terms
from fieldwatch.recon.pipelines.normals.rank_exchange import RankExchange, ShortElsewhereError
from fieldwatch.recon.pipelines.normals.ray_budget import RayBudget
from fieldwatch.recon.pipelines.normals.rays import RaySplit
from fieldwatch.recon.pipelines.normals.rendering import render
from fieldwatch.recon.pipelines.normals.shared_rays import SharedRays, split_for
from fieldwatch.recon.pipelines.normals.step_output import RayStatistics
from fieldwatch.recon.pipelines.normals.view_terms import ViewTerms
from fieldwatch.run.log import RunLog
from fieldwatch.run.memory import RunMemory
from fieldwatch.run.retry import Retry

ALL = "all@0 normal=1 depth=0.5 mask=2 eikonal=0.1 point_cloud=0.3 surface=0.4 consistency=0.2"


class ThreadRank(Ranks):
    """A rank that runs as a thread and communicates through its `Together`."""

    def __init__(self, rank, world, meet):
        super().__init__(rank, world)
        self._meet_as = meet

    def sum(self, tensors):
        """Sum over the threads."""
        self._meet_as(self.rank, tensors)


class Together:
    """Ranks as threads of one process, whose tensors are summed."""

    def __init__(self, world):
        self.world = world
        self.met = 0
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
        """Run the work on all ranks at once; return the results by rank."""

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
    """A budget whose sample bound takes effect."""

    bound = 1 << 20

    def most_of(self, parts):
        return self.bound // parts


MAPS = synthetic_normal_maps(views=8, size=24)


def make(scene_of, config, bound=1 << 20):
    """Everything a step needs: a field that is not a sphere, moved poses, an incomplete grid."""
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
    views = ViewTerms(scene.pixels, config.terms)
    return SimpleNamespace(config=config, scene=scene, model=model, source=source, budget=budget, view_terms=views)


def objective(made, rays, count):
    """The objective of training, at the first step."""
    config = made.config
    model = made.model
    weights = made.scene.schedule.weights(0)
    rendered = render(model, rays, made.scene.schedule.march_step(0), config.rendering, made.budget.most_of(count))
    batch = rays.batch.first(rendered.ray_count)
    terms = staged_terms(
        weights,
        normal=lambda: normal_term(batch, rendered, model.poses(), config.terms),
        depth=lambda: rays.depth_term(rendered, config.terms),
        mask=lambda: mask_term(batch, rendered, config.terms),
        eikonal=lambda: eikonal_error(rendered.gradients),
    )
    terms |= made.view_terms.terms(weights, model, rays, rendered)
    return rays.output(terms, rendered, config.terms)


def attempt(made, split, count=1, batches=None):
    """Accumulate the gradients of a step like `step.backward`; return its outputs and terms."""
    outputs = []
    pieces = []
    for rays, share in split(batches or made.source.draw(made.config.rays.rays), count):
        output = objective(made, rays, count)
        (output.terms.total * share).backward()
        outputs.append(output)
        pieces.append((share, output.terms))
    return outputs, Terms.merged(pieces)


def outcome(made, ranks, count=1):
    """Return the results of a step: terms, gradients, numbers, estimates, and the generator's state."""
    outputs, terms = attempt(made, split_for(ranks, made.config, made.scene, made.source), count)
    gradients = {name: one.grad for name, one in made.model.named_parameters() if one.grad is not None}
    rays = RayStatistics.of(outputs)
    return SimpleNamespace(
        terms={name: (weight, value.item()) for name, (weight, value) in terms.items()},
        gradients=gradients,
        numbers=(rays.rays, rays.samples, rays.filled),
        starved=rays.starved,
        scales=made.view_terms.scales.values,
        generator=made.source.state_dict()["generator"],
    )


def compare(scene_of, config, *, world=2, parts=1, bound=1 << 20):
    """Check that the ranks together match a single process; return its results."""
    one = outcome(make(scene_of, config, bound), Ranks(), parts)
    made = [make(scene_of, config, bound) for _ in range(world)]

    def as_rank(ranks):
        return outcome(made[ranks.rank], ranks, parts)

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
    free = compare(scene_of, config)
    bound = compare(scene_of, config, bound=150)
    assert 0 < bound.numbers[0] < free.numbers[0]


def test_rays_are_divided_by_patches_and_each_is_somebodys(settings, scene_of):
    made = make(scene_of, with_poses(settings, gradient_method="dfd", patch=3, rays=400))
    batch = made.source.draw(400)[0]
    exchanges = [RankExchange(Ranks(rank, 3), 9, torch.device("cpu")) for rank in range(3)]
    parts = [SharedRays(batch, made.source, exchange, in_patches=True).batch for exchange in exchanges]
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
    """A rank fails after some all-reduces; the others are notified at the next one, and none waits forever."""

    def one_attempt(ranks, exchange):
        for meeting in range(3):
            if ranks.rank == 1 and meeting == after:
                raise MemoryError("no room")
            assert exchange.sum(torch.ones(meeting)).tolist() == [3.0] * meeting
        if ranks.rank == 1 and after == 3:
            raise MemoryError("no room")
        exchange.finish()

    def caught(ranks):
        exchange = RankExchange(ranks, 5, torch.device("cpu"))
        try:
            one_attempt(ranks, exchange)
        except MemoryError as error:
            exchange.repeat()
            assert exchange.sum(torch.ones(2)).tolist() == [3.0, 3.0]
            return type(error)

    together = Together(3)
    assert together.run(caught) == [ShortElsewhereError, MemoryError, ShortElsewhereError]
    assert together.met == after + 2


@pytest.mark.parametrize("short_in", ["forward", "backward"])
def test_all_ranks_repeat_the_step_in_as_many_micro_batches(settings, scene_of, short_in):
    """`Retry` restores ``undo`` before it repeats a step, and so makes the other ranks repeat it."""
    config = with_poses(settings, views_per_graph=3)
    alone = make(scene_of, config)
    made = [make(scene_of, config) for _ in range(2)]
    _, one = attempt(alone, RaySplit(alone.source), 2, alone.source.draw(50))

    def as_rank(ranks):
        own = made[ranks.rank]
        split = split_for(ranks, config, own.scene, own.source)
        rays = own.source.draw(50)
        counts = []
        micro_batches = MicroBatches("rays")

        def short(output):
            if ranks.rank == 1 and len(counts) == 1:
                raise torch.OutOfMemoryError("no room")
            return output

        def work():
            own.model.zero_grad()
            counts.append(micro_batches.count)
            pieces = []
            for piece, share in split(rays, micro_batches.count):
                output = objective(own, piece, micro_batches.count)
                if short_in == "forward" or len(pieces) == 2:
                    short(output)
                (output.terms.total * share).backward()
                pieces.append((share, output.terms))
            return Terms.merged(pieces)

        retry = Retry(Mock(spec=RunLog), Mock(spec=RunMemory, **{"why.return_value": ""}))
        terms = retry(work, micro_batches, step=None, undo=(split, own.view_terms))
        assert counts == [1, 2]
        return terms

    both = Together(2).run(as_rank)
    for name, (_, value) in one.items():
        assert float(sum(rank[name].value for rank in both)) / 2 == pytest.approx(float(value), rel=1e-5), name
