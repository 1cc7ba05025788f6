"""benchmarks/identical_runs.py in short: the same command gives the same hashes, and a changed value is noticed."""

import json
from dataclasses import replace

import pytest
import torch

SHORT = ("--epochs", "2", "--checkpoint-epochs", "1", "--between-weight", "0", "--clip-loss-weight", "0")


@pytest.fixture(scope="module")
def identical(benchmark):
    return benchmark("identical_runs")


@pytest.fixture(scope="module")
def hashed(identical, tmp_path_factory):
    """Train the video run with further words, and hash it."""

    def run(*words):
        folder = tmp_path_factory.mktemp("identical")
        return identical.run_hashes(identical.train("video", folder, more=(*SHORT, *words)))

    return run


@pytest.fixture(scope="module")
def trained(hashed):
    """The hashes of a run that nothing changed."""
    return hashed()


def test_two_runs_of_one_command_have_the_same_hashes(identical, hashed, trained):
    again = hashed()
    assert again == trained
    assert identical.differences(trained, again) == ([], [])
    assert len(trained.series) > 20
    assert any(path.startswith("model/") for path in trained.leaves)


def test_another_learning_rate_is_noticed(identical, hashed, trained):
    other = hashed("--lr", "0.0100001")
    wrong, _ = identical.differences(trained, other)
    assert [line.partition(":")[0] for line in wrong[:2]] == ["weights", "loss"]
    assert other.journal != trained.journal


def test_one_changed_value_is_named_and_a_rename_is_not_a_difference(identical):
    before = identical.Hashes(
        weights="w",
        loss="l",
        journal="j",
        series={"Loss/total": "1", "Train/psnr": "2"},
        leaves={"model/a": "3", "parts/factor": "4", "order/cursor": "5"},
    )
    leaves = {"model/a": "3", "micro_batches/factor": "4", "order/cursor": "6", "order/epoch": "7"}
    wrong, renamed = identical.differences(before, replace(before, series={"Loss/total": "1"}, leaves=leaves))
    assert wrong == ["series Train/psnr: missing", "state order/cursor: changed", "state order/epoch: new"]
    assert renamed == ["state parts/factor is now micro_batches/factor"]

    renamed_weights = {**before.leaves, "network/a": before.leaves["model/a"]}
    del renamed_weights["model/a"]
    assert identical.differences(before, replace(before, leaves=renamed_weights))[0] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool])
def test_a_digest_depends_on_bytes_type_and_shape(identical, dtype):
    tensor = torch.tensor([1, 0, 1, 1]).to(dtype)
    changed = tensor.clone()
    changed[1] = 1
    digests = [identical.digest(one) for one in (tensor, changed, tensor.reshape(2, 2), tensor.to(torch.float64))]
    assert len(set(digests)) == 4
    assert identical.digest(tensor.clone()) == digests[0]


def test_check_exits_with_1_for_a_difference_2_for_another_machine(identical, trained, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(identical, "hash_runs", lambda names, _: dict.fromkeys(names, trained))
    file = tmp_path / "baseline.json"
    words = ["--check", str(file), "--only", "video"]
    assert identical.main(["--write", *words[1:]]) == 0
    assert identical.main(words) == 0

    stored = json.loads(file.read_text())
    stored["runs"]["video"]["series"]["Loss/total"] = "other"
    file.write_text(json.dumps(stored))
    assert identical.main(words) == 1
    assert "Loss/total" in capsys.readouterr().out

    stored["header"]["cpu"] = "another"
    file.write_text(json.dumps(stored))
    assert identical.main(words) == 2
    assert identical.main([*words, "--source", str(identical.SOURCE)]) == 0
