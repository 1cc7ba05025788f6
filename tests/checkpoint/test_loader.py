"""ResumableLoader yields the same batches with any number of workers and after any interruption."""

import multiprocessing
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, Subset

from fieldwatch import ResumableLoader
from fieldwatch.base import InputError
from fieldwatch.checkpoint import CheckpointError, RandomState
from fieldwatch.checkpoint.dataset_generators import generators_of


class Transform:
    def __init__(self):
        self.rng = np.random.RandomState(5)

    def __call__(self, value):
        return value + self.rng.rand()


class Noisy(Dataset):
    """Each sample is its index and six random numbers, from three global generators and three held ones."""

    def __init__(self, length=11):
        self.length = length
        self.generator = torch.Generator()
        self.rng = np.random.default_rng(3)
        self.python = random.Random(2)
        self.transforms = [Transform()]

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        drawn = [torch.rand(()).item(), np.random.rand(), random.random()]  # noqa: NPY002
        drawn += [torch.rand((), generator=self.generator).item(), self.rng.random(), self.python.random()]
        return torch.tensor([index, *drawn, self.transforms[0](0.0)], dtype=torch.float64)


def batches(loader, count):
    """Return ``count`` batches, across epochs."""
    found = []
    while len(found) < count:
        for batch in loader:
            found.append(batch)
            if len(found) == count:
                break
    return found


def same(one, other):
    return len(one) == len(other) and all(map(torch.equal, one, other))


ORDERS = [[1, 6, 5, 3, 7, 4, 0, 2], [0, 4, 5, 1, 2, 3, 6, 7]]
EXPECTED = 8  # three epochs of three batches, nearly


@pytest.mark.parametrize(
    ("workers", "options"), [(1, {}), (2, {"persistent_workers": True}), (2, {"prefetch_factor": 3})]
)
def test_workers_make_the_batches_that_the_process_itself_makes(workers, options):
    here = batches(ResumableLoader(Noisy(), 4, seed=1), EXPECTED)
    there = batches(ResumableLoader(Noisy(), 4, seed=1, num_workers=workers, **options), EXPECTED)
    assert same(here, there)


@pytest.mark.parametrize(("workers", "done"), [(0, 1), (0, 3), (0, 5), (2, 1), (2, 3)])
def test_another_process_goes_on_with_the_next_batch(workers, done):
    whole = batches(ResumableLoader(Noisy(), 4, seed=1), EXPECTED)
    loader = ResumableLoader(Noisy(), 4, seed=1, num_workers=workers)
    begun = batches(loader, done)
    resumed = ResumableLoader(Noisy(), 4, seed=1)
    resumed.load_state_dict(loader.state_dict())
    assert same(begun + batches(resumed, EXPECTED - done), whole)


def test_the_position_is_what_was_handed_out_not_what_was_read_ahead():
    loader = ResumableLoader(Noisy(40), 4, num_workers=2, prefetch_factor=4)
    next(iter(loader))
    assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (0, 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_random_numbers_of_the_training_are_left_alone(workers):
    before = RandomState().state_dict()
    batches(ResumableLoader(Noisy(), 4, num_workers=workers), EXPECTED)
    after = RandomState().state_dict()
    assert before["python"] == after["python"]
    assert np.array_equal(before["numpy"]["state"]["key"], after["numpy"]["state"]["key"])
    assert before["numpy"]["state"]["pos"] == after["numpy"]["state"]["pos"]
    assert torch.equal(before["torch"], after["torch"])


def test_a_batch_that_fails_leaves_the_random_numbers_alone():
    class Broken(Noisy):
        def __getitem__(self, index):
            torch.rand(3)
            raise KeyError(index)

    before = torch.get_rng_state()
    with pytest.raises(KeyError):
        next(iter(ResumableLoader(Broken(), 4)))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
def test_a_rollback_in_the_middle_of_an_iteration_counts_from_the_next_batch_on(options):
    whole = batches(ResumableLoader(Noisy(), 4, seed=1), EXPECTED)
    loader = ResumableLoader(Noisy(), 4, seed=1, **options)
    found = []
    stored = None
    back = False
    while len(found) < EXPECTED:
        for batch in loader:
            found.append(batch)
            if len(found) == 2:
                stored = loader.state_dict()
            if len(found) == 5 and not back:  # in the next epoch
                back = True
                loader.load_state_dict(stored)
                del found[2:]
    assert same(found[:EXPECTED], whole)


def test_an_epoch_shows_every_sample_once_in_another_order_than_the_last():
    loader = ResumableLoader(Noisy(), 4, seed=1)
    assert len(loader) == 3
    orders = [torch.cat(list(loader))[:, 0].tolist() for _ in range(2)]
    assert [sorted(order) for order in orders] == [list(range(11))] * 2
    assert orders[0] != orders[1]
    assert loader.epoch == 2


def test_orders_are_those_of_every_version():
    """The orders are hard-coded, because a resumed run must get the order of the original run."""
    loader = ResumableLoader(list(range(8)), 8, seed=5)
    assert [next(iter(loader)).tolist() for _ in range(2)] == ORDERS


def test_without_shuffling_the_order_is_that_of_the_data_set():
    assert torch.cat(list(ResumableLoader(Noisy(), 4, shuffle=False)))[:, 0].tolist() == list(range(11))


def test_drop_last_leaves_out_the_smaller_batch():
    loader = ResumableLoader(Noisy(), 4, drop_last=True)
    assert [len(batch) for batch in loader] == [4, 4]
    assert len(loader) == 2


def test_at_the_end_of_an_epoch_the_position_is_the_start_of_the_next():
    loader = ResumableLoader(Noisy(), 4)
    batches(loader, 3)
    state = loader.state_dict()
    assert (state["epoch"], state["batch"]) == (1, 0)
    resumed = ResumableLoader(Noisy(), 4)
    resumed.load_state_dict(state)
    assert len(list(resumed)) == 3


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"seed": 9}, "seed"),
        ({"batch_size": 5}, "batch_size"),
        ({"shuffle": False}, "shuffle"),
        ({"drop_last": True}, "drop_last"),
        ({"dataset": Noisy(12)}, "length"),
    ],
)
def test_a_position_in_another_order_is_refused_by_name(given, named):
    state = ResumableLoader(Noisy(), 4).state_dict()
    arguments = {"dataset": Noisy(), "batch_size": 4, **given}
    with pytest.raises(CheckpointError, match=named):
        ResumableLoader(**arguments).load_state_dict(state)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


@pytest.mark.parametrize(
    ("dataset", "given"),
    [
        (Stream(), {}),
        (iter([1]), {}),
        (Noisy(0), {}),
        (Noisy(), {"batch_size": 0}),
        (Noisy(3), {"batch_size": 4, "drop_last": True}),
        (Noisy(), {"sampler": [1, 2]}),
        (Noisy(), {"generator": torch.Generator()}),
    ],
)
def test_what_has_no_repeatable_order_is_refused(dataset, given):
    with pytest.raises(InputError, match="ResumableLoader"):
        ResumableLoader(dataset, **given)


def test_two_iterations_at_a_time_are_refused():
    loader = ResumableLoader(Noisy(), 4)
    first = iter(loader)
    second = iter(loader)
    next(first)
    next(second)
    with pytest.raises(RuntimeError, match="another iteration"):
        next(first)


def test_a_function_of_ones_own_makes_the_batch_and_may_draw():
    def collate(samples):
        return len(samples), torch.rand(()).item()

    found = [list(ResumableLoader(Noisy(), 4, collate_fn=collate, num_workers=workers)) for workers in (0, 2)]
    assert found[0] == found[1]
    assert [size for size, _ in found[0]] == [4, 4, 3]


def test_generators_are_found_in_what_a_data_set_wraps():
    inner = Noisy()
    wrapped = Subset(inner, [1, 2])
    found = generators_of(wrapped)
    assert {id(one) for one in found} == {
        id(inner.generator),
        id(inner.rng),
        id(inner.python),
        id(inner.transforms[0].rng),
    }
    module = nn.Module()
    module.inside = nn.Module()
    module.inside.rng = np.random.default_rng(0)
    inner.transforms.append(module)
    assert any(one is module.inside.rng for one in generators_of(inner))


def test_samples_that_are_fetched_together_stay_together():
    class Together(Noisy):
        def __getitems__(self, indices):
            return [torch.tensor([len(indices)])] * len(indices)

    assert next(iter(ResumableLoader(Together(), 4))).flatten().tolist() == [4] * 4


@pytest.mark.parametrize("options", [{"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}])
def test_workers_end_with_the_loader(options):
    before = set(multiprocessing.active_children())
    loader = ResumableLoader(Noisy(), 4, **options)
    iterator = iter(loader)
    next(iterator)
    assert len(set(multiprocessing.active_children()) - before) == 1
    del iterator, loader
    assert set(multiprocessing.active_children()) <= before
