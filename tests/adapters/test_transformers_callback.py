"""The callback for the Hugging Face Trainer, with the real one: same numbers, exact resume, faults told."""

import signal

import pytest
import torch
from torch import nn

from endings import interrupt, kill, same, signal_that_ended
from fieldwatch import InputError, Interrupted, read_history

transformers = pytest.importorskip("transformers", reason="needs the extra transformers")
accelerate = pytest.importorskip(
    "accelerate", reason="needs the extra transformers: pip install 'fieldwatch[transformers]'"
)
from transformers import Trainer, TrainerCallback, TrainingArguments  # noqa: E402  needs Transformers

from fieldwatch.adapters import TransformersCallback  # noqa: E402

POINTS = torch.rand(60, 2, generator=torch.Generator().manual_seed(0))
ROWS = [{"x": point, "labels": point.prod(dim=0, keepdim=True)} for point in POINTS]
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


class Model(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.1), nn.GELU(), nn.Linear(8, 1))
        self.act = act
        self.calls = 0

    def forward(self, x, labels=None):
        prediction = self.net(x)
        loss = (prediction - labels).square().mean()
        if self.training:
            loss = self.act(self, loss)
            self.calls += 1
        return {"loss": loss, "logits": prediction}


class WithTerms(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **_):
        output = model(**inputs)
        small = model.net[0].weight.square().mean()
        if model.training:
            self.log({"fit": output["loss"].item(), "small": small.item()})
        loss = output["loss"] + 0.1 * small
        return (loss, output) if return_outputs else loss


def at(call, act):
    """Return an action at one forward pass of the training."""
    return lambda model, loss: act(model, loss) if model.calls == call else loss


def fit(output, folder=None, act=lambda _, loss: loss, *, kind=Trainer, accumulate=1, resume=True, **options):
    """Train for 20 updates with the callback in a folder, or without it."""
    torch.manual_seed(0)
    model = Model(act)
    arguments = TrainingArguments(
        output_dir=str(output),
        max_steps=20,
        per_device_train_batch_size=6,
        gradient_accumulation_steps=accumulate,
        learning_rate=1e-2,
        logging_steps=1,
        save_steps=5,
        eval_strategy="steps",
        eval_steps=10,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=0,
    )
    watch = None if folder is None else TransformersCallback(folder, **options)
    callbacks: list[TrainerCallback] = [] if watch is None else [watch]
    trainer = kind(model, arguments, train_dataset=ROWS, eval_dataset=ROWS, callbacks=callbacks)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train(resume_from_checkpoint=watch.resume(output) if watch is not None and resume else None)
    return model, watch


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_numbers_are_the_same_and_a_signal_loses_nothing(tmp_path, accumulate):
    plain, _ = fit(tmp_path / "plain", accumulate=accumulate)
    watched, watch = fit(tmp_path / "output", tmp_path / "whole", accumulate=accumulate)
    assert same(watched, plain)
    assert [finding for finding in watch.run.findings if finding.severity != "note"] == []
    history = read_history(tmp_path / "whole")
    for name in ("Loss/total", "Gradients/model_norm", "LearningRate/0", "Logged/grad_norm"):
        assert len(history[name].values) == 20, name
    assert len(history["Validation/eval_loss"].values) == 2
    with pytest.raises(Interrupted):
        fit(tmp_path / "stopped", tmp_path / "run", at(12 * accumulate, interrupt), accumulate=accumulate)
    resumed, _ = fit(tmp_path / "stopped", tmp_path / "run", accumulate=accumulate)
    assert same(resumed, plain)
    assert (tmp_path / "stopped" / "checkpoint-13").is_dir()
    again = read_history(tmp_path / "run")
    assert again["Loss/component_loss"].values.tolist() == history["Loss/component_loss"].values.tolist()


def test_a_killed_process_resumes_exactly_from_the_last_complete_checkpoint(tmp_path):
    assert signal_that_ended(lambda: fit(tmp_path / "output", tmp_path / "run", at(17, kill))) == signal.SIGKILL
    # As if the process had been killed while it wrote the last one: its end is missing.
    last = tmp_path / "output" / "checkpoint-15" / "optimizer.pt"
    last.write_bytes(last.read_bytes()[:-10])
    assert TransformersCallback.resume(tmp_path / "output") == str(tmp_path / "output" / "checkpoint-10")
    resumed, watch = fit(tmp_path / "output", tmp_path / "run")
    assert same(resumed, fit(tmp_path / "plain")[0])
    assert watch.run.step_index == 19
    assert len(read_history(tmp_path / "run")["Loss/total"].values) == 20


def test_a_checkpoint_without_its_marker_is_incomplete(tmp_path):
    (tmp_path / "checkpoint-5").mkdir()
    assert TransformersCallback.resume(tmp_path) is None
    (tmp_path / "checkpoint-5" / "fieldwatch.json").write_text("{")
    assert TransformersCallback.resume(tmp_path) is None


def test_terms_are_recorded_and_nan_is_refused_and_told(tmp_path):
    model, watch = fit(
        tmp_path / "output", tmp_path / "run", at(7, lambda _, loss: loss * torch.nan), kind=WithTerms,
        terms={"fit": 1.0, "small": 0.1},
    )  # fmt: skip
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())
    history = read_history(tmp_path / "run")
    assert [event["step"] for event in history.events("refusal")] == [7]
    assert len(history["Loss/component_small"].values) == 20
    (finding,) = (finding for finding in watch.run.findings if finding.rule == "NonFinite")
    assert (finding.step, finding.subject) == (7, "fit")


def test_a_folder_with_a_training_is_not_started_over(tmp_path):
    fit(tmp_path / "output", tmp_path / "run")
    before = signal.getsignal(signal.SIGTERM)
    files = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match="resume_from_checkpoint"):
        fit(tmp_path / "output", tmp_path / "run", resume=False)
    assert signal.getsignal(signal.SIGTERM) is before
    assert sorted(tmp_path.rglob("*")) == files


def test_the_trainer_decides_when_to_save(tmp_path):
    with pytest.raises(InputError, match="saving"):
        TransformersCallback(tmp_path, saving=None)


def refused_on_this_rank(folder):
    """Make the callback as on one process; the launcher passes on what is raised on any rank."""
    # Else this process would believe what an earlier test has set.
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    assert TrainingArguments(output_dir=str(folder / "output"), use_cpu=True).world_size == 2
    with pytest.raises(InputError, match="got 2"):
        TransformersCallback(folder)


def test_several_processes_are_refused_on_every_rank(tmp_path):
    accelerate.debug_launcher(refused_on_this_rank, (tmp_path / "run",), num_processes=2)
    assert not (tmp_path / "run").exists()
