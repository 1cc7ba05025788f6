"""Every optimizer of torch under the guard: a step with a non-finite gradient leaves every bit unchanged."""

import inspect
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from forked import answer
from rows import Row, judged
from states import exact
from torch import Tensor, nn

from fieldwatch import Guard, Outputs, Run, Saving, Terms
from fieldwatch.guard.update import skips_by_itself, step_and_restore, step_with_found_inf
from fieldwatch.record import read_events

STEPS = 12
BAD = (0, 4, 5, STEPS - 1)
"""Steps with a non-finite gradient: the first one, two in a row, and the last one."""
NOT_GUARDED = ("Optimizer", "LBFGS", "SparseAdam", "Muon")
"""Optimizers left out: the base class, one that needs a closure, one for sparse gradients, one for matrices only."""
FUSED = "skipped by the optimizer"
CHOSEN = "chosen on the device"
BADLY = (math.nan, math.inf, -math.inf)


def kinds() -> Iterator[tuple[str, dict[str, Any]]]:
    """Return every optimizer of torch.optim with each of its implementations."""
    for name, made in sorted(vars(torch.optim).items()):
        if not inspect.isclass(made) or not issubclass(made, torch.optim.Optimizer) or name in NOT_GUARDED:
            continue
        known = inspect.signature(made).parameters
        yield name, {"lr": 0.01}
        for option in ("foreach", "fused"):
            if option in known:
                yield name, {"lr": 0.01, option: True}
        if name == "SGD":
            yield name, {"lr": 0.01, "momentum": 0.9, "nesterov": True}


def values_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    """Return every bit of the parameters and of the optimizer's state."""
    return exact([list(model.parameters()), optimizer.state_dict()["state"]])


def trained(folder: Path, name: str, options: dict[str, Any], *, spoil: bool) -> dict[str, Any]:
    """Train with bad gradients, or without those steps; return which bad steps changed a bit, and the final state."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = getattr(torch.optim, name)(model.parameters(), **options)
    changed = list[int]()
    with Run(
        folder, saving=Saving(every=None), guard=Guard(hang_timeout=None), outputs=Outputs(sinks=(), rules=())
    ) as run:
        run.track(model=model, optimizer=optimizer)
        run.resume()
        for step in run.steps(STEPS):
            inputs = torch.randn(8, 3, generator=torch.Generator().manual_seed(step.index))
            terms = Terms(fit=(1.0, (model(inputs).sum(1) - inputs.sum(1)).square().mean()))
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms)
            bad = step.index in BAD
            if bad and not spoil:
                continue
            if bad:
                gradient: Tensor | None = model.weight.grad
                assert gradient is not None  # noqa: S101  called after backward
                gradient[0, step.index % 3] = BADLY[step.index % 3]
            before = values_of(model, optimizer) if bad else None
            step.update(optimizer)
            if bad and values_of(model, optimizer) != before:
                changed.append(step.index)
    refused = [event["step"] for event in read_events(folder) if event["kind"] == "refusal"]
    return {"changed": changed, "refused": refused, "values": values_of(model, optimizer)}


def stepped(way: str, name: str, options: dict[str, Any]) -> list[str] | None:
    """Return what is wrong with a way of stepping used on GPUs, tried on the CPU; None if the optimizer lacks it."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = getattr(torch.optim, name)(model.parameters(), **options)
    if way == FUSED and not skips_by_itself(optimizer):
        return None
    wrong = list[str]()
    for step in range(STEPS):
        inputs = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        (model(inputs).sum(1) - inputs.sum(1)).square().mean().backward()
        if step == 0:
            optimizer.step()  # both ways take effect once the state exists
            continue
        bad = step in BAD
        if bad and model.weight.grad is not None:
            model.weight.grad[0, 0] = BADLY[step % 3]
        if way == CHOSEN and not all(
            isinstance(v, Tensor) for state in optimizer.state.values() for v in state.values()
        ):
            return None
        before = values_of(model, optimizer)
        (step_with_found_inf if way == FUSED else step_and_restore)(optimizer, torch.tensor(float(bad)))
        if (values_of(model, optimizer) == before) != bad:
            wrong.append(f"step {step} {'changed something' if bad else 'changed nothing'}")
    return wrong


def device_row(way: str) -> Row:
    """Return the row of one of these ways."""
    found = {f"{name}({options})": answer(lambda n=name, o=options: stepped(way, n, o)) for name, options in kinds()}
    tried = {name: wrong for name, wrong in found.items() if wrong is not None}
    wrong = [f"{name}: {words}" for name, words in tried.items() if words]
    what = f"{len(tried)} optimizers of torch, {way}, as on a GPU"
    wanted = "a bad step changes no bit, every other step does"
    held = f"{len(tried) - len(wrong)} of {len(tried)}"
    return judged("P8", what, wanted, held, good=bool(tried) and not wrong, why="; ".join(wrong)[:400])


def trial(folder: Path, name: str, options: dict[str, Any]) -> str:
    """Return what went wrong with one optimizer; empty for nothing."""
    spoiled = answer(lambda: trained(folder / "bad", name, options, spoil=True))
    spared = answer(lambda: trained(folder / "good", name, options, spoil=False))
    if "raised" in spoiled or "raised" in spared:
        return str(spoiled.get("raised") or spared.get("raised"))
    wrong = [f"bad steps {spoiled['changed']} changed something"] if spoiled["changed"] else []
    wrong += [f"refused {spoiled['refused']}"] if spoiled["refused"] != list(BAD) else []
    wrong += ["not the run without these steps"] if spoiled["values"] != spared["values"] else []
    return ", ".join(wrong)


def run_optimizers(folder: Path, names: tuple[str, ...] = ()) -> list[Row]:
    """Return the rows of P8 about optimizers."""
    torch.optim.Adam([nn.Parameter(torch.zeros(1))])  # torch's lazy imports happen once here, not after every fork
    chosen = [(name, options) for name, options in kinds() if not names or name in names]
    wrong = list[str]()
    for number, (name, options) in enumerate(chosen):
        found = trial(folder / str(number), name, options)
        wrong += [f"{name}({options}): {found}"] if found else []
    return [
        judged(
            *("P8", f"{len(chosen)} optimizers of torch, read on the host, {len(BAD)} bad gradients each"),
            *(
                "bit-equal to a run without them, refusals counted",
                f"{len(chosen) - len(wrong)} of {len(chosen)}",
            ),
            good=not wrong,
            why="; ".join(wrong)[:400],
        ),
        *(device_row(way) for way in (FUSED, CHOSEN)),
    ]
