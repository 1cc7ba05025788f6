"""The census on a model whose every byte is known: exact at each moment of training, and across densification.

The model is shaped like 3D Gaussian splatting: 200 000 Gaussians of 59 numbers (45 MiB), their gradients, Adam's two
moments (90 MiB), images and neighbors (12 MiB), buffers, views and shared storages. What other tools say about the
same model is printed by ``benchmarks/memory_truth.py``.
"""

import gc
import random
from itertools import pairwise

import pytest
import torch
from torch import nn

from fieldwatch.measure import ParameterGroups
from fieldwatch.measure.census import STALE, SavedTensors, take_census

CPU = torch.device("cpu")
N = 200_000
SHAPES = {"means": (3,), "sh0": (1, 3), "shN": (15, 3), "opacities": (), "scales": (3,), "quats": (4,)}
FLOATS = 59
STEP = 4  # Adam's own step counter, one float per parameter


class Scene:
    """What a splat trainer holds."""

    def __init__(self, device, count=N):
        self.device = device
        self.groups = {name: {name: self.parameter(count, *shape)} for name, shape in SHAPES.items()}
        groups = [{"params": [parameter], "name": name} for name, parameter in self.gaussians.items()]
        self.optimizer = torch.optim.Adam(groups, lr=1e-3)
        self.background = nn.BatchNorm1d(3, device=device)  # two parameters; buffers: two of 3 floats, one int64
        self.optimizer.add_param_group({"params": list(self.background.parameters()), "name": "background"})
        self.images = torch.zeros(6, 768, 512, 3, dtype=torch.uint8, device=device)
        self.neighbors = torch.zeros(N, 3, dtype=torch.int64, device=device)
        self.data = {
            "images": {"all": self.images, "views": list(self.images.unbind())},
            "knn": [self.neighbors, self.neighbors[:, 1:], self.neighbors.t()],
            "white": torch.ones(1, 1, 3, device=device).expand(768, 512, 3),
            "copies": [parameter.detach().view(-1) for parameter in self.gaussians.values()],
        }
        self.watched = ParameterGroups()
        self.watched.add(**self.groups, background=self.background)

    def parameter(self, count, *shape):
        return nn.Parameter(torch.randn(count, *shape, device=self.device))

    @property
    def gaussians(self):
        return {name: group[name] for name, group in self.groups.items()}

    @property
    def count(self):
        return len(self.gaussians["means"])

    def put(self, group, fresh):
        """Let the owner and the optimizer have a new parameter."""
        self.groups[group["name"]][group["name"]] = fresh
        group["params"] = [fresh]

    def loss(self):
        gaussians = self.gaussians
        points = self.background(gaussians["means"]) * gaussians["scales"].exp()
        color = gaussians["sh0"].sum(1) + gaussians["shN"].sum(1) + gaussians["quats"][:, :3].tanh()
        return (points * color * gaussians["opacities"].sigmoid()[:, None]).square().mean()

    def replace(self, rows):
        """Densify or prune as 3DGS does: new parameters, and the optimizer's state carried over row by row."""
        for group in self.optimizer.param_groups:
            name = group["name"]
            if name not in SHAPES:
                continue
            old = self.gaussians[name]
            state = self.optimizer.state.pop(old, None)
            fresh = nn.Parameter(old.detach()[rows])
            if state is not None:
                for key in ("exp_avg", "exp_avg_sq"):
                    state[key] = state[key][rows]
                self.optimizer.state[fresh] = state
            self.put(group, fresh)
        self.data["copies"] = [parameter.detach() for parameter in self.gaussians.values()]

    def census(self, **options):
        return take_census(self.watched, optimizers=[self.optimizer], data=self.data, device=self.device, **options)

    def truth(self, *, gradients, adam):
        size = self.count * FLOATS * 4
        background = 2 * 3 * 4
        return {
            "parameters": size + background,
            "gradients": (size + background) * gradients,
            "optimizer": (2 * (size + background) + (len(SHAPES) + 2) * STEP) * adam,
            "buffers": 2 * 3 * 4 + 8,
            "data": 6 * 768 * 512 * 3 + N * 3 * 8 + 3 * 4,
        }


@pytest.fixture(scope="module")
def cpu_scene():
    return Scene(CPU)


def exact(scene, **truth):
    taken = scene.census()
    assert taken.by_kind() == scene.truth(**truth)
    saved = sum(taken.saved.values())
    assert taken.owned + saved + taken.rounding + taken.workspace + taken.unattributed == taken.allocated
    return taken


def test_the_model_has_the_sizes_it_is_said_to_have(cpu_scene):
    truth = cpu_scene.truth(gradients=True, adam=True)
    rounded = {kind: round(nbytes / 2**20, 1) for kind, nbytes in truth.items()}
    assert rounded == {"parameters": 45.0, "gradients": 45.0, "optimizer": 90.0, "buffers": 0.0, "data": 11.3}


def test_exact_through_training_and_densification():
    scene = Scene(CPU)
    exact(scene, gradients=False, adam=False)
    loss = scene.loss()
    exact(scene, gradients=False, adam=False)  # before backward: what autograd keeps is nobody's
    loss.backward()
    exact(scene, gradients=True, adam=False)
    scene.optimizer.step()
    exact(scene, gradients=True, adam=True)
    scene.optimizer.zero_grad(set_to_none=False)
    exact(scene, gradients=True, adam=True)
    scene.optimizer.zero_grad(set_to_none=True)
    exact(scene, gradients=False, adam=True)
    grown = torch.arange(N).repeat(2)[: N + 33_333]
    pruned = torch.arange(0, N, 3)
    for rows, count in ((grown, 233_333), (pruned, 66_667)):
        scene.replace(rows)
        assert scene.count == count
        exact(scene, gradients=False, adam=True)
        scene.loss().backward()
        scene.optimizer.step()
        exact(scene, gradients=True, adam=True)
        scene.optimizer.zero_grad()


def test_components_names_and_views(cpu_scene):
    taken = cpu_scene.census()
    assert taken.by_kind_and_component()["parameters"] == {
        **{name: N * 4 * int(torch.tensor(shape).prod()) for name, shape in SHAPES.items()},
        "background": 24,
    }
    views = {held.name: held.views for held in taken.owned_entries}
    assert views["shN"] == 2  # the parameter and its flat view
    assert views["all"] == 7  # the stack of images and six single ones
    assert [(h.component, h.nbytes, h.shape) for h in taken.owned_entries if h.component == "white"] == [
        ("white", 12, (768, 512, 3))
    ]


def test_state_left_behind_by_a_careless_densification_is_named():
    """The new parameters get no state, and the optimizer keeps the old ones: memory that nothing else would show."""
    scene = Scene(CPU, count=10_000)
    scene.loss().backward()
    scene.optimizer.step()
    for group in scene.optimizer.param_groups:
        if group["name"] in SHAPES:
            scene.put(group, scene.parameter(20_000, *SHAPES[group["name"]]))
    found = scene.census().by_kind_and_component()["optimizer"]
    old = 10_000 * FLOATS * 4
    assert found[STALE] == 4 * old + len(SHAPES) * STEP  # parameters, gradients, two moments


def test_saved_activations_are_exact():
    scene = Scene(CPU, count=10_000)
    n = scene.count
    before = scene.census()
    saved = SavedTensors(CPU)
    saved.push(before.addresses())
    saved.label = "render"
    loss = scene.loss()
    taken = scene.census(saved=saved, before=before)
    saved.pop()
    # normalized points 3 (+ mean and deviation: 3 + 3 floats in all), scales' exp 3, their product 3, tanh 3, color 3,
    # sigmoid 1, points * color 3, product 3
    assert taken.saved == {"render": n * 4 * (3 + 3 + 3 + 3 + 3 + 1 + 3 + 3) + 2 * 3 * 4}
    assert taken.saved_peak == saved.peak == sum(taken.saved.values())
    loss.backward()
    assert scene.census(saved=saved).saved == {}


def test_the_heap_changes_by_what_the_census_says():
    """The C library's own count of bytes in use moves as the owners do, up to the interpreter's crumbs."""
    scene = Scene(CPU)
    for _ in range(2):  # caches of torch and of the interpreter settle
        scene.loss().backward()
        scene.optimizer.step()
        scene.optimizer.zero_grad()
    gc.collect()  # what other tests left
    states = [scene.census()]
    if states[0].source != "mallinfo2":
        pytest.skip("no mallinfo2 here: the process's pages are no exact measure")
    for action in (
        lambda: scene.loss().backward(),
        scene.optimizer.step,
        scene.optimizer.zero_grad,
        lambda: scene.replace(torch.arange(N).repeat(2)[: N + 50_000]),
        lambda: scene.loss().backward(),
    ):
        action()
        gc.collect()
        states.append(scene.census())
    crumbs = [abs(b.unattributed - a.unattributed) for a, b in pairwise(states)]
    assert max(crumbs) < 2**18
    moved = [abs(b.owned - a.owned) for a, b in pairwise(states)]
    assert sorted(moved)[1] > 30 * 2**20  # only the second Adam step moves nothing


def test_on_a_gpu_the_account_is_the_allocators_to_the_byte(gpu):
    scene = Scene(gpu, count=50_000)
    dice = random.Random(0)
    scene.loss().backward()
    scene.optimizer.step()
    saved = SavedTensors(torch.device("cuda", torch.cuda.current_device()))
    looked_at = set(dice.sample(range(60), 20))
    torch.cuda.synchronize()
    for step in range(60):
        if step % 15 == 7:
            scene.replace(torch.randint(0, scene.count, (scene.count + 1000,), device=gpu))
        scene.optimizer.zero_grad()
        torch.cuda.set_sync_debug_mode("error")
        try:
            before = scene.census()
            saved.push(before.addresses())
            loss = scene.loss()
            during = scene.census(saved=saved, before=before)
            loss.backward()
            saved.pop()
            scene.optimizer.step()
            taken = scene.census(saved=saved, before=before)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        if step in looked_at:
            assert during.by_kind()["parameters"] == taken.by_kind()["parameters"]
            for one in (during, taken):
                parts = one.owned + sum(one.saved.values()) + one.rounding + one.workspace + one.unattributed
                assert parts == one.allocated
                assert min(one.rounding, one.workspace, one.unattributed) >= 0
            assert taken.allocated == torch.cuda.memory_allocated()
            assert during.saved
            assert taken.foreign == ()
