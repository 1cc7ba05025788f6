"""The tracker for Accelerate, with the real Accelerator: same numbers, exact resume, faults told."""

import os
import signal

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from endings import kill, same, signal_that_ended
from fieldwatch import ConfigMismatch, InputError, Interrupted, ResumableLoader, Saving, read_history

accelerate = pytest.importorskip(
    "accelerate", reason="needs the extra accelerate: pip install 'fieldwatch[accelerate]'"
)
from fieldwatch.adapters import AccelerateTracker  # noqa: E402  needs Accelerate

POINTS = torch.rand(64, 2, generator=torch.Generator().manual_seed(0))
DATA = TensorDataset(POINTS, POINTS.prod(dim=1, keepdim=True))
TERMS = {"fit": 1.0, "small": 0.1}
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


def fit(folder=None, act=lambda *_: None, *, accumulate=1, config=None, **options):
    """Train three epochs of eight batches with the tracker in a folder, or without it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.1), nn.GELU(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
    loader = ResumableLoader(DATA, 8, seed=0)
    watch = None if folder is None else AccelerateTracker(folder, terms=TERMS, **options)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=accumulate, log_with=watch)
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    accelerator.register_for_checkpointing(loader)
    if watch is not None:
        accelerator.init_trackers("test", config)
        watch.resume(accelerator, optimizer, schedule, loader, model=model)
    for epoch in range(loader.epoch, 3):
        for number, (x, y) in enumerate(loader, start=len(loader) * epoch):
            with accelerator.accumulate(model):
                fit = (model(x) - y).square().mean()
                fit = fit * (act(number, model) or 1.0)
                small = model[0].weight.square().mean()
                accelerator.backward(fit + 0.1 * small)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                accelerator.log({"fit": fit, "small": small, "batch": float(number)})
    accelerator.end_training()
    return model, watch


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_numbers_are_the_same_and_a_signal_loses_nothing(tmp_path, accumulate):
    plain, _ = fit(accumulate=accumulate)
    watched, watch = fit(tmp_path / "whole", accumulate=accumulate)
    assert same(watched, plain)
    assert [finding for finding in watch.tracker.findings if finding.severity != "note"] == []
    history = read_history(tmp_path / "whole")
    steps = 24 // accumulate
    for name in ("Loss/total", "Loss/share_small", "Gradients/model_norm", "LearningRate/0", "Logged/batch"):
        assert len(history[name].values) == steps, name
    assert not history.events("not_kept")

    def interrupt(number, _):
        if number == 11:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        fit(tmp_path / "stopped", interrupt, accumulate=accumulate)
    resumed, _ = fit(tmp_path / "stopped", accumulate=accumulate)
    assert same(resumed, plain)
    again = read_history(tmp_path / "stopped")
    assert again["Loss/total"].values.tolist() == history["Loss/total"].values.tolist()


def test_a_killed_process_resumes_exactly(tmp_path):
    assert (
        signal_that_ended(lambda: fit(tmp_path, lambda number, _: number == 20 and kill(), saving=Saving(every=5)))
        == signal.SIGKILL
    )
    resumed, watch = fit(tmp_path)
    assert same(resumed, fit()[0])
    assert watch.tracker.step_index == 23


def test_faults_are_told(tmp_path):
    def spoil(number, model):
        if number == 4:
            model[3].requires_grad_(False)
        return torch.nan if number == 9 else None

    model, watch = fit(tmp_path, spoil)
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())
    assert [event["step"] for event in read_history(tmp_path).events("refusal")] == [9]
    assert {"NonFinite", "FrozenDuringTraining"} <= {finding.rule for finding in watch.tracker.findings}


def test_a_run_is_continued_with_its_config(tmp_path):
    fit(tmp_path, config={"rate": 0.1})
    with pytest.raises(ConfigMismatch):
        fit(tmp_path, config={"rate": 0.2})


def test_a_tracker_that_was_not_started_says_how(tmp_path):
    accelerator = accelerate.Accelerator(cpu=True, log_with=AccelerateTracker(tmp_path))
    accelerator.init_trackers("test")
    with pytest.raises(InputError, match="resume"):
        accelerator.log({"loss": 1.0})


def refused_on_this_rank(folder):
    """Prepare as on one process; the launcher passes on what is raised on any rank."""
    # Else this process would believe what an earlier test has set.
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(cpu=True)
    assert accelerator.num_processes == 2
    model = accelerator.prepare(nn.Linear(2, 1))
    with pytest.raises(InputError, match="got 2"):
        AccelerateTracker(folder).resume(accelerator, model=model)


def test_several_processes_are_refused_on_every_rank(tmp_path):
    accelerate.debug_launcher(refused_on_this_rank, (tmp_path / "run",), num_processes=2)
    assert not (tmp_path / "run").exists()
