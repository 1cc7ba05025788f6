"""No host read per step: counted on the CPU, where a read is one ``aten::_local_scalar_dense``; forbidden on CUDA."""

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from fieldwatch import Run, Terms

READ = "aten::_local_scalar_dense"
STEPS = 40


def loop(folder, device, *, optimizer_options, spoil=lambda _terms: None, warm_up=8):
    """Train, profiling the steps after the first few: those make optimizer state, which takes one read each."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, **optimizer_options)
    inputs = torch.randn(32, 8, device=device)
    profiler = profile(activities=[ProfilerActivity.CPU], acc_events=True)
    with Run(folder, detail_every=5) as run:
        run.watch(first=model[0], last=model[2])
        for step in run.steps(STEPS):
            if step.index == warm_up:
                profiler.start()
                if device.type == "cuda":
                    torch.cuda.set_sync_debug_mode("error")
            prediction = model(inputs)
            terms = Terms(fit=(1.0, prediction.square().mean()), size=(0.1, prediction.abs().mean()))
            spoil(terms)
            optimizer.zero_grad()
            step.attribute(terms, every=7)
            terms.total.backward()
            step.observe(terms, sample=["a", "b"], sample_loss=prediction[:2].square().mean(1))
            step.update(optimizer, clip=1.0)
            if step.index == STEPS - 1:
                torch.cuda.set_sync_debug_mode("default") if device.type == "cuda" else None
                profiler.stop()
    return sum(event.count for event in profiler.key_averages() if event.key == READ)


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {"foreach": False}], ids=str)
def test_a_steady_step_reads_nothing(tmp_path, options):
    assert loop(tmp_path / "run", torch.device("cpu"), optimizer_options=options) == 0


def test_negative_control_one_item_per_step_is_counted(tmp_path):
    reads = loop(
        tmp_path / "run",
        torch.device("cpu"),
        optimizer_options={"fused": True},
        spoil=lambda terms: terms.total.item(),
    )
    assert reads == STEPS - 8


def test_a_steady_step_never_synchronises_on_cuda(tmp_path, gpu):
    loop(tmp_path / "run", torch.device("cuda"), optimizer_options={"fused": True})
