"""A run whose losses single out some samples, for what pipelines show of samples that rules suspect."""

import io
from dataclasses import dataclass, field

import pytest
import torch
from PIL import Image

from fieldwatch import Outputs, Run, Terms


@dataclass
class Pictures:
    """A sink that decodes its images."""

    images: dict = field(default_factory=dict)

    def __call__(self, block):
        pass

    def image(self, name, step, png, width, height):  # noqa: ARG002  the signature of a sink
        self.images[name] = (step, Image.open(io.BytesIO(png)))


def _run_with_losses(folder, names, wrong, ask, visits=8):
    """Train so that the loss of some samples is ten times that of the others, then call `ask` inside of the run."""
    sink = Pictures()
    weight = torch.nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([weight], lr=1e-4)
    with Run(folder, outputs=Outputs(sinks=[sink])) as run:
        run.track(groups={"weights": {"a": weight}})
        for step in run.steps(visits * len(names)):
            name = names[step.index % len(names)]
            terms = Terms(rendering=(10.0 if name in wrong else 1.0, weight.square()))
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms, sample=name)
            step.update(optimizer)
        return ask(run), sink.images


@pytest.fixture
def run_with_losses():
    """Return the function that trains such a run; it returns what was asked and the pictures by tag."""
    return _run_with_losses
