"""What the source around a loop tells: the lines that findings name, loaders without a batch, clipping too early."""

import ast
import json
import textwrap

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fieldwatch import Outputs, Run, Terms, examine
from fieldwatch.health import GENERAL
from fieldwatch.run import loop_facts, loop_source, memory

QUIET = Outputs(sinks=())


def events(folder, kind):
    lines = (folder / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event.get("kind") == kind]


def rows(count, size, *, drop_last=True):
    return DataLoader(TensorDataset(torch.ones(count, 2), torch.ones(count, 1)), batch_size=size, drop_last=drop_last)


def train(folder, loader, *, evaluate=False, outputs=QUIET):
    net = nn.Linear(2, 1)
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    with Run(folder, outputs=outputs) as run:
        run.track(net=net, sgd=sgd)
        run.resume()
        for inputs, targets in loader:
            step = run.begin_step()
            loss = nn.functional.mse_loss(net(inputs), targets)
            sgd.zero_grad()
            loss.backward()
            step.observe(Terms(fit=(1.0, loss)))
            step.update(sgd)
            run.end_step()
        if evaluate:
            run.record({"eval/error": 1.0})


def test_the_lines_of_a_loop_are_recorded_once(tmp_path):
    train(tmp_path, rows(16, 8))
    (event,) = events(tmp_path, "loop_source")
    assert event["file"].endswith("test_loop_source.py")
    texts = {kind: [text for _, text in found] for kind, found in event["lines"].items()}
    assert texts["backward"] == ["loss.backward()"]
    assert texts["optimizer"] == ["sgd = torch.optim.SGD(net.parameters(), lr=0.1)"]
    assert texts["item:net"] == ["net = nn.Linear(2, 1)"]
    assert event["loaders"][0]["batches"] == 2
    train(tmp_path, rows(16, 8))
    assert len(events(tmp_path, "loop_source")) == 1


def test_code_that_is_not_kept_is_not_quoted(tmp_path):
    train(tmp_path, rows(16, 8), outputs=Outputs(sinks=(), keep_code=False))
    assert events(tmp_path, "loop_source") == []


def test_a_loader_that_drops_its_only_batch_is_told(tmp_path, capsys):
    train(tmp_path, rows(5, 8))
    (finding,) = examine(tmp_path, GENERAL)
    assert (finding.rule, finding.severity) == ("NoSteps", "error")
    assert "5 samples, batch_size=8" in finding.message
    assert "test_loop_source.py:" in finding.remedy
    assert "'loader' has no batch" in capsys.readouterr().err
    # The next, sound training in the same folder is judged by its own steps.
    train(tmp_path, rows(5, 8, drop_last=False))
    assert [each.rule for each in examine(tmp_path, GENERAL)] == []


def test_an_empty_source_is_told_if_the_loop_went_on_to_its_evaluation(tmp_path):
    train(tmp_path, [], evaluate=True)
    (finding,) = examine(tmp_path, GENERAL)
    assert (finding.rule, "loader" in finding.message) == ("NoSteps", False)


def test_a_run_that_is_only_opened_leaves_no_run(tmp_path):
    train(tmp_path / "opened", [])
    assert not (tmp_path / "opened" / "run.json").exists()
    train(tmp_path / "done", rows(16, 8))
    before = (tmp_path / "done" / "events.jsonl").read_text()
    train(tmp_path / "done", [], evaluate=True)
    assert "no_steps" not in (tmp_path / "done" / "events.jsonl").read_text()
    assert (tmp_path / "done" / "events.jsonl").read_text() == before


LOOPS = {
    "too early": ("clip_grad_norm_(p, 1)\nloss.backward()\nopt.step()", ["clip before backward"]),
    "in time": ("loss.backward()\nclip_grad_norm_(p, 1)\nopt.step()", []),
    "of a function's gradients": ("gradients()\nclip_grad_norm_(p, 1)\nopt.step()\nloss.backward()", []),
    "in a branch": ("if early:\n    clip_grad_norm_(p, 1)\nloss.backward()\nopt.step()", []),
    "inside of a context": ("with cast():\n    clip_grad_norm_(p, 1)\nloss.backward()", ["clip before backward"]),
}


@pytest.mark.parametrize(("body", "found"), LOOPS.values(), ids=LOOPS)
def test_clipping_before_the_backward_pass_is_read_from_the_loop(body, found):
    module = ast.parse(f"for batch in data:\n{textwrap.indent(body, '    ')}")
    loop = loop_source._loop_around(module, 2)
    assert loop is not None
    assert [what for what, _ in loop_source._wrong_order(loop)] == found


@pytest.mark.machine
def test_tensors_that_a_hook_keeps_are_counted_with_their_holder(tmp_path, monkeypatch):
    monkeypatch.setattr(loop_facts, "_MANY", 8)
    monkeypatch.setattr(memory, "SAMPLE_EVERY", 1)
    monkeypatch.setattr(memory, "SAMPLE_SECONDS", 0.0)
    # The C library maps blocks of more than 32 MiB one by one. Smaller ones could take memory that earlier tests have
    # freed, and the process would not grow.
    net = nn.Linear(1, 1)
    sgd = torch.optim.SGD(net.parameters(), lr=1e-4)
    seen = []
    net.register_forward_hook(lambda _module, _inputs, output: seen.append(output.repeat(33 << 18)))
    with Run(tmp_path, outputs=QUIET) as run:
        run.track(net=net, sgd=sgd)
        run.resume()
        for step in run.steps(12):
            step.backward(lambda batch: Terms(fit=(1.0, net(batch).square().mean())), torch.ones(1))
            step.update(sgd)
    (event,) = events(tmp_path, "kept_tensors")
    assert event["count"] >= 12
    assert event["holder"] == "seen"
    assert "TensorsKept" in {each.rule for each in examine(tmp_path, GENERAL)}
