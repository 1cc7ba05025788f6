"""What the adapters add to a step of Lightning, of Hugging Face's Trainer and of Accelerate, beside their own loggers.

Each framework trains the same small network bare, with its own logger at every step, and with fieldwatch's adapter at
every step. The processor time of the process counts, that of its threads included. The three take turns in one process
and change their order. What a kind adds is the median of its differences from the bare training of the same round; the
range of these differences stands beside it.

    python benchmarks/adapters.py                     # the table, about five minutes
    python benchmarks/adapters.py --steps 100 --repeat 1 --only accelerate
"""

import argparse
import gc
import logging
import os
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from fieldwatch import ResumableLoader, Saving

WIDTH = 64
BATCH = 32
KINDS = ("bare", "own logger", "fieldwatch")
Training = Callable[[str, int, Path], None]


def network() -> nn.Sequential:
    """Return a network of 12 parameter tensors."""
    layers = [layer for _ in range(5) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 1))


def data() -> TensorDataset:
    """Return 64 batches of random inputs and targets."""
    inputs = torch.rand(BATCH * 64, WIDTH)
    return TensorDataset(inputs, inputs.mean(dim=1, keepdim=True))


def lightning(kind: str, steps: int, folder: Path) -> None:
    """Train with Lightning; its logger writes CSV."""
    import lightning.pytorch as pl  # noqa: PLC0415  an extra
    from lightning.pytorch.loggers import CSVLogger  # noqa: PLC0415

    from fieldwatch.adapters import LightningCallback  # noqa: PLC0415

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def training_step(self, batch: list[Tensor], _: int) -> Tensor:
            loss = (self.network(batch[0]) - batch[1]).square().mean()
            self.log("fit", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    watch = LightningCallback(folder, terms={"fit": 1.0}, saving=Saving(every=None)) if kind == KINDS[2] else None
    trainer = pl.Trainer(
        max_steps=steps,
        accelerator="cpu",
        logger=CSVLogger(folder) if kind == KINDS[1] else False,
        log_every_n_steps=1,
        callbacks=[] if watch is None else [watch],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), ResumableLoader(data(), BATCH), ckpt_path=None if watch is None else watch.resume(trainer))


def transformers(kind: str, steps: int, folder: Path) -> None:
    """Train with the Hugging Face Trainer; its logger writes TensorBoard files."""
    from transformers import PrinterCallback, Trainer, TrainingArguments  # noqa: PLC0415  an extra

    from fieldwatch.adapters import TransformersCallback  # noqa: PLC0415

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            prediction = self.network(x)
            return {"loss": (prediction - labels).square().mean(), "logits": prediction}

    arguments = TrainingArguments(
        output_dir=str(folder / "output"),
        max_steps=steps,
        per_device_train_batch_size=BATCH,
        logging_steps=steps if kind == KINDS[0] else 1,
        save_strategy="no",
        report_to=["tensorboard"] if kind == KINDS[1] else [],
        disable_tqdm=True,
        use_cpu=True,
    )
    watch = TransformersCallback(folder / "run") if kind == KINDS[2] else None
    rows = [{"x": x, "labels": y} for x, y in data()]
    trainer = Trainer(Model(), arguments, train_dataset=rows, callbacks=[] if watch is None else [watch])
    trainer.remove_callback(PrinterCallback)
    trainer.train()


def accelerate(kind: str, steps: int, folder: Path) -> None:
    """Train with Accelerate; its logger writes TensorBoard files."""
    from accelerate import Accelerator  # noqa: PLC0415  an extra

    from fieldwatch.adapters import AccelerateTracker  # noqa: PLC0415

    watch = AccelerateTracker(folder, terms={"fit": 1.0}, saving=Saving(every=None)) if kind == KINDS[2] else None
    log_with: Any = {KINDS[0]: None, KINDS[1]: "tensorboard", KINDS[2]: watch}[kind]
    accelerator = Accelerator(cpu=True, log_with=log_with, project_dir=folder)
    model: Any = network()
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = ResumableLoader(data(), BATCH)
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.register_for_checkpointing(loader)
    if log_with is not None:
        accelerator.init_trackers("adapters")
    if watch is not None:
        watch.resume(accelerator, optimizer, loader, model=model)
    done = 0
    while done < steps:
        for inputs, targets in loader:
            loss = (model(inputs) - targets).square().mean()
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            accelerator.log({"fit": loss if watch is not None else loss.item()}, step=done)
            done += 1
            if done == steps:
                break
    accelerator.end_training()


TRAININGS: dict[str, Training] = {"lightning": lightning, "transformers": transformers, "accelerate": accelerate}


def microseconds(training: Training, kind: str, steps: int) -> float:
    """Return the processor time of one step, without that of the start and the end, which a short training shows."""

    def spent(count: int) -> float:
        gc.collect()
        with tempfile.TemporaryDirectory() as folder:
            before = time.process_time()
            training(kind, count, Path(folder))
            return time.process_time() - before

    few = steps // 5
    return (spent(steps) - spent(few)) / (steps - few) * 1e6


def added(rounds: list[dict[str, float]], kind: str) -> str:
    """Return the median and the range of what a kind adds to the bare training of its round."""
    extra = [found[kind] - found[KINDS[0]] for found in rounds]
    return f"{statistics.median(extra):.0f} ({min(extra):.0f} to {max(extra):.0f})"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000, help="steps of the longer training of each pair")
    parser.add_argument("--repeat", type=int, default=5, help="rounds")
    parser.add_argument("--only", nargs="+", choices=TRAININGS, default=list(TRAININGS), help="frameworks")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print("| microseconds of processor time per step | bare | own logger adds | fieldwatch adds |")
    print("|---|---:|---:|---:|")
    for name in chosen.only:
        for kind in KINDS:
            microseconds(TRAININGS[name], kind, 50)  # imports
        rounds = [
            {
                kind: microseconds(TRAININGS[name], kind, chosen.steps)
                for kind in (*KINDS[turn % 3 :], *KINDS[: turn % 3])
            }
            for turn in range(chosen.repeat)
        ]
        bare = statistics.median(found[KINDS[0]] for found in rounds)
        own, ours = (added(rounds, kind) for kind in KINDS[1:])
        print(f"| {name} {version(name)} | {bare:.0f} | {own} | {ours} |", flush=True)
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    print(f"\ntorch {torch.__version__}, Python {platform.python_version()}, one thread, {chosen.repeat} rounds of")
    print(f"{chosen.steps} steps; load averages at the end: {load}")


if __name__ == "__main__":
    main()
