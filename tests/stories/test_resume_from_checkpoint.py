"""A finished run of every pipeline is continued from an earlier checkpoint: the same numbers again, nothing deleted."""

import json
import subprocess

import pytest

from fieldwatch import Checkpoints, read_history
from fieldwatch.record import read_events, read_manifest

PIPELINES = ("video", "splats-dn_consistency", "refine", "normals")


@pytest.fixture(scope="module")
def identical(benchmark):
    return benchmark("identical_runs")


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", PIPELINES)
def test_it_is_trained_to_the_same_numbers_and_the_later_checkpoints_are_kept(name, identical, tmp_path, finish):
    folder = identical.train(name, tmp_path)
    environment = identical._environment(identical.SOURCE, tmp_path)

    def fieldwatch(*words):
        ended = finish(*words, folder=tmp_path, environment=environment)
        return subprocess.CompletedProcess(words, *ended)

    before = identical.run_hashes(folder)
    stored = Checkpoints(folder / "checkpoints").steps()
    first, last = stored[0], stored[-1]
    assert first < last
    before_going_back = contents(folder)

    refused = fieldwatch("resume", folder, "--checkpoint", last + 1)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert str(stored) in refused.stderr
    untouched = fieldwatch("resume", folder, "--checkpoint", last)
    assert "is finished" in " ".join(untouched.stdout.split())
    assert contents(folder) == before_going_back

    evaluated = fieldwatch("eval", folder, "--checkpoint", first, "--device", "cpu", "--json", "--out", tmp_path / "e")
    assert evaluated.returncode == 0, evaluated.stderr
    assert json.loads(evaluated.stdout)["step"] == first

    later = {step: contents(Checkpoints(folder / "checkpoints").find(step).path) for step in stored if step > first}
    resumed = fieldwatch("resume", folder, "--checkpoint", first)
    assert resumed.returncode in (0, 1), resumed.stderr
    assert f"abandoned-{Checkpoints(folder / 'checkpoints').find(last).path.name}" in resumed.stderr

    assert identical.differences(before, identical.run_hashes(folder)) == ([], [])
    manifest = read_manifest(folder)
    assert manifest.state == "finished"
    assert [segment["step"] for segment in manifest.segments] == [0, first]
    aside = {int(path.name[-6:]): contents(path) for path in (folder / "checkpoints").glob("abandoned-*")}
    assert aside == later
    steps = read_history(folder)["Loss/total"].steps
    assert list(steps) == list(range(last))
    incident = next(event for event in read_events(folder) if event["kind"] == "incident")
    assert (incident["what"], incident["abandoned"], incident["resumed_from"]) == ("abandoned", sorted(later), first)
