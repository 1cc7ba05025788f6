"""No host read per step: counted on the CPU, as ``aten._local_scalar_dense`` or ``tolist()``; forbidden on CUDA."""

import threading

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fieldwatch import Outputs, Run, Terms
from fieldwatch.measure.ring import HostRows

STEPS = 40
STEADY = 8
CPU = torch.device("cpu")


class Reads(TorchDispatchMode):
    """Counts the reads of a value by the host while it is entered."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __enter__(self):
        plain = torch.Tensor.tolist
        loop = threading.get_ident()

        def counted(tensor):
            self.count += threading.get_ident() == loop  # the writer thread has nobody waiting for it
            return plain(tensor)

        torch.Tensor.tolist = counted  # reads the memory of a tensor on the CPU without an operation
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        del torch.Tensor.tolist  # what is left is inherited

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


class Loop:
    """A small training loop, watched or bare, whose reads are counted over its steady steps."""

    def __init__(self, device, options, extra):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, **options)
        self.inputs = torch.randn(32, 8, device=device)
        self.extra = extra
        self.counter = Reads()

    def begin(self, index):
        if index == STEADY:  # the first step makes the optimizer's state, which takes one read
            self.counter.__enter__()

    def forward(self):
        self.optimizer.zero_grad()
        prediction = self.model(self.inputs)
        terms = Terms(fit=(1.0, prediction.square().mean()), size=(0.1, prediction.abs().mean()))
        self.extra(terms)
        return prediction, terms

    def end(self, index):
        if index == STEPS - 1:
            self.counter.__exit__(None, None, None)


def bare(device, options, extra=lambda _: None):
    loop = Loop(device, options, extra)
    for index in range(STEPS):
        loop.begin(index)
        _, terms = loop.forward()
        terms.total.backward()
        loop.optimizer.step()
        loop.end(index)
    return loop.counter.count


def watched(folder, device, options, extra=lambda _: None):
    loop = Loop(device, options, extra)
    with Run(folder, outputs=Outputs(detail_every=5)) as run:
        run.track(groups={"first": loop.model[0], "last": loop.model[2]})
        for step in run.steps(STEPS):
            loop.begin(step.index)
            prediction, terms = loop.forward()
            step.attribute(terms, every=7)
            terms.total.backward()
            step.observe(terms, sample=["a", "b"], sample_loss=prediction[:2].square().mean(1))
            step.update(loop.optimizer, clip=1.0)
            loop.end(step.index)
    return loop.counter.count


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Let the guard and the record take the ways of a GPU, where reading a value would make the host wait."""
    monkeypatch.setattr("fieldwatch.guard.update.reading_is_free", lambda _: False)
    monkeypatch.setattr("fieldwatch.guard.verdict.reading_is_free", lambda _: False)
    monkeypatch.setattr("fieldwatch.measure.step_recorder.is_on_host", lambda _: False)


@pytest.fixture
def recorded(monkeypatch):
    """Return the numbers of values of the rows that are recorded on the host, by step."""
    counts = {}
    write = HostRows.write

    def counted(self, heading, device_values, host_values):
        counts[heading.step] = len(device_values)
        write(self, heading, device_values, host_values)

    monkeypatch.setattr(HostRows, "write", counted)
    return counts


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {"foreach": False}], ids=str)
def test_a_steady_step_reads_nothing_that_the_bare_loop_does_not(tmp_path, options):
    """On the CPU the optimizers of torch read their own step counters; the bare loop shows how often."""
    assert watched(tmp_path / "run", CPU, options) == bare(CPU, options)


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {"foreach": False}], ids=str)
def test_on_a_cpu_a_steady_step_reads_three_values_for_the_guard_and_each_recorded_value_once(
    tmp_path, options, recorded
):
    """The guard reads the loss, the norm of the gradients, and its own flag."""
    found = watched(tmp_path / "run", CPU, options)
    # The row of the last step is written after the loop's body, so it is not counted.
    rows = sum(recorded[step] for step in range(STEADY, STEPS - 1))
    assert found == bare(CPU, options) + 3 * (STEPS - STEADY) + rows


@pytest.mark.usefixtures("as_on_a_gpu")
def test_negative_control_one_item_per_step_is_counted(tmp_path):
    options = {"fused": True}
    reads = watched(tmp_path / "run", CPU, options, extra=lambda terms: terms.total.item())
    assert reads == bare(CPU, options) + STEPS - STEADY


def test_a_steady_step_never_synchronizes_on_cuda(tmp_path, gpu):
    loop = Loop(torch.device("cuda"), {"fused": True}, lambda _: None)
    with Run(tmp_path / "run", outputs=Outputs(detail_every=5)) as run:
        run.track(groups={"first": loop.model[0], "last": loop.model[2]})
        for step in run.steps(STEPS):
            torch.cuda.set_sync_debug_mode("error" if step.index >= STEADY else "default")
            prediction, terms = loop.forward()
            step.attribute(terms, every=7)
            terms.total.backward()
            step.observe(terms, sample=["a", "b"], sample_loss=prediction[:2].square().mean(1))
            step.update(loop.optimizer, clip=1.0)
        torch.cuda.set_sync_debug_mode("default")
