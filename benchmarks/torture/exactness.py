"""Compares a resumed run with an undisturbed one, bit for bit: dropout, shuffled batches, stopped within an epoch.

Every method is used as its documentation shows: exactly the state that the recipe saves is saved.
"""

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from forked import answer
from methods import Method, Ours, State
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fieldwatch import Outputs, Run, Saving
from fieldwatch.checkpoint import Shuffled

EPOCH = 16
TOTAL = 48
STOP = 24
"""Steps per epoch, of the run, and before the stop."""

Train = Callable[[Path, int, bool], list[float]]
"""Train in a folder up to a step, from the start or resumed, and save there; return the losses of these steps."""


def data() -> TensorDataset:
    """Return 64 samples."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64, 8, generator=generator)
    return TensorDataset(x, x.prod(1, keepdim=True))


DROPOUT = [0.2]
"""Dropout probability; the second trial sets it to 0."""


def network() -> nn.Sequential:
    """Build a network with dropout."""
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(DROPOUT[0]), nn.Linear(16, 1))


def fit(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> float:
    """Train one step and return its loss."""
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def by_recipe(method: Method) -> Train:
    """Follow PyTorch's tutorial: save model, optimizer and step; after a resume, skip the batches that are done."""

    def train(folder: Path, until: int, resumed: bool) -> list[float]:  # noqa: FBT001  fixed by the common signature
        torch.manual_seed(0)
        model = network()
        losses = list[float]()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        done = 0
        if resumed:
            done, state = method.load(folder, flat(model, optimizer))
            unflat(state, model, optimizer)
        loader = DataLoader(data(), batch_size=4, shuffle=True)
        for epoch in range(done // EPOCH, TOTAL // EPOCH):
            for number, (x, y) in enumerate(loader, start=epoch * EPOCH):
                if done <= number < until:
                    losses.append(fit(model, optimizer, x, y))
        method.save(folder, until, flat(model, optimizer))
        return losses

    return train


def flat(model: nn.Module, optimizer: torch.optim.Optimizer) -> State:
    """Return weights and moments by name."""
    state: State = {f"model.{name}": value.detach() for name, value in model.state_dict().items()}
    for i, p in enumerate(model.parameters()):
        kept = optimizer.state[p] or {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        kept.setdefault("step", torch.tensor(0.0))
        state |= {f"adam.{i}.{name}": value for name, value in kept.items()}
    return state


def unflat(state: State, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Restore weights and moments."""
    model.load_state_dict({name[6:]: value for name, value in state.items() if name.startswith("model.")})
    for i, p in enumerate(model.parameters()):
        optimizer.state[p] = {name: state[f"adam.{i}.{name}"].clone() for name in ("step", "exp_avg", "exp_avg_sq")}


def by_run(folder: Path, until: int, resumed: bool) -> list[float]:  # noqa: FBT001  fixed by the common signature
    """Use fieldwatch: ``Run`` saves the tracked objects and the random state."""
    torch.manual_seed(7 if resumed else 0)
    model = network()
    losses = list[float]()
    samples = data().tensors
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    order = Shuffled(64, 4)
    with Run(folder, saving=Saving(every=None), outputs=Outputs(sinks=(), rules=())) as run:
        run.track(model=model, optimizer=optimizer, order=order)
        run.resume()
        for _ in run.steps(until):
            batch = next(order)
            losses.append(fit(model, optimizer, samples[0][batch], samples[1][batch]))
    return losses


def by_lightning(folder: Path, until: int, resumed: bool) -> list[float]:  # noqa: FBT001  fixed by the common signature
    """Use ``Trainer.fit`` with ``ckpt_path``."""
    import lightning  # noqa: PLC0415  not installed in the project's environment

    losses = list[float]()

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = network()

        def training_step(self, batch: Any, _number: int) -> Tensor:
            loss = (self.model(batch[0]) - batch[1]).square().mean()
            losses.append(float(loss.detach()))
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=1e-2)

    lightning.seed_everything(0)
    off = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(accelerator="cpu", devices=1, max_steps=until, **off)
    path = str(folder / "stopped.ckpt")
    trainer.fit(Module(), DataLoader(data(), batch_size=4, shuffle=True), ckpt_path=path if resumed else None)
    trainer.save_checkpoint(path)
    return losses


def by_accelerate(folder: Path, until: int, resumed: bool) -> list[float]:  # noqa: FBT001  fixed by the common signature
    """Use ``save_state``/``load_state`` with the seedable sampler and ``skip_first_batches``."""
    from accelerate import Accelerator  # noqa: PLC0415  not installed in the project's environment
    from accelerate.utils import DataLoaderConfiguration, set_seed  # noqa: PLC0415  the same

    set_seed(0)
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    net = network()
    model, optimizer, loader = accelerator.prepare(
        net, torch.optim.Adam(net.parameters(), lr=1e-2), DataLoader(data(), batch_size=4, shuffle=True)
    )
    done, losses = (STOP, list[float]()) if resumed else (0, list[float]())
    if resumed:
        accelerator.load_state(str(folder / "state"))
    for epoch in range(done // EPOCH, TOTAL // EPOCH):
        loader.set_epoch(epoch)
        skipped = max(0, done - epoch * EPOCH)
        batches = accelerator.skip_first_batches(loader, skipped) if skipped else loader
        for number, (x, y) in enumerate(batches, start=epoch * EPOCH + skipped):
            if number < until:
                losses.append(fit(model, optimizer, x, y))
                if number + 1 == until:
                    accelerator.save_state(str(folder / "state"))
    return losses


def trainer_of(method: Method) -> Train:
    """Function that trains with one method."""
    named: dict[str, Train] = {"Lightning": by_lightning, "accelerate": by_accelerate}
    if isinstance(method, Ours):
        return by_run
    return named.get(method.name.split(",")[0], by_recipe(method))


def exactness(method: Method, folder: Path) -> str:
    """Return ``bit-equal``, the first step whose loss differs, with and without dropout, or the exception."""
    found = one_trial(method, folder / "dropout")
    if found == "bit-equal":
        return found
    DROPOUT[0] = 0.0
    try:
        return f"{found}; without dropout: {one_trial(method, folder / 'plain')}"
    finally:
        DROPOUT[0] = 0.2


def one_trial(method: Method, folder: Path) -> str:
    """Train without and with a stop, and compare the losses."""
    train = trainer_of(method)
    answers = list[Any]()
    for name, until, resumed in (("whole", TOTAL, False), ("parts", STOP, False), ("parts", TOTAL, True)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        random.seed(0)
        answers.append(answer(lambda place=folder / name, u=until, r=resumed: train(place, u, r)))
        if isinstance(answers[-1], dict):
            print(f"{method.name}: {answers[-1]['raised']}", file=sys.stderr)
            return f"raises {answers[-1]['raised'].split(':')[0]}"
    whole = answers[0]
    parts = [*answers[1], *answers[2]]
    if len(parts) != len(whole):
        return f"{len(parts)} steps instead of {len(whole)}"
    wrong = [i for i, (one, other) in enumerate(zip(whole, parts, strict=True)) if one != other]
    return f"differs from step {wrong[0]} on" if wrong else "bit-equal"
