import json
import math
import os
import signal

import numpy as np
import pytest
import torch
from torch import nn

from fieldwatch import (
    ConfigMismatch,
    Declared,
    Diverged,
    Guard,
    Interrupted,
    Outputs,
    Run,
    Saving,
    Shuffled,
    Terms,
    Window,
    read_history,
)
from fieldwatch.checkpoint import FolderInUseError
from fieldwatch.health import GENERAL, examine
from fieldwatch.record import TOOLKIT, Catalogue, Metric, WriterFailed, read_events, read_manifest
from fieldwatch.record.catalogue import UndeclaredMetric


class Toy:
    """A small regression with the complete state of a training loop."""

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.Linear(8, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2, fused=True)
        self.order = Shuffled(64, 8, seed=3)
        self.inputs = torch.randn(64, 3, generator=torch.Generator().manual_seed(5))
        self.targets = self.inputs.sum(1, keepdim=True)

    def parts(self):
        return {"model": self.model, "optimizer": self.optimizer, "order": self.order}

    def terms(self, chosen):
        prediction = self.model(self.inputs[chosen])
        return Terms(
            fit=(1.0, (prediction - self.targets[chosen]).square().mean()), size=(0.01, prediction.square().mean())
        )

    def weights(self):
        return torch.cat([p.detach().reshape(-1) for p in self.model.parameters()])


def train(folder, *, steps=100, spoil=(), stop=None, toy=None, **options):
    toy = toy or Toy()
    with Run(folder, **{"saving": Saving(every=20), "outputs": Outputs(rules=(), sinks=())} | options) as run:
        run.track(**toy.parts(), groups={"model": toy.model})
        run.resume()
        for step in run.steps(steps):
            terms = toy.terms(next(toy.order))
            if step.index in spoil:
                terms |= Terms(spoilt=(1.0, terms.total * math.nan))
            toy.optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms, sample=f"view {step.index % 7}")
            step.update(toy.optimizer)
            if stop is not None and step.index == stop:
                break
    return toy


def test_the_run_does_not_change_the_training(tmp_path):
    watched = train(tmp_path / "run")
    plain = Toy()
    for _ in range(100):
        loss = plain.terms(next(plain.order)).total
        plain.optimizer.zero_grad()
        loss.backward()
        plain.optimizer.step()
    assert torch.equal(watched.weights(), plain.weights())


def test_the_journal_holds_every_step_term_weight_and_norm(tmp_path):
    train(tmp_path / "run")
    history = read_history(tmp_path / "run")
    total, fit, size = (history[name].values for name in ("Loss/total", "Loss/component_fit", "Loss/component_size"))
    assert history["Loss/total"].steps.tolist() == list(range(100))
    np.testing.assert_allclose(total, fit + 0.01 * size, rtol=1e-6)
    np.testing.assert_allclose(history["Loss/weighted_size"].values, 0.01 * size, rtol=1e-6)
    np.testing.assert_allclose(history["Loss/share_fit"].values, fit / total, rtol=1e-6)
    assert len(history["Gradients/model_norm"]) == 100
    assert history["Parameters/model_std"].steps.tolist() == [0, 49, 99]
    assert history["LearningRate/0"].values[0] == 0.01


def test_a_continue_does_not_skip_the_end_of_a_step(tmp_path):
    with Run(tmp_path / "run", outputs=Outputs(sinks=(), rules=())) as run:
        for step in run.steps(10):
            step.record({"Loss/total": float(step.index)})
            if step.index % 2:
                continue
    assert len(read_history(tmp_path / "run")["Loss/total"]) == 10


@pytest.mark.parametrize("stop", [0, 19, 20, 57])
def test_an_interrupted_run_resumes_bit_for_bit(tmp_path, stop):
    whole = train(tmp_path / "whole")
    train(tmp_path / "parts", stop=stop)
    again = train(tmp_path / "parts", toy=Toy(seed=99))
    assert torch.equal(again.weights(), whole.weights())
    one = read_history(tmp_path / "whole")
    other = read_history(tmp_path / "parts")
    assert one["Loss/total"].values.tolist() == other["Loss/total"].values.tolist()
    assert other["Loss/total"].steps.tolist() == list(range(100))
    assert [segment["step"] for segment in read_manifest(tmp_path / "parts").segments] == [0, stop + 1]


@pytest.mark.parametrize("lost", ["model", "optimizer", "order", "random_state"])
def test_a_resume_needs_every_part_of_the_state(tmp_path, lost, monkeypatch):
    """Negative control: with any one part not restored, the resumed run differs."""
    whole = train(tmp_path / "whole")
    train(tmp_path / "parts", stop=57)
    toy = Toy(seed=99)
    if lost == "random_state":
        monkeypatch.setattr("fieldwatch.run.stored_random_state.StoredRandomState.apply", lambda _: None)
    else:
        monkeypatch.setattr(toy.parts()[lost], "load_state_dict", lambda *_, **__: None)
    assert not torch.equal(train(tmp_path / "parts", toy=toy).weights(), whole.weights())


def test_a_refused_step_is_reported_and_training_continues(tmp_path):
    toy = train(tmp_path / "run", spoil={30})
    assert torch.isfinite(toy.weights()).all()
    (event,) = [event for event in read_events(tmp_path / "run") if event["kind"] == "refusal"]
    assert (event["step"], event["terms"], event["samples"]) == (30, ["spoilt"], ["view 2"])
    history = read_history(tmp_path / "run")
    assert np.flatnonzero(history["Guard/refused"].values).tolist() == [30]


def test_endless_refusals_are_divergence_with_the_step_to_resume_from(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(Diverged, match=r"term spoilt.*step 40 with `fieldwatch resume") as caught:
        train(folder, steps=200, spoil=set(range(50, 200)), guard=Guard(max_refusals=5))
    assert caught.value.step == 50
    assert read_manifest(folder).state == "diverged"
    (crash,) = (folder / "crash").iterdir()
    report = json.loads((crash / "crash.json").read_text())
    assert report["first_bad"]["step"] == 50
    assert "Loss/component_spoilt" in report["first_bad"]["metrics"]
    assert torch.isfinite(train(folder, steps=200).weights()).all()


def test_an_exception_leaves_a_crash_folder_and_is_raised(tmp_path):
    with pytest.raises(ZeroDivisionError) as caught, Run(tmp_path / "run", outputs=Outputs(sinks=(), rules=())) as run:
        for step in run.steps(10):
            step.record({"Loss/total": 1.0})
            _ = 1 / (3 - step.index)
    assert "crash folder" in caught.value.__notes__[0]
    (crash,) = (tmp_path / "run" / "crash").iterdir()
    assert "ZeroDivisionError" in (crash / "traceback.txt").read_text()
    rows = [json.loads(line) for line in (crash / "rows.jsonl").read_text().splitlines()]
    assert next(row for row in rows if row["metric"] == "Loss/total")["steps"] == [0, 1, 2, 3]
    assert read_manifest(tmp_path / "run").state == "failed"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_finishes_the_step_saves_and_says_so(tmp_path, number, code):
    whole = train(tmp_path / "whole")
    folder = tmp_path / "run"
    toy = Toy()
    with pytest.raises(Interrupted) as caught, Run(folder, outputs=Outputs(sinks=(), rules=())) as run:
        run.track(**toy.parts())
        run.resume()
        for step in run.steps(100):
            terms = toy.terms(next(toy.order))
            toy.optimizer.zero_grad()
            terms.total.backward()
            if step.index == 33:
                os.kill(os.getpid(), number)
            step.observe(terms)
            step.update(toy.optimizer)
    assert caught.value.code == code
    assert read_manifest(folder).state == "interrupted"
    assert run.checkpoints.steps()[-1] == 34
    assert torch.equal(train(folder, toy=Toy(seed=99)).weights(), whole.weights())


def test_another_config_is_refused_with_the_differences_and_nothing_is_written(tmp_path):
    folder = tmp_path / "run"
    train(folder, config={"lr": 0.1, "model": {"width": 8}})
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with pytest.raises(ConfigMismatch, match=r"model.width: stored 8, given 16(.|\n)*fieldwatch resume"):
        train(folder, config={"lr": 0.1, "model": {"width": 16}})
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_resume_must_and_never_are_enforced(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no run.*`fieldwatch train`"):
        Run(tmp_path / "none", saving=Saving(resume="must"))
    train(tmp_path / "run", steps=2)
    with pytest.raises(FileExistsError, match="resume='auto'"):
        Run(tmp_path / "run", saving=Saving(resume="never"))
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError, match="is a file"):
        Run(tmp_path / "file")


def test_a_second_process_in_the_folder_is_refused(tmp_path):
    with (
        Run(tmp_path / "run", outputs=Outputs(sinks=())),
        pytest.raises(FolderInUseError),
        Run(tmp_path / "run", outputs=Outputs(sinks=())),
    ):
        pass


def test_an_undeclared_name_is_an_error_that_reaches_the_loop(tmp_path):
    metrics = Catalogue((Metric(name="Loss/total", unit="", meaning="what is minimised"),))
    with pytest.raises((UndeclaredMetric, WriterFailed), match="Los/total"):  # noqa: SIM117
        with Run(tmp_path / "run", declared=Declared(metrics=metrics), outputs=Outputs(sinks=(), rules=())) as run:
            for step in run.steps(100):
                step.record({"Los/total": 1.0})


def test_the_meaning_of_metrics_is_stored_in_the_run(tmp_path):
    own = Metric(name="Own/<part>_dB", unit="dB", meaning="what | I measure", better="higher")
    with Run(
        tmp_path / "run", declared=Declared(metrics=Catalogue((*TOOLKIT, own))), outputs=Outputs(sinks=(), rules=())
    ) as run:
        for step in run.steps(1):
            step.record({"Own/left_dB": 1.0})
    manifest = read_manifest(tmp_path / "run")
    assert manifest.metrics == (own,)
    assert manifest.catalogue().find("Own/left_dB") == own
    assert manifest.catalogue().find("Loss/total") == TOOLKIT.find("Loss/total")


def test_a_failing_sink_stops_the_run_with_an_error(tmp_path):
    def broken(_block):
        raise OSError("disk full")

    with (
        pytest.raises(WriterFailed, match="disk full"),
        Run(tmp_path / "run", outputs=Outputs(sinks=(broken,), rules=())) as run,
    ):
        for step in run.steps(1000):
            step.record({"Loss/total": 1.0})


def test_windows_and_other_axes_reach_the_history(tmp_path):
    windows = {"mask": Window(3, 5), "fit": Window(0)}
    with Run(tmp_path / "run", declared=Declared(windows=windows), outputs=Outputs(sinks=(), rules=())) as run:
        for step in run.steps(9):
            step.record({"Loss/total": torch.tensor(1.0)})
            if step.every(3):
                step.record(
                    {"Train/PSNR": torch.tensor(20.0 + step.index)}, axis="epoch", position=(step.index + 1) // 3
                )
    history = read_history(tmp_path / "run")
    assert history["Train/PSNR"].positions.tolist() == [1, 2, 3]
    assert history["Train/PSNR"].values.tolist() == [22.0, 25.0, 28.0]
    assert history.windows["mask"] == (3, 5)
    assert history.phase_start(4) == 3


def test_an_update_without_gradient_is_refused(tmp_path):
    toy = Toy()
    with (
        pytest.raises(ValueError, match=r"terms\.total\.backward\(\)"),
        Run(tmp_path, outputs=Outputs(sinks=())) as run,
    ):
        for step in run.steps(1):
            step.update(toy.optimizer)


def test_invalid_observations_are_refused(tmp_path):
    with Run(tmp_path / "run", outputs=Outputs(sinks=(), rules=())) as run:
        for step in run.steps(1):
            with pytest.raises(ValueError, match=r"metric 'a'.* got shape"):
                step.record({"a": torch.zeros(2)})
            terms = Terms(fit=(1.0, torch.tensor(1.0)))
            with pytest.raises(ValueError, match=r"sample_loss has shape \(3,\) for 2 samples"):
                step.observe(terms, sample=["a", "b"], sample_loss=torch.zeros(3))
            assert step.observe(terms).finite
            assert not step.observe(Terms(fit=(1.0, torch.tensor(math.nan)))).finite


def test_a_result_no_better_than_a_declared_guess_is_an_error(tmp_path):
    """The value without training reaches the rules of the live run, and those of a later examination."""
    metric = Metric(name="Eval/accuracy", unit="", meaning="Share of labels.", better="higher", trivial=0.1)
    declared = Declared(metrics=Catalogue((*TOOLKIT, metric)))
    for name, accuracy, findings in (("guess", 0.1, ["WorseThanNothing"]), ("good", 0.7, [])):
        with Run(tmp_path / name, declared=declared, outputs=Outputs(sinks=())) as run:
            run.track(model=nn.Linear(1, 1))
            for step in run.steps(8):
                if step.index == 7:
                    step.record({"Eval/accuracy": accuracy})
        assert [found.rule for found in run.findings] == findings
        assert [found.rule for found in examine(tmp_path / name, GENERAL)] == findings
        assert run.exit_code == len(findings)
    with pytest.raises(ValueError, match=r"expected better='higher' or better='lower', got better='none'"):
        Metric(name="Eval/accuracy", unit="", meaning="Share of labels.", trivial=0.1)
