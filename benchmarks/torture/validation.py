"""Evaluations that fail, draw, switch modes and spoil what they evaluate do not change the training next to them."""

import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from forked import answer
from rows import Row, judged
from states import exact
from torch import nn

from fieldwatch import Guard, Outputs, Run, Saving, Terms, read_history
from fieldwatch.record import read_events

STEPS = 24
EVERY = 6
"""Steps of a run, and steps between evaluations."""
Look = Callable[[nn.Module], object]


def draws(_: nn.Module) -> None:
    """Draw from all global generators, an odd number of times."""
    torch.rand(7)
    np.random.rand(3)  # noqa: NPY002  runs save the global state
    random.random()  # noqa: S311  random numbers, not secrets


def switches(model: nn.Module) -> None:
    """Leave the model in eval mode."""
    model.eval()


def moves_buffers(model: nn.Module) -> None:
    """Let BatchNorm update its buffers."""
    model.train()
    model(torch.full((16, 3), 5.0))


def goes_backward(model: nn.Module) -> None:
    """Leave gradients behind."""
    with torch.enable_grad():
        model.train()
        model(torch.randn(16, 3)).sum().backward()


def raises(error: BaseException) -> Look:
    """Do all of this, and then fail."""

    def look(model: nn.Module) -> None:
        draws(model)
        goes_backward(model)
        raise error

    return look


def reads_what_is_missing(model: nn.Module) -> None:
    """Open a missing file."""
    draws(model)
    os.stat("/nothing/is/here.png")  # noqa: PTH116  any failing call


LOOKS: Mapping[str, Look] = {
    "draw random numbers": draws,
    "leave the model in eval mode": switches,
    "change BatchNorm's buffers": moves_buffers,
    "leave gradients": goes_backward,
}
FAILING: Mapping[str, Look] = {
    "ValueError": raises(ValueError("a picture came with 3 channels, expected 4")),
    "FloatingPointError": raises(FloatingPointError("NaN in an evaluation")),
    "out of memory": raises(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB (planted)")),
    "MemoryError": raises(MemoryError("Unable to allocate 12.0 GiB")),
    "a missing file": reads_what_is_missing,
}


def train(folder: Path, look: Look | None) -> dict[str, Any]:
    """Train with or without evaluations; return weights, losses, and the recorded failures."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  runs save the global state
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with Run(
        folder, saving=Saving(every=None), guard=Guard(hang_timeout=None), outputs=Outputs(sinks=(), rules=())
    ) as run:
        run.track(model=model, optimizer=optimizer)
        run.resume()
        for step in run.steps(STEPS):
            inputs = torch.randn(16, 3) + random.random() + float(np.random.rand())  # noqa: NPY002, S311  the same
            optimizer.zero_grad()
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            loss.backward()
            if look is not None and step.every(EVERY):
                with run.evaluation("evaluation"):
                    look(model)
            step.observe(Terms(fit=(1.0, loss)))
            step.update(optimizer)
    failed = [event for event in read_events(folder) if event["kind"] == "validation_failed"]
    losses = [float(value).hex() for value in read_history(folder)["Loss/total"].values]
    return {
        "state": exact([model.state_dict(), optimizer.state_dict()["state"], model.training]),
        "losses": losses,
        "failed": len(failed),
        "files": len(list((folder / "validation_failures").glob("*.txt"))),
    }


def trial(folder: Path, look: Look, plain: dict[str, Any], failures: int) -> str:
    """Return what one kind of evaluation changed; empty for nothing."""
    found = answer(lambda: train(folder, look))
    if "raised" in found:
        return f"the training ended: {found['raised']}"
    wrong = ["other losses"] if found["losses"] != plain["losses"] else []
    wrong += ["another state at the end"] if found["state"] != plain["state"] else []
    if (found["failed"], found["files"]) != (failures, failures):
        wrong.append(f"{found['failed']} failures recorded and {found['files']} tracebacks, expected {failures}")
    return ", ".join(wrong)


def run_validation(folder: Path) -> list[Row]:
    """Return the rows of P14 about custom loops."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.optim.Adam([nn.Parameter(torch.zeros(1))])  # torch's lazy imports happen once here, not after every fork
    plain = answer(lambda: train(folder / "plain", None))
    rows = list[Row]()
    for looks, failures, what in (
        (LOOKS, 0, "evaluations that draw, switch modes, change buffers, leave gradients"),
        (FAILING, STEPS // EVERY, "evaluations that raise after all of this"),
    ):
        wrong = list[str]()
        for name, look in looks.items():
            found = trial(folder / name.replace(" ", "_"), look, plain, failures)
            wrong += [f"{name}: {found}"] if found else []
        found = f"{len(looks) - len(wrong)} of {len(looks)}"
        wanted = "training bit-equal" + (", each failure recorded with its traceback" if failures else "")
        rows.append(judged("P14", f"{len(looks)} {what}", wanted, found, good=not wrong, why="; ".join(wrong)[:400]))
    return rows
