"""Memory by category, measured by three tools on a model of which every byte is known.

The model is shaped like 3D Gaussian splatting: 200 000 Gaussians of 59 numbers in six parameters (45 MiB), their
gradients (45), Adam's moments (90), images and neighbors (11, with views and an expanded tensor on top), a few
buffers, and what autograd keeps between forward and backward. It is rendered by a function, not by
``Module.forward``, as splat trainers do; after one step the Gaussians are densified: new parameters, Adam's state
carried over.

* fieldwatch: the census, which asks the owners and counts each storage once.
* gc walk: the method of the original profiler, reimplemented from its description: every tensor that the garbage
  collector knows, with its own size, sorted by ``requires_grad`` and ``grad``.
* MemTracker: ``torch.distributed._tools.mem_tracker``, given model, optimizer and data before it starts.

Every number is in MiB; ``wrong`` is the sum of all differences from the truth, over the categories. If a tool lacks a
category, its cell is empty, and bytes that it assigns to another one count as wrong in both.

    python benchmarks/memory_truth.py            # the table, a few seconds
    python benchmarks/memory_truth.py --json
    python benchmarks/memory_truth.py --device cuda
"""

import argparse
import contextlib
import gc
import io
import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._tools.mem_tracker import MemTracker

from fieldwatch.measure import ParameterGroups
from fieldwatch.measure.census import SavedTensors, take_census

MB = 2**20
COUNT = 200_000
GROWN = 233_333
SHAPES: dict[str, tuple[int, ...]] = {
    "means": (3,),
    "sh0": (1, 3),
    "shN": (15, 3),
    "opacities": (),
    "scales": (3,),
    "quats": (4,),
}
CATEGORIES = ("parameters", "gradients", "optimizer", "buffers", "data", "activations", "other")

Sizes = dict[str, int]
"""Bytes by category."""


class Scene:
    """A splat model in training, whose memory is known to the byte."""

    def __init__(self, device: torch.device) -> None:
        torch.manual_seed(0)
        self.device = device
        self.model = nn.ParameterDict({k: torch.randn(COUNT, *s, device=device) for k, s in SHAPES.items()})
        self.model.register_buffer("background", torch.ones(1000, 3, device=device))
        groups = [{"params": [parameter], "name": name} for name, parameter in self.model.items()]
        self.optimizer = torch.optim.Adam(groups, lr=1e-3)
        self.images = torch.zeros(7, 768, 512, 3, dtype=torch.uint8, device=device)
        self.neighbors = torch.zeros(COUNT, 2, dtype=torch.int64, device=device)
        self.views = [*self.images.unbind(), self.neighbors[:, 1:]]
        self.white = torch.ones(3, device=device).expand(768, 512, 3)
        self.loss: Tensor | None = None

    @property
    def data(self) -> dict[str, Any]:
        """Return the tensors of the run other than the model."""
        return {"images": self.images, "knn": self.neighbors, "views": self.views, "white": self.white}

    def render(self) -> None:
        """Leave a loss behind, with 19 numbers per Gaussian in its graph."""
        model = self.model
        points = model["means"] * model["scales"].exp()  # keeps exp
        color = model["sh0"].sum(1) + model["shN"].sum(1) + model["quats"][:, :3].tanh()  # keeps tanh
        seen = points * color * model["opacities"].sigmoid()[:, None]  # keeps points, color, their product, sigmoid
        self.loss = seen.square().mean()  # keeps seen

    def backward(self) -> None:
        """Gradients."""
        assert self.loss is not None  # noqa: S101  stages run in their order
        self.loss.backward()
        self.loss = None

    def densify(self) -> None:
        """Replace every parameter by a longer one, as splat trainers do."""
        rows = torch.arange(COUNT, device=self.device).repeat(2)[:GROWN]
        for group in self.optimizer.param_groups:
            name = group["name"]
            old = self.model[name]
            state = self.optimizer.state.pop(old)
            fresh = nn.Parameter(old.detach()[rows])
            kept = {key: value[rows] if key != "step" else value for key, value in state.items()}
            self.optimizer.state[fresh] = kept
            self.model[name] = fresh
            group["params"] = [fresh]

    def truth(self, *, gradients: bool, adam: bool, graph: bool) -> Sizes:
        """Return the true bytes, from the numbers of Gaussians alone."""
        count = len(self.model["means"])
        parameters = count * 59 * 4
        steps = len(SHAPES) * 4 if self.device.type == "cpu" else 0  # on CUDA the step counters are on the host
        data = 7 * 768 * 512 * 3 + COUNT * 2 * 8 + 12
        return {
            "parameters": parameters,
            "gradients": parameters * gradients,
            "optimizer": (2 * parameters + steps) * adam,
            "buffers": 12_000,
            "data": data,
            "activations": count * 4 * 19 * graph,
            "other": 0,
        }


Stage = tuple[str, Callable[[Scene], Any], dict[str, bool]]
STAGES: tuple[Stage, ...] = (
    ("created", lambda _: None, {"gradients": False, "adam": False, "graph": False}),
    ("after forward", Scene.render, {"gradients": False, "adam": False, "graph": True}),
    ("after backward", Scene.backward, {"gradients": True, "adam": False, "graph": False}),
    ("after step", lambda s: s.optimizer.step(), {"gradients": True, "adam": True, "graph": False}),
    ("after zero_grad", lambda s: s.optimizer.zero_grad(), {"gradients": False, "adam": True, "graph": False}),
    ("after densification", Scene.densify, {"gradients": False, "adam": True, "graph": False}),
    ("second forward", Scene.render, {"gradients": False, "adam": True, "graph": True}),
    ("second backward", Scene.backward, {"gradients": True, "adam": True, "graph": False}),
)


@contextlib.contextmanager
def census_of(scene: Scene) -> Iterator[Callable[[], Sizes]]:
    """Ours."""
    watched = ParameterGroups()
    watched.add(gaussians=scene.model)
    saved = SavedTensors(scene.device)

    def read() -> Sizes:
        options = {"optimizers": [scene.optimizer], "data": scene.data, "device": scene.device}
        taken = take_census(watched, saved=saved, **options)
        return taken.by_kind() | {"activations": sum(taken.saved.values())}

    with saved:
        yield read


@contextlib.contextmanager
def walk_of(scene: Scene) -> Iterator[Callable[[], Sizes]]:
    """Sort the garbage collector's tensors by their appearance, as the original profiler does."""

    def read() -> Sizes:
        found = dict.fromkeys(CATEGORIES, 0)
        for thing in gc.get_objects():
            if isinstance(thing, Tensor) and thing.device == scene.device:
                found[looks_like(thing)] += thing.numel() * thing.element_size()
        return found

    yield read


def looks_like(tensor: Tensor) -> str:
    """Guess a category as the original does."""
    if tensor.requires_grad:
        return "gradients" if tensor.grad is not None else "activations"
    return "parameters" if tensor.is_leaf else "other"


@contextlib.contextmanager
def tracker_of(scene: Scene) -> Iterator[Callable[[], Sizes]]:
    """Use torch's tracker with its categories mapped; temporary and unknown memory is ``other``."""
    tracker = MemTracker()
    tracker.track_external(scene.model, scene.optimizer, scene.images, scene.neighbors, scene.white)
    names = {"Parameter": "parameters", "Gradient": "gradients", "Optstate": "optimizer", "Buffer": "buffers"}
    names |= {"Activation": "activations", "Temp": "other", "Other": "data"}

    def read() -> Sizes:
        found = dict.fromkeys(CATEGORIES, 0)
        for kind, nbytes in tracker.get_tracker_snapshot("current").get(scene.device, {}).items():
            name = str(getattr(kind, "value", kind))
            if name in names:
                found[names[name]] += nbytes
        return found

    with tracker:
        yield read


TOOLS: dict[str, Callable[[Scene], contextlib.AbstractContextManager[Callable[[], Sizes]]]] = {
    "fieldwatch": census_of,
    "gc walk": walk_of,
    "MemTracker": tracker_of,
}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Answer of one tool at one stage.

    Attributes:
        stage: stage of the training.
        tool: name of the tool.
        sizes: bytes by category.
        wrong: bytes in the wrong category, missing, or invented.
        raised: error of the tool; empty if it answered.
    """

    stage: str
    tool: str
    sizes: Sizes
    wrong: int = 0
    raised: str = ""


def ask(tool: str, device: torch.device) -> Iterator[Answer]:
    """Take a fresh model through all stages and read the tool after each; stop at an exception of the tool."""
    scene = Scene(device)
    stage = "start"
    try:
        with TOOLS[tool](scene) as read:
            for stage, action, held in STAGES:
                action(scene)
                gc.collect()
                truth = scene.truth(**held)
                sizes = read()
                wrong = sum(abs(sizes.get(name, 0) - truth[name]) for name in CATEGORIES)
                yield Answer(stage=stage, tool=tool, sizes=sizes, wrong=wrong)
    except (RuntimeError, TypeError, ValueError, AttributeError, AssertionError, KeyError) as error:
        yield Answer(stage=stage, tool=tool, sizes={}, raised=f"{type(error).__name__}: {error}".splitlines()[0])


def truths(device: torch.device) -> Iterator[Answer]:
    """Return the true bytes at each stage."""
    scene = Scene(device)
    for stage, action, held in STAGES:
        action(scene)
        yield Answer(stage=stage, tool="truth", sizes=scene.truth(**held))


def show(answers: list[Answer]) -> None:
    """Print one small table per stage."""
    print(f"{'MiB':24}" + "".join(f"{name:>13}" for name in (*CATEGORIES, "error")))
    for stage, _, _ in STAGES:
        print(stage)
        for answer in (a for a in answers if a.stage == stage):
            if answer.raised:
                print(f"  {answer.tool:22}raised {answer.raised}")
                continue
            cells = "".join(f"{answer.sizes.get(name, 0) / MB:13.2f}" for name in CATEGORIES)
            print(f"  {answer.tool:22}{cells}" + ("" if answer.tool == "truth" else f"{answer.wrong / MB:13.2f}"))
    print()
    for tool in TOOLS:
        own = [answer for answer in answers if answer.tool == tool and not answer.raised]
        if own:
            worst = max(own, key=lambda answer: answer.wrong)
            print(
                f"{tool}: exact at {sum(not a.wrong for a in own)} of {len(STAGES)} stages, "
                f"largest error {worst.wrong / MB:.2f} MiB ({worst.stage}, {worst.wrong} bytes)"
            )


def main() -> None:
    """Run every tool and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
    asked = parser.parse_args()
    device = torch.device(asked.device)
    if device.type == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
    warnings.simplefilter("ignore")  # the walk touches deprecated attributes
    with contextlib.redirect_stdout(io.StringIO()) if asked.json else contextlib.nullcontext():
        answers = [*truths(device), *(answer for tool in TOOLS for answer in ask(tool, device))]
        show(answers)
    if asked.json:
        found = {"device": str(device), "torch": str(torch.__version__), "answers": [asdict(a) for a in answers]}
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
