"""What goes wrong on a GPU only is planted into a loop that is right; the pretended device refuses or counts each."""

import os
import signal

import pytest
import torch
from torch import nn

from fieldwatch import Interrupted, Outputs, Run, Saving, Terms

STEPS = 10

pytestmark = pytest.mark.pretended


class Loop:
    """A training on the device; a fault replaces one of its parts."""

    def __init__(self, **planted):
        torch.manual_seed(0)
        self.device = torch.device("cuda")
        self.model = nn.Linear(4, 2).to(self.device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), fused=True)
        self.inputs = torch.randn(16, 4).to(self.device)
        self.scale = torch.tensor([1.0, 2.0], device=self.device)
        self.chance = torch.Generator(self.device).manual_seed(3)
        self.seen = torch.zeros(2, device=self.device)
        self.planted = planted

    def noise(self):
        return torch.randn(16, 2, device=self.device, generator=self.chance)

    def batch(self):
        return self.inputs

    def objective(self):
        output = self.model(self.batch()) * self.scale + 0.01 * self.noise()
        return Terms(fit=(1.0, output.square().mean()))

    def state_dict(self):
        return {"seen": self.seen, "chance": self.chance.get_state()}

    def load_state_dict(self, state):
        self.seen = state["seen"].to(self.device)
        self.chance.set_state(state["chance"])

    def train(self, folder, ledger, stop=None):
        """Return the waits of a steady step, by cause."""
        counted = []
        for name, part in self.planted.items():
            setattr(self, name, part.__get__(self))
        with Run(folder, saving=Saving(every=100), outputs=Outputs(sinks=(), rules=(), detail_every=100)) as run:
            run.track(model=self.model, optimizer=self.optimizer, loop=self)
            run.resume()
            for step in run.steps(STEPS):
                before = ledger.copy()
                self.optimizer.zero_grad()
                terms = self.objective()
                terms.total.backward()
                step.observe(terms)
                step.update(self.optimizer)
                self.seen += torch.ones(2, device=self.device)
                counted.append(ledger.copy().since(before))
                if step.index == stop:
                    os.kill(os.getpid(), signal.SIGTERM)
        return {cause for cause, _ in counted[-1].waits}


def test_the_loop_without_a_fault_neither_fails_nor_waits_and_is_resumed(fake_cuda, tmp_path):
    assert Loop().train(tmp_path / "whole", fake_cuda.ledger) == set()
    with pytest.raises(Interrupted):
        Loop().train(tmp_path / "run", fake_cuda.ledger, stop=4)
    again = Loop()
    again.train(tmp_path / "run", fake_cuda.ledger)
    assert again.seen.tolist() == [STEPS, STEPS]


def missing_to(loop):
    return loop.inputs.cpu()


def constant_on_the_host(loop):
    return Terms(fit=(1.0, (loop.model(loop.inputs) * torch.tensor([1.0, 2.0])).square().mean()))


def generator_of_the_host(loop):
    return torch.randn(16, 2, device=loop.device, generator=torch.Generator())


def without_a_kernel(loop):
    output = loop.model(loop.inputs)
    edges, _ = torch.histogram(output.detach().flatten(), 4)
    return Terms(fit=(1.0, output.square().mean() + 0 * edges.sum()))


@pytest.mark.parametrize(
    "planted",
    [
        {"batch": missing_to},
        {"objective": constant_on_the_host},
        {"noise": generator_of_the_host},
        {"objective": without_a_kernel},
    ],
    ids=["missing .to", "constant on the host", "generator of the host", "operation without a kernel"],
)
def test_what_cuda_refuses_is_refused(fake_cuda, tmp_path, planted):
    with pytest.raises((RuntimeError, NotImplementedError)):
        Loop(**planted).train(tmp_path / "run", fake_cuda.ledger)


def test_state_restored_on_the_host_is_refused(fake_cuda, tmp_path):
    def restored_on_the_host(loop, state):
        loop.seen = state["seen"].cpu()

    with pytest.raises(Interrupted):
        Loop().train(tmp_path / "run", fake_cuda.ledger, stop=4)
    with pytest.raises(RuntimeError):
        Loop(load_state_dict=restored_on_the_host).train(tmp_path / "run", fake_cuda.ledger)


def read_back(loop):
    terms = Terms(fit=(1.0, loop.model(loop.inputs).square().mean()))
    terms.total.item()
    return terms


def masked(loop):
    output = loop.model(loop.inputs)
    return Terms(fit=(1.0, output[output.detach() > -9].square().mean()))


def uploaded_each_step(loop):
    return torch.zeros(16, 4).to(loop.device)


@pytest.mark.parametrize(
    ("planted", "cause"),
    [
        ({"objective": read_back}, "item()"),
        ({"objective": masked}, "index by a mask"),
        ({"batch": uploaded_each_step}, "copy to the device"),
    ],
    ids=["item in the step", "mask", "blocking copy"],
)
def test_what_cuda_waits_for_is_counted(fake_cuda, tmp_path, planted, cause):
    assert cause in Loop(**planted).train(tmp_path / "run", fake_cuda.ledger)
