"""Tests every kind of training state separately: killed at random steps, resumed, and equal bit for bit."""

import os
import random
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from forked import answer, forked
from rows import Row, judged
from torch import Tensor, nn

from fieldwatch import Guard, Outputs, Run, Saving, Shuffled, Terms, read_history
from fieldwatch.checkpoint import Checkpoints, RandomState

STEPS = 24
EVERY = 4
"""Steps of a run, and steps between checkpoints."""


@dataclass(kw_only=True)
class Toy:
    """A small regression with one additional ingredient.

    Attributes:
        model: trained model.
        optimizer: its optimizer.
        more: further items of a checkpoint.
        draw: function that draws the input noise of a step.
        after: function that is called after every update.
        amp: whether to compute in bfloat16.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    more: dict[str, Any] = field(default_factory=dict[str, Any])
    draw: Callable[[], float] = lambda: 0.0
    after: Callable[[], object] = lambda: None
    amp: bool = False


def plain(
    make: Callable[[Any], torch.optim.Optimizer] = lambda p: torch.optim.SGD(p, lr=0.05), *, norm: bool = False
) -> Toy:
    """Return a toy with this optimizer."""
    torch.manual_seed(0)
    layers = [nn.Linear(3, 8), *([nn.BatchNorm1d(8)] if norm else []), nn.Tanh(), nn.Linear(8, 1)]
    model = nn.Sequential(*layers)
    return Toy(model=model, optimizer=make(model.parameters()))


def drawing(draw: Callable[[], float], **more: Any) -> Toy:
    """Return a toy whose inputs are shifted by drawn numbers."""
    toy = plain()
    toy.draw = draw
    toy.more = more
    return toy


def with_generator() -> Toy:
    """Return a toy with its own generator, by name."""
    generator = torch.Generator().manual_seed(7)
    return drawing(lambda: float(torch.rand((), generator=generator)), own=RandomState(rays=generator))


def with_numpy_generator() -> Toy:
    """Return a toy with the newer kind of NumPy generator."""
    generator = np.random.default_rng(7)
    return drawing(lambda: float(generator.random()), own=RandomState(views=generator))


def with_order() -> Toy:
    """Return a toy with shuffled batches."""
    order = Shuffled(20, 3, seed=5)
    return drawing(lambda: float(next(order).float().mean()) / 20, order=order)


def with_scheduler() -> Toy:
    """Return a toy with OneCycleLR, which writes rates and momenta into the optimizer."""
    toy = plain(lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9))
    scheduler = torch.optim.lr_scheduler.OneCycleLR(toy.optimizer, max_lr=0.1, total_steps=STEPS + 1)
    toy.more = {"scheduler": scheduler}
    toy.after = scheduler.step
    return toy


def with_average() -> Toy:
    """Return a toy with an average of the weights."""
    toy = plain()
    average = torch.optim.swa_utils.AveragedModel(
        toy.model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    toy.more, toy.after = {"average": average}, lambda: average.update_parameters(toy.model)
    return toy


def with_scaler() -> Toy:
    """Return a toy with a loss scale that grows every third step."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=3)
    toy = plain()

    def after() -> None:
        scaler.scale(torch.ones(()))
        scaler._found_inf_per_device = lambda _: {"cpu": torch.zeros(1)}  # type: ignore[method-assign]  # noqa: SLF001  the optimizer steps without the scaler
        scaler._per_optimizer_states[id(toy.optimizer)]["found_inf_per_device"] = {torch.device("cpu"): torch.zeros(1)}  # noqa: SLF001
        scaler.update()

    toy.more = {"scaler": scaler}
    toy.after = after
    toy.draw = lambda: scaler.get_scale() / 100
    return toy


def with_tensors() -> Toy:
    """Return a toy with a tensor and a mapping of tensors, changed in place."""
    seen = torch.zeros(())
    sums = {"a": torch.zeros(3), "b": torch.zeros((), dtype=torch.int64)}
    toy = drawing(lambda: float(seen) / 50 + float(sums["b"]) / 70, seen=seen, sums=sums)

    def after() -> None:
        seen.add_(1)
        sums["b"].add_(2)

    toy.after = after
    return toy


def with_amp() -> Toy:
    """Return a toy with bfloat16 autocast and dropout."""
    toy = with_dropout()
    toy.amp = True
    return toy


def with_dropout() -> Toy:
    """Return a toy with dropout, which draws from torch's global generator."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 16), nn.Dropout(0.3), nn.Linear(16, 1))
    return Toy(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.05))


KINDS: Mapping[str, Callable[[], Toy]] = {
    "python's generator": lambda: drawing(random.random),
    "numpy's generator": lambda: drawing(lambda: float(np.random.rand())),  # noqa: NPY002  tests the global generator
    "torch's generator": with_dropout,
    "a named generator": with_generator,
    "a named generator of numpy": with_numpy_generator,
    "the place in shuffled data": with_order,
    "buffers of BatchNorm": lambda: plain(norm=True),
    "SGD with momentum": lambda: plain(lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
    "Adam": lambda: plain(lambda p: torch.optim.Adam(p, lr=0.01)),
    "Adam, fused": lambda: plain(lambda p: torch.optim.Adam(p, lr=0.01, fused=True)),
    "AdamW with amsgrad": lambda: plain(lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True)),
    "RMSprop": lambda: plain(lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True)),
    "Adagrad": lambda: plain(lambda p: torch.optim.Adagrad(p, lr=0.05)),
    "NAdam": lambda: plain(lambda p: torch.optim.NAdam(p, lr=0.01)),
    "Rprop": lambda: plain(lambda p: torch.optim.Rprop(p, lr=0.01)),
    "a schedule of rates": with_scheduler,
    "an average of the weights": with_average,
    "a gradient scaler": with_scaler,
    "tensors": with_tensors,
    "autocast to bfloat16": with_amp,
}


def train(folder: Path, kind: str, *, die_at: int | None, seed: int) -> None:
    """Train or resume, with other random numbers than the previous process; die by SIGKILL at the end of a step."""
    toy = KINDS[kind]()
    seed = seed if any((folder / "checkpoints").glob("step_*")) else 0  # a fresh start uses the seed of its script
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  runs save the global state
    torch.manual_seed(seed)
    inputs = torch.randn(32, 3, generator=torch.Generator().manual_seed(1))
    with Run(
        folder, saving=Saving(every=EVERY), guard=Guard(hang_timeout=None), outputs=Outputs(sinks=(), rules=())
    ) as run:
        run.track(model=toy.model, optimizer=toy.optimizer, **toy.more)
        run.resume()
        for step in run.steps(STEPS):
            shifted = inputs + toy.draw()
            with torch.autocast("cpu", torch.bfloat16, enabled=toy.amp):
                error = (toy.model(shifted).float() - shifted.sum(1, keepdim=True)).square().mean()
            toy.optimizer.zero_grad()
            error.backward()
            step.observe(Terms(fit=(1.0, error)))
            step.update(toy.optimizer)
            toy.after()
            if step.index == die_at:
                run.flush()  # reveals a later row of the same step
                os.kill(os.getpid(), signal.SIGKILL)


def trace(folder: Path) -> dict[str, Any]:
    """Return all losses, and every value of the last checkpoint as text that is equal only if the bits are."""
    record = read_history(folder)["Loss/total"]
    state = Checkpoints(folder / "checkpoints").read("last")
    return {
        "steps": record.steps.tolist(),
        "losses": [float(one).hex() for one in record.values],
        "state": exact(state),
    }


def exact(tree: Any) -> Any:
    """Return a tree in which numbers are replaced by the text of all their bits."""
    if isinstance(tree, Mapping):
        return {str(key): exact(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [exact(value) for value in tree]
    if isinstance(tree, Tensor):
        return (
            f"{tree.dtype} {tuple(tree.shape)} {tree.contiguous().view(-1).view(torch.uint8).numpy().tobytes().hex()}"
            if tree.numel()
            else "empty"
        )
    if isinstance(tree, np.ndarray):
        return f"{tree.dtype} {tree.shape} {tree.tobytes().hex()}"
    return float(tree).hex() if isinstance(tree, float) else repr(tree)


def trial(folder: Path, kind: str, deaths: int, seed: int) -> str:
    """Test one kind of state with several kills; return what differs from the undisturbed run, empty for nothing."""
    draw = random.Random(seed)  # noqa: S311  reproducible choices, not secrets
    whole = forked(lambda _: train(folder / "whole", kind, die_at=None, seed=0)).end()
    if whole:
        return f"the undisturbed run exited with {whole}"
    at = EVERY
    for number in range(deaths):
        at = draw.randint(at + 1, STEPS - 2 * (deaths - number))
        code = forked(lambda _, at=at, n=number: train(folder / "parts", kind, die_at=at, seed=n)).end()
        if code != -signal.SIGKILL:
            return f"start {number} exited with {code}"
    code = forked(lambda _: train(folder / "parts", kind, die_at=None, seed=99)).end()
    if code:
        return f"the last start exited with {code}"
    one, other = (answer(lambda name=name: trace(folder / name)) for name in ("whole", "parts"))
    return "" if one == other else f"differs: {different(one, other)}"


def different(one: Any, other: Any) -> str:
    """Return the first difference."""
    if "raised" in one or "raised" in other:
        return str(one.get("raised") or other.get("raised"))
    if one["steps"] != other["steps"]:
        return f"{len(other['steps'])} steps instead of {len(one['steps'])}"
    wrong = [step for step, pair in enumerate(zip(one["losses"], other["losses"], strict=True)) if pair[0] != pair[1]]
    return f"losses from step {wrong[0]} on" if wrong else "the last checkpoint"


def run_states(folder: Path, deaths: int = 3, kinds: tuple[str, ...] = tuple(KINDS)) -> list[Row]:
    """Return the row of P4 about the kinds of state."""
    torch.optim.Adam([nn.Parameter(torch.zeros(1))])  # torch's lazy imports happen once here, not after every fork
    wrong = list[str]()
    for number, kind in enumerate(kinds):
        (folder / str(number)).mkdir(parents=True)
        found = trial(folder / str(number), kind, deaths, number)
        wrong += [f"{kind}: {found}"] if found else []
    return [
        judged(
            *("P4", f"{len(kinds)} kinds of state, one by one: kill -9 {deaths} times, resumed", "bit-equal"),
            f"{len(kinds) - len(wrong)} of {len(kinds)}",
            good=not wrong,
            why="; ".join(wrong)[:400],
        )
    ]
