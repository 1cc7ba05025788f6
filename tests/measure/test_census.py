import collections
import dataclasses

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from fieldwatch.measure import ParameterGroups
from fieldwatch.measure.census import STALE, Census, take_census
from fieldwatch.measure.census.find_tensors import find_tensors

CPU = torch.device("cpu")


def watch(**groups):
    watched = ParameterGroups()
    watched.add(**groups)
    return watched


def census(watched, *optimizers, data=None) -> Census:
    return take_census(watched, optimizers=optimizers, data=data or {}, device=CPU)


def trained(*shape):
    parameter = nn.Parameter(torch.ones(*shape))
    parameter.grad = torch.ones(*shape)
    return parameter


def rows(taken):
    return {(held.kind, held.component, held.name): held.nbytes for held in taken.owned_entries}


def test_each_owner_holds_what_it_holds():
    group = {"means": trained(10, 3)}
    optimizer = torch.optim.Adam(group.values())
    optimizer.step()
    found = census(watch(gaussians=group), optimizer, data={"images": torch.zeros(5, dtype=torch.uint8)})
    assert rows(found) == {
        ("parameters", "gaussians", "means"): 120,
        ("gradients", "gaussians", "means"): 120,
        ("optimizer", "gaussians", "means.step"): 4,
        ("optimizer", "gaussians", "means.exp_avg"): 120,
        ("optimizer", "gaussians", "means.exp_avg_sq"): 120,
        ("data", "images", "images"): 5,
    }
    assert found.by_kind() == {"parameters": 120, "gradients": 120, "optimizer": 244, "buffers": 0, "data": 5}
    assert found.by_component() == {"gaussians": 484, "images": 5}
    assert found.by_dtype() == {"float32": 484, "uint8": 5}


def test_a_module_shows_buffers_frozen_parameters_and_plain_attributes():
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    net[0].bias.requires_grad_(False)
    net.neighbors = torch.zeros(7, dtype=torch.int64)
    net.register_buffer("absent", None)
    found = rows(census(watch(net=net)))
    assert found["parameters", "net", "0.weight"] == 24
    assert found["parameters", "net", "0.bias"] == 12
    assert found["buffers", "net", "1.running_mean"] == 12
    assert found["buffers", "net", "1.num_batches_tracked"] == 8
    assert found["buffers", "net", "neighbors"] == 56


def test_views_of_one_storage_are_counted_once():
    storage = torch.zeros(100)
    group = {"whole": nn.Parameter(storage), "half": nn.Parameter(storage[50:]), "wide": storage[0].expand(1000, 1000)}
    group["whole"].grad = storage.view(10, 10).view(100)
    found = census(watch(group=group), data={"again": [storage, storage.t(), storage[::2]]})
    assert len(found.owned_entries) == 1
    assert (found.owned_entries[0].kind, found.owned_entries[0].nbytes, found.owned_entries[0].views) == (
        "parameters",
        400,
        7,
    )
    assert found.owned == 400


def test_tied_parameters_are_one_tensor():
    net = nn.ModuleDict({"a": nn.Linear(4, 4, bias=False), "b": nn.Linear(4, 4, bias=False)})
    net["b"].weight = net["a"].weight
    found = census(watch(net=net))
    assert rows(found) == {("parameters", "net", "a.weight"): 64}
    assert found.owned_entries[0].views == 1


def test_the_first_kind_that_claims_a_storage_has_it():
    weight = trained(5)
    found = census(watch(group=[weight]), data={"cache": [weight.grad, weight.grad.view(1, 5), weight.data]})
    assert rows(found) == {("parameters", "group", "0"): 20, ("gradients", "group", "0"): 20}
    assert [held.views for held in found.owned_entries] == [2, 2]


def test_densification_is_seen_at_once_and_the_old_state_is_named():
    group = {"means": trained(10, 3)}
    watched = watch(gaussians=group)
    optimizer = torch.optim.Adam(group.values())
    optimizer.step()
    old, group["means"] = group["means"], trained(20, 3)
    optimizer.param_groups[0]["params"] = [group["means"]]
    found = census(watched, optimizer).by_kind_and_component()
    assert found["parameters"] == found["gradients"] == {"gaussians": 240}
    assert found["optimizer"] == {STALE: 4 * 120 + 4}  # the old parameter, its gradient and two moments
    state = optimizer.state.pop(old)
    optimizer.state[group["means"]] = state
    assert census(watched, optimizer).by_kind_and_component()["optimizer"] == {"gaussians": 244}


def test_an_optimizer_that_steps_a_replaced_parameter_is_seen_too():
    group = {"means": trained(10, 3)}
    optimizer = torch.optim.SGD([{"params": [group["means"]], "name": "xyz"}])
    watched = watch(gaussians=group)
    group["means"] = trained(20, 3)
    found = rows(census(watched, optimizer))
    assert found["parameters", "other", "xyz.0"] == 120
    assert found["gradients", "other", "xyz.0"] == 120


def test_parameters_nobody_watches_go_to_other():
    net = nn.Linear(3, 4)
    optimizer = torch.optim.Adam([("w", net.weight), ("b", net.bias)])
    net(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    found = census(watch(bias=[net.bias]), optimizer).by_kind_and_component()
    assert found["parameters"] == {"bias": 16, "other": 48}
    assert found["optimizer"] == {"bias": 36, "other": 100}
    named = rows(census(watch(bias=[net.bias]), optimizer))
    assert named["optimizer", "other", "w.exp_avg"] == 48


def test_nested_optimizer_state_and_learning_rates_on_the_device_count():
    weight = nn.Parameter(torch.ones(10))
    optimizer = torch.optim.LBFGS([weight], lr=0.1, max_iter=3, history_size=4)

    def closure():
        optimizer.zero_grad()
        loss = (weight.pow(4)).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    optimizer.param_groups[0]["lr"] = torch.tensor(0.1)
    found = rows(census(watch(group=[weight]), optimizer))
    assert found["optimizer", "group", "0.d"] == 40
    assert found["optimizer", "group", "0.old_dirs.0"] == 40
    assert found["optimizer", "other", "0.lr"] == 4


def test_a_sparse_gradient_counts_indices_and_values():
    table = nn.Embedding(1000, 4, sparse=True)
    table(torch.tensor([1, 5, 7])).sum().backward()
    found = [held for held in census(watch(table=table)).owned_entries if held.kind == "gradients"]
    assert sorted(held.nbytes for held in found) == [3 * 8, 3 * 4 * 4]


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("make", [torch.sparse_csr_tensor, torch.sparse_csc_tensor], ids=["csr", "csc"])
def test_compressed_sparse_tensors_are_taken_apart(make):
    matrix = make(torch.arange(7), torch.arange(6), torch.ones(6), (6, 6), check_invariants=True)
    assert census(watch(w=[trained(1)]), data={"knn": matrix}).by_component()["knn"] == 7 * 8 + 6 * 8 + 6 * 4


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype:UserWarning")
def test_nested_lazy_and_opaque_tensors_do_not_stop_the_census():
    jagged = torch.nested.nested_tensor([torch.ones(3), torch.ones(5)], layout=torch.jagged)
    strided = torch.nested.nested_tensor([torch.ones(3), torch.ones(5)])
    net = nn.ModuleList([nn.Linear(1, 1, bias=False), nn.LazyLinear(3)])
    data = {"jagged": jagged, "strided": strided, "opaque": torch.ones(3, 3).to_mkldnn()}
    found = census(watch(net=net), data=data)
    assert found.by_component() == {"net": 4, "jagged": 8 * 4 + 3 * 8, "strided": 32}


def test_meta_fake_and_empty_tensors_have_no_memory():
    with FakeTensorMode():
        fake = torch.ones(100)
    data = {"meta": torch.ones(100, device="meta"), "fake": fake, "empty": torch.ones(0)}
    found = census(watch(w=[trained(1)]), data=data)
    assert found.by_kind()["data"] == 0
    assert found.elsewhere == {}


def test_memory_shared_with_numpy_belongs_to_the_earlier_claim():
    array = np.zeros(100, dtype=np.float32)
    group = {"part": nn.Parameter(torch.from_numpy(array[10:30]))}
    found = census(watch(group=group), data={"array": array, "again": torch.from_numpy(array)})
    assert rows(found) == {("parameters", "group", "part"): 80, ("data", "array", "array"): 320}


def test_dlpack_copies_nothing_and_counts_nothing():
    weight = trained(64)
    found = census(watch(w=[weight]), data={"x": torch.from_dlpack(weight.detach()[8:])})
    assert found.by_kind() == {"parameters": 256, "gradients": 256, "optimizer": 0, "buffers": 0, "data": 0}


@dataclasses.dataclass(slots=True)
class View:
    image: torch.Tensor
    mask: torch.Tensor | None = None


class Scene:
    __slots__ = ("empty", "knn")

    def __init__(self):
        self.knn = torch.zeros(4)

    @property
    def loaded(self):
        pytest.fail("a property was read")


class Lazy(dict):
    def __iter__(self):
        pytest.fail("a data set was loaded")

    def items(self):
        pytest.fail("a data set was loaded")


Pair = collections.namedtuple("Pair", "left right")  # noqa: PYI024  what user code has


def test_contents_are_found_in_whatever_holds_them():
    loop = {"self": None, "views": [View(torch.ones(1)), View(torch.ones(2), torch.ones(3))], "n": 5}
    loop["self"] = loop
    loop["pair"] = Pair(torch.ones(4), {7: torch.ones(5)})
    loop["scene"] = Scene()
    loop["net"] = nn.Sequential(nn.Linear(1, 1, bias=False))
    loop["lazy"] = Lazy(x=torch.ones(6))
    loop["queue"] = collections.deque([torch.ones(8)])
    found = {path: tuple(tensor.shape) for path, tensor in find_tensors(loop)}
    assert found == {
        "views.0.image": (1,),
        "views.1.image": (2,),
        "views.1.mask": (3,),
        "pair.left": (4,),
        "pair.right.7": (5,),
        "scene.knn": (4,),
        "net.0.weight": (1, 1),
        "lazy.x": (6,),
        "queue.0": (8,),
    }


def test_data_without_end_is_cut_and_said_so():
    found = census(watch(w=[trained(1)]), data={"first": torch.ones(3), "numbers": [list(range(200_000))]})
    assert found.truncated == ("numbers",)
    assert found.by_component()["first"] == 12
    with pytest.raises(OverflowError, match="more than 10 objects"):
        list(find_tensors([[i] for i in range(20)], limit=10))


def test_deep_nesting_needs_no_stack():
    value = torch.ones(1)
    for _ in range(5000):
        value = [value]
    assert [tuple(tensor.shape) for _, tensor in find_tensors(value)] == [(1,)]


def test_large_storages_come_with_their_owner_largest_first():
    found = census(watch(g={"a": nn.Parameter(torch.ones(100)), "b": nn.Parameter(torch.ones(30, 10))}))
    assert [(h.name, h.nbytes, h.shape) for h in found.large(400)] == [("b", 1200, (30, 10)), ("a", 400, (100,))]
    assert found.large() == []


def test_the_json_line_holds_the_whole_account():
    group = {"means": trained(10, 3)}
    taken = census(watch(gaussians=group), data={"images": torch.zeros(5)})
    line = taken.as_json(7, "update", threshold=100, peaks={"render": 9})
    assert (line["step"], line["moment"], line["device"], line["peaks"]) == (7, "update", "cpu", {"render": 9})
    assert line["owners"]["parameters"] == {"gaussians": 120}
    assert line["owners"]["buffers"] == {}
    owned = sum(nbytes for kind in line["owners"].values() for nbytes in kind.values())
    parts = owned + sum(line["saved"].values()) + line["rounding"] + line["workspace"] + line["unattributed"]
    assert parts == line["allocated"]
    assert line["tensors"] == 3
    assert line["large"][0] == {
        "owner": "gaussians",
        "kind": "parameters",
        "name": "means",
        "bytes": 120,
        "shape": [10, 3],
        "dtype": "float32",
        "views": 1,
    }


def test_a_device_without_a_census_is_refused():
    with pytest.raises(ValueError, match=r"census requires .*CUDA.* got meta"):
        take_census(watch(w=[trained(1)]), optimizers=(), device=torch.device("meta"))
