"""A run continues from an earlier checkpoint: later ones are set aside, and nothing is deleted."""

import pytest
import torch
from torch import nn

from fieldwatch import InputError, Outputs, Retention, Run, Saving, Shuffled, Terms, read_history
from fieldwatch.checkpoint import CheckpointError, NoWayBackError
from fieldwatch.record import read_events, read_manifest

STEPS = 60
ALL = Retention(last=9, metric="score", better="lower")
"""Checkpoints at 20, 40 and 60; the one of 40 has the best score."""


class Killed(BaseException):
    """Ends a run as a kill would, as far as the run's code can tell."""


def train(folder, *, step=None, killed=False, seed=0, resume_from="last", mirror="", **outputs):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    order = Shuffled(64, 8, seed=3)
    inputs = torch.randn(64, 3, generator=torch.Generator().manual_seed(5))
    saving = Saving(every=None, keep=ALL, resume_from=resume_from, mirror=mirror)
    with Run(folder, saving=saving, outputs=Outputs(rules=(), **outputs)) as run:
        run.track(model=model, optimizer=optimizer, order=order)
        run.resume(step=step)
        if killed:
            raise Killed
        for current in run.steps(STEPS):
            terms = Terms(fit=(1.0, (model(inputs[next(order)]) - 1).square().mean()))
            optimizer.zero_grad()
            terms.total.backward()
            current.observe(terms)
            current.update(optimizer)
            if (current.index + 1) % 20 == 0:
                run.save_after_step({"score": abs(current.index - 39.0)})
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def names(folder):
    return sorted(path.name for path in (folder / "checkpoints").iterdir() if not path.name.startswith("."))


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


STORED = [f"step_{step:010d}" for step in (20, 40, 60)]


@pytest.fixture
def trained(tmp_path):
    weights = train(tmp_path / "run")
    assert names(tmp_path / "run") == STORED
    return tmp_path / "run", weights


@pytest.mark.parametrize(
    ("first", "how"),
    [(20, {"step": 20}), (20, {"resume_from": 20}), (40, {"step": "best"}), (40, {"resume_from": "best"})],
)
def test_a_finished_run_is_trained_again_from_an_earlier_step(trained, first, how):
    folder, weights = trained
    before = read_history(folder)["Loss/total"].values.tolist()
    aside = {f"abandoned-{name}": contents(folder / "checkpoints" / name) for name in STORED if int(name[5:]) > first}
    assert torch.equal(train(folder, seed=99, **how), weights)
    assert names(folder) == [*sorted(aside), *STORED]
    for name, files in aside.items():
        assert list(contents(folder / "checkpoints" / name).values()) == list(files.values())
    loss = read_history(folder)["Loss/total"]
    assert (loss.steps.tolist(), loss.values.tolist()) == (list(range(STEPS)), before)
    manifest = read_manifest(folder)
    assert (manifest.state, [segment["step"] for segment in manifest.segments]) == ("finished", [0, first])
    (incident,) = [event for event in read_events(folder) if event["kind"] == "incident"]
    assert (incident["what"], incident["resumed_from"], incident["abandoned"]) == (
        "abandoned",
        first,
        [step for step in (40, 60) if step > first],
    )


def test_the_rows_of_both_branches_stay_in_the_journal(trained):
    folder, _ = trained
    written = (folder / "journal.jsonl").read_bytes()
    train(folder, step=20)
    assert (folder / "journal.jsonl").read_bytes().startswith(written)


def test_going_back_twice_keeps_both_branches(trained):
    folder, weights = trained
    train(folder, step=40)
    assert torch.equal(train(folder, step=20), weights)
    aside = [name for name in names(folder) if name.startswith("abandoned")]
    assert [name[: len("abandoned-step_0000000040")] for name in aside] == [
        "abandoned-step_0000000040",
        "abandoned-step_0000000060",
        "abandoned-step_0000000060",
    ]
    assert read_history(folder)["Loss/total"].steps.tolist() == list(range(STEPS))


def test_a_kill_before_the_first_step_leaves_the_choice_in_place(trained):
    folder, weights = trained
    with pytest.raises(Killed):
        train(folder, step=20, killed=True)
    assert torch.equal(train(folder, seed=99), weights)
    assert [segment["step"] for segment in read_manifest(folder).segments] == [0, 20]
    assert read_history(folder)["Loss/total"].steps.tolist() == list(range(STEPS))


def test_without_a_step_a_finished_run_has_nothing_left_to_train(trained):
    folder, weights = trained
    assert torch.equal(train(folder, seed=99), weights)
    assert names(folder) == STORED


@pytest.mark.parametrize("which", [30, 0])
def test_a_step_without_a_checkpoint_is_refused_with_those_that_have_one(trained, which):
    folder, _ = trained
    before = contents(folder)
    with pytest.raises(InputError, match=r"\[20, 40, 60\]"):
        train(folder, resume_from=which)
    assert contents(folder) == before
    with pytest.raises(CheckpointError, match=r"\[20, 40, 60\]"):
        train(folder, step=which)
    assert names(folder) == STORED


def test_a_folder_without_checkpoints_is_refused(tmp_path):
    with pytest.raises(InputError, match="no checkpoint"):
        train(tmp_path / "new", resume_from=20)
    assert not (tmp_path / "new").exists()
    with pytest.raises(InputError, match="no checkpoint"):
        train(tmp_path / "other", step=20)


def test_a_damaged_choice_is_not_replaced_by_another_step(trained):
    folder, _ = trained
    tensors = folder / "checkpoints" / STORED[1] / "tensors.safetensors"
    data = bytearray(tensors.read_bytes())
    data[-1] ^= 1
    tensors.write_bytes(data)
    with pytest.raises(NoWayBackError, match=r"\[20, 60\] are left"):
        train(folder, step=40)
    assert names(folder) == STORED


def test_a_choice_contradicts_a_new_start():
    for resume in ("never", "start-over"):
        with pytest.raises(InputError, match="resume_from"):
            Saving(resume=resume, resume_from=20)


def test_a_mirror_follows_the_new_branch(tmp_path):
    folder, mirror = tmp_path / "run", tmp_path / "mirror"
    weights = train(folder, mirror=mirror.as_uri())
    assert torch.equal(train(folder, mirror=mirror.as_uri(), step=20), weights)
    assert names(mirror)[-1] == STORED[-1]
    assert not any(name.startswith("abandoned") for name in names(mirror))
    (folder / "checkpoints").rename(tmp_path / "lost")
    assert torch.equal(train(folder, mirror=mirror.as_uri(), seed=99), weights)


def test_the_interval_of_the_log_is_chosen_and_stored(tmp_path):
    train(tmp_path / "run", log_every=25)
    lines = (tmp_path / "run" / "log.txt").read_text().splitlines()
    assert [line.split()[1] for line in lines if " loss=" in line] == ["step=0", "step=25", "step=50"]
    assert read_manifest(tmp_path / "run").about["log_every"] == 25
    train(tmp_path / "usual")
    assert "log_every" not in read_manifest(tmp_path / "usual").about
    with pytest.raises(InputError, match="log_every=0"):
        Outputs(log_every=0)
