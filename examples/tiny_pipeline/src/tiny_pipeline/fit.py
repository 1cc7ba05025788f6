"""Fit a small network that maps coordinates to gray values."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

import fieldwatch as fw
from fieldwatch.pipeline import EvaluationRequest, Job, Outcome, RunChoices, Scores, run_options


@dataclass(frozen=True, kw_only=True)
class Config:
    steps: int = 300
    """Number of training steps."""
    size: int = 32
    """Height and width of the image in pixels."""
    rate: float = 0.01
    """Learning rate."""


def picture(config: Config) -> tuple[Tensor, Tensor]:
    axis = torch.linspace(-1, 1, config.size)
    places = torch.cartesian_prod(axis, axis)
    return places, 0.5 + 0.5 * torch.cos(6 * places.norm(dim=1, keepdim=True))


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))


def psnr(model: nn.Module, places: Tensor, values: Tensor) -> float:
    with torch.no_grad():
        return -10 * (model(places) - values).square().mean().log10().item()


def prepare(config: Config) -> Job:
    return Job(headline=f"{config.size}x{config.size} pixels", total=config.steps, train=partial(train, config))


def train(config: Config, folder: Path, choices: RunChoices) -> Outcome:
    places, values = picture(config)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=config.rate)

    def objective(batch: tuple[Tensor, Tensor]) -> fw.Terms:
        return fw.Terms(color=(1.0, (model(batch[0]) - batch[1]).square().mean()))

    with fw.Run(folder, config=config, **run_options(choices, declared=fw.Declared(about={"pipeline": "tiny"}))) as run:
        run.track(model=model, optimizer=optimizer)
        run.resume()
        for step in run.steps(config.steps):
            step.backward(objective, (places, values))
            step.update(optimizer)
            if step.every(100):
                with run.evaluation("psnr"):
                    step.record({"Eval/psnr": psnr(model, places, values)})
    return Outcome.of(run, Scores(step=config.steps, metrics={"Eval/psnr": psnr(model, places, values)}))


def evaluate(request: EvaluationRequest) -> Scores:
    store = fw.Checkpoints(request.run / "checkpoints")
    model = network()
    step = store.find(request.checkpoint).step
    model.load_state_dict(store.read(step)["model"])
    return Scores(step=step, metrics={"Eval/psnr": psnr(model, *picture(request.config))})
