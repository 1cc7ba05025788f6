"""The callback for Lightning, with the real Trainer: same numbers, exact resume, faults told."""

import re
import signal
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from endings import interrupt, kill, same, signal_that_ended
from fieldwatch import InputError, Interrupted, ResumableLoader, Saving, read_history

pl = pytest.importorskip("lightning.pytorch", reason="needs the extra lightning: pip install 'fieldwatch[lightning]'")
from fieldwatch.adapters import LightningCallback  # noqa: E402  needs Lightning

POINTS = torch.rand(64, 2, generator=torch.Generator().manual_seed(0))
DATA = TensorDataset(POINTS, POINTS.prod(dim=1, keepdim=True))
PAGE = (Path(__file__).parents[2] / "docs" / "adapters.md").read_text()
BLOCKS = dict(re.findall(r"^<!-- adapter: (\w+) -->\n```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
TERMS = {"fit": 1.0, "small": 0.1}
# Lightning's advice about speed, and about callbacks and loaders that it does not know.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")


class Module(pl.LightningModule):
    def __init__(self, act=None):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.1), nn.GELU(), nn.Linear(8, 1))
        self.act = act or (lambda _, loss: loss)

    def training_step(self, batch, _):
        x, y = batch
        fit = self.act(self, (self.net(x) - y).square().mean())
        small = self.net[0].weight.square().mean()
        self.log("fit", fit)
        self.log("small", small)
        self.log("spread", x.std())
        return fit + 0.1 * small

    def validation_step(self, batch, _):
        x, y = batch
        self.log("val_error", (self.net(x) - y).abs().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 24)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def at(step, act):
    """Return an action at one step of the training."""
    return lambda module, loss: act(module, loss) if module.global_step == step else loss


def fit(folder=None, act=None, *, accumulate=1, epochs=3, loader=None, resume=True, **options):
    """Train with the callback in a folder, or without it."""
    torch.manual_seed(0)
    module = Module(act)
    watch = None if folder is None else LightningCallback(folder, terms=TERMS, **options)
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accumulate_grad_batches=accumulate,
        gradient_clip_val=1.0,
        callbacks=[] if watch is None else [watch],
    )
    loader = loader or ResumableLoader(DATA, 8, seed=0)
    path = watch.resume(trainer) if watch is not None and resume else None
    trainer.fit(module, loader, DataLoader(DATA, 64), ckpt_path=path)
    return module, watch


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_numbers_are_the_same_and_a_signal_loses_nothing(tmp_path, accumulate):
    plain, _ = fit(accumulate=accumulate)
    watched, watch = fit(tmp_path / "whole", accumulate=accumulate)
    assert same(watched, plain)
    assert [finding for finding in watch.run.findings if finding.severity != "note"] == []
    history = read_history(tmp_path / "whole")
    steps = 24 // accumulate
    assert watch.run.step_index == steps - 1
    for name in (
        "Loss/total",
        "Loss/component_fit",
        "Loss/share_small",
        "Gradients/model_norm",
        "LearningRate/0",
        "Logged/spread",
    ):
        assert len(history[name].values) == steps, name
    assert len(history["Validation/val_error"].values) == 3
    assert "Logged/val_error" not in history
    assert not history.events("not_kept")
    # In the second epoch, in the last batch of a step.
    calls = []

    def act(module, loss):
        calls.append(1)
        return interrupt(module, loss) if len(calls) == 12 else loss

    with pytest.raises(Interrupted):
        fit(tmp_path / "stopped", act, accumulate=accumulate)
    resumed, _ = fit(tmp_path / "stopped", accumulate=accumulate)
    assert same(resumed, plain)
    again = read_history(tmp_path / "stopped")
    assert again["Loss/total"].values.tolist() == history["Loss/total"].values.tolist()


def test_a_killed_process_resumes_exactly(tmp_path):
    """Killed at the 21st step, with a checkpoint of every fifth."""
    assert signal_that_ended(lambda: fit(tmp_path, at(20, kill), saving=Saving(every=5))) == signal.SIGKILL
    resumed, watch = fit(tmp_path)
    assert same(resumed, fit()[0])
    assert watch.run.step_index == 23


def test_nan_is_refused_and_told(tmp_path):
    module, watch = fit(tmp_path, at(7, lambda _, loss: loss * torch.nan))
    assert all(bool(torch.isfinite(p).all()) for p in module.parameters())
    history = read_history(tmp_path)
    # Lightning counts the refused update as one.
    assert [event["step"] for event in history.events("refusal")] == [7]
    (finding,) = (finding for finding in watch.run.findings if finding.rule == "NonFinite")
    assert (finding.step, finding.subject) == (7, "fit")


def test_without_the_guard_nan_is_only_told(tmp_path):
    module, watch = fit(tmp_path, at(20, lambda _, loss: loss * torch.nan), refuse=False)
    assert not all(bool(torch.isfinite(p).all()) for p in module.parameters())
    assert "NonFinite" in {finding.rule for finding in watch.run.findings}


def test_a_frozen_layer_is_told(tmp_path):
    def freeze(module, loss):
        module.net[0].requires_grad_(False)
        return loss

    _, watch = fit(tmp_path, at(4, freeze), epochs=5)
    assert "FrozenDuringTraining" in {finding.rule for finding in watch.run.findings}


def test_a_loader_without_a_position_is_told(tmp_path, capsys):
    fit(tmp_path, loader=DataLoader(DATA, 8, shuffle=True), epochs=1)
    assert "ResumableLoader" in capsys.readouterr().err


def test_a_folder_with_a_training_is_not_started_over(tmp_path):
    fit(tmp_path, epochs=1)
    with pytest.raises(InputError, match="ckpt_path"):
        fit(tmp_path, epochs=1, resume=False)


def test_a_term_that_is_not_logged_is_named(tmp_path):
    watch = LightningCallback(tmp_path, terms={"fit": 1.0, "smal": 0.1})
    trainer = pl.Trainer(
        max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[watch],
    )  # fmt: skip
    with pytest.raises(InputError, match="'smal'"):
        trainer.fit(Module(), ResumableLoader(DATA, 8))


def test_the_skips_of_a_scaler_are_no_faults(tmp_path):
    from lightning.pytorch.plugins.precision import MixedPrecision  # noqa: PLC0415

    def trained(watch):
        torch.manual_seed(0)
        module = Module()
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
        trainer = pl.Trainer(
            max_epochs=4, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, plugins=[MixedPrecision("16-mixed", "cpu", scaler)], callbacks=watch,
        )  # fmt: skip
        trainer.fit(module, ResumableLoader(DATA, 8, seed=0))
        return module

    watch = LightningCallback(tmp_path)
    assert same(trained([watch]), trained([]))
    history = read_history(tmp_path)
    assert history["Guard/scaler_skipped"].values.sum() > 3
    assert not history.events("refusal")
    assert not {"NonFinite", "RefusedUpdates"} & {finding.rule for finding in watch.run.findings}


def test_several_processes_are_refused_before_they_start(tmp_path):
    watch = LightningCallback(tmp_path / "run")
    trainer = pl.Trainer(
        devices=2, accelerator="cpu", strategy="ddp", logger=False, enable_checkpointing=False, callbacks=[watch]
    )
    with pytest.raises(InputError, match="got 2"):
        watch.resume(trainer)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("block", BLOCKS)
def test_the_loops_of_the_page_run(tmp_path, monkeypatch, block):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = {}
    exec(compile(BLOCKS[block], "adapters.md", "exec"), names)  # noqa: S102  the page's own code
    run = names["run"] if "run" in names else names["watch"].run
    assert run.step_index >= 31
    # What is found depends on the random points; nothing of it is a fault of the adapter.
    assert "error" not in {finding.severity for finding in run.findings}
