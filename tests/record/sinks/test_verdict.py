"""The verdict that other tools get, and that of the report: one word for one run."""

import pytest
import torch

import fieldwatch as fw
from fieldwatch.record.sinks import verdict_facts


class Kept:
    """A sink that keeps every verdict."""

    def __init__(self):
        self.verdicts = []

    def __call__(self, block):
        pass

    def verdict(self, verdict):
        self.verdicts.append(verdict)


def train(folder, *, factor=1.0, error=None):
    sink = Kept()
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with fw.Run(folder, outputs=fw.Outputs(sinks=[sink])) as run:
        run.track(model=model, optimizer=optimizer)
        run.resume()
        for step in run.steps(40):
            terms = fw.Terms(fit=(factor if step.index == 30 else 1.0, model(torch.ones(8, 2)).square().mean()))
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(optimizer)
            if error is not None and step.index == 20:
                raise error
    return sink.verdicts


@pytest.mark.parametrize("factor", [1.0, float("nan")])
def test_a_run_tells_the_verdict_of_its_report(tmp_path, factor):
    started, ended = train(tmp_path, factor=factor)
    account = fw.account_of(tmp_path)
    assert started["level"] == "running"
    assert (ended["level"], ended["state"]) == (account["verdict"]["level"], "finished")
    severities = [finding["severity"] for finding in account["findings"]]
    for kind in ("error", "warning", "note"):
        assert ended[f"{kind}s"] >= severities.count(kind)
        assert bool(ended[f"{kind}s"]) == (kind in severities)
    assert factor == 1.0 or ended["errors"] + ended["warnings"] > 0


def test_a_crash_is_a_failure_until_the_run_goes_on(tmp_path):
    with pytest.raises(KeyError):
        train(tmp_path, error=KeyError("planted"))
    assert fw.account_of(tmp_path)["verdict"]["level"] == "failed"
    started, ended = train(tmp_path)
    assert (started["level"], ended["state"]) == ("running", "finished")


@pytest.mark.parametrize(
    ("state", "severities", "level"),
    [
        ("finished", (), "healthy"),
        ("interrupted", ("note",), "notes"),
        ("finished", ("note", "warning"), "findings"),
        ("failed", (), "failed"),
        ("diverged", ("error",), "failed"),
        ("running", ("error",), "running"),
    ],
)
def test_the_level_of_a_state_and_its_findings(state, severities, level):
    assert verdict_facts(state, severities)["level"] == level
