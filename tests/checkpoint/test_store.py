"""Saving and restoring of checkpoints."""

import hashlib
import subprocess

import numpy as np
import pytest
import torch

from fieldwatch.checkpoint import CheckpointError, Checkpoints, DamageError, RandomState, Retention
from fieldwatch.checkpoint.manifest import decode


class Box:
    """A minimal stateful object."""

    def __init__(self, value=None):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state_dict):
        self.value = state_dict["value"]


def filled(step):
    return {"x": torch.full((1000,), float(step)), "box": Box(step)}


def test_a_model_its_optimizer_and_plain_tensors_return_in_place(tmp_path):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.randn(8, 3)).square().sum().backward()
    optimizer.step()
    grid = torch.rand(5)
    tables = {"a": torch.rand(2), "deeper": {"b": torch.rand(3, dtype=torch.float64).to(torch.bfloat16)}}
    items = {"model": model, "optimizer": optimizer, "grid": grid, "tables": tables, "box": Box((1, "two"))}
    wanted = {name: value.clone() for name, value in model.state_dict().items()}
    wanted_grid = grid.clone()
    wanted_b = tables["deeper"]["b"].clone()
    moment = optimizer.state_dict()["state"][0]["exp_avg"].clone()
    path = Checkpoints(tmp_path / "deep" / "checkpoints").save(400, items, note={"epoch": 3})

    with torch.no_grad():
        for tensor in (*model.parameters(), grid, tables["a"], tables["deeper"]["b"]):
            tensor.fill_(7)
    model(torch.randn(8, 3)).square().sum().backward()
    optimizer.step()
    addresses = [parameter.data_ptr() for parameter in model.parameters()] + [grid.data_ptr()]
    items["box"] = Box()
    restored = Checkpoints(tmp_path / "deep" / "checkpoints").restore(items)

    assert path.name == "step_0000000400"
    assert (restored.step, restored.note, restored.fell_back) == (400, {"epoch": 3}, ())
    assert all(torch.equal(value, wanted[name]) for name, value in model.state_dict().items())
    assert torch.equal(grid, wanted_grid)
    assert torch.equal(tables["deeper"]["b"], wanted_b)
    assert torch.equal(optimizer.state_dict()["state"][0]["exp_avg"], moment)
    assert addresses == [parameter.data_ptr() for parameter in model.parameters()] + [grid.data_ptr()]
    assert items["box"].value == (1, "two")


def test_a_leaf_that_needs_gradients_is_filled_in_place(tmp_path):
    parameter = torch.ones(3, requires_grad=True)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"p": parameter})
    with torch.no_grad():
        parameter.zero_()
    checkpoints.restore({"p": parameter})
    assert parameter.tolist() == [1, 1, 1]
    assert parameter.is_leaf
    assert parameter.grad is None


def test_the_folder_is_checked_by_sha256sum_and_holds_raw_tensors(tmp_path):
    path = Checkpoints(tmp_path).save(5, {"a": torch.arange(3.0), "b": torch.arange(100, dtype=torch.int16)})
    assert sorted(one.name for one in path.iterdir()) == ["manifest.json", "manifest.sha256", "tensors.safetensors"]
    assert (
        subprocess.run(["sha256sum", "-c", "manifest.sha256"], cwd=path, capture_output=True, check=False).returncode
        == 0
    )
    entries = decode((path / "manifest.json").read_bytes()).tensors
    raw = (path / "tensors.safetensors").read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    assert start % 64 == 0
    assert [(entry.name, entry.offset) for entry in entries] == [("a", 0), ("b", 12)]
    assert len(raw) == start + 12 + 200
    assert np.frombuffer(raw[start + 12 :], np.int16).tolist() == list(range(100))
    assert hashlib.sha256(raw[start + 12 :]).hexdigest() == entries[1].sha256


def test_steps_latest_and_read_tell_what_is_there(tmp_path):
    checkpoints = Checkpoints(tmp_path / "none yet", keep=Retention(last=3))
    assert (checkpoints.steps(), checkpoints.latest()) == ([], None)
    for step in (100, 200, 300):
        checkpoints.save(step, filled(step), metrics={"psnr": step / 10})
    latest = checkpoints.latest()
    assert checkpoints.steps() == [100, 200, 300]
    assert (latest.step, latest.metrics, latest.pinned) == (300, {"psnr": 30.0}, False)
    assert latest.created.endswith("+00:00")
    assert checkpoints.read(200)["box"] == {"value": 200}
    assert float(checkpoints.read()["x"][0]) == 300
    assert checkpoints.restore(filled(0), step=100).step == 100


def test_last_and_best_stay_and_best_returns(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=Retention(last=1, best=1, metric="lpips", better="lower"))
    for step, lpips in ((1, 0.5), (2, 0.2), (3, 0.4), (4, float("nan")), (5, 0.3)):
        checkpoints.save(step, filled(step), metrics={"lpips": lpips})
    assert checkpoints.steps() == [2, 5]
    assert checkpoints.restore(filled(0), step="best").step == 2
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".")] == []


def test_best_without_its_metric_is_an_error_that_lists_the_known_ones(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=Retention(metric="ssim"))
    checkpoints.save(1, filled(1), metrics={"psnr": 3.0})
    with pytest.raises(CheckpointError, match=r"metric of Retention\(metric='ssim'\): they have \['psnr'\]"):
        checkpoints.restore(filled(0), step="best")


def test_a_pinned_checkpoint_stays_until_it_is_unpinned(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=Retention(last=1))
    checkpoints.save(1, filled(1))
    checkpoints.pin(1)
    checkpoints.save(2, filled(2))
    assert checkpoints.steps() == [1, 2]
    assert checkpoints.restore(filled(0), step=1).step == 1
    checkpoints.unpin(1)
    checkpoints.save(3, filled(3))
    assert checkpoints.steps() == [3]


def test_saving_a_step_again_replaces_it_and_keeps_its_pin(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(7, filled(1))
    checkpoints.pin(7)
    path = checkpoints.save(7, filled(2))
    assert path.name == "step_0000000007.2"
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    assert checkpoints.read(7)["box"] == {"value": 2}
    assert checkpoints.latest().pinned
    assert checkpoints.save(7, filled(3)).name == "step_0000000007.3"


def test_a_branch_that_was_left_is_renamed_and_never_taken_for_the_last(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=Retention(last=3))
    for step in (100, 200, 300):
        checkpoints.save(step, filled(step))
    checkpoints.restore(filled(0), step=100)
    checkpoints.save(150, filled(150))
    assert Checkpoints(tmp_path).restore(filled(0)).step == 150
    assert sorted(one.name for one in tmp_path.glob("abandoned*")) == [
        "abandoned-step_0000000200",
        "abandoned-step_0000000300",
    ]
    assert [(one.step, one.what) for one in checkpoints.incidents] == [(200, "abandoned"), (300, "abandoned")]
    assert all("went back" in one.reason and "saved step 150" in one.reason for one in checkpoints.incidents)


def test_other_names_in_the_run_are_listed_both_ways(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"poses": Box(), "sdf": Box()})
    box = Box("untouched")
    with pytest.raises(CheckpointError, match=r"lacks \['rays'\] and has \['poses'\] in addition.*read\(\)"):
        checkpoints.restore({"sdf": box, "rays": Box()})
    assert box.value == "untouched"


def test_a_tensor_of_another_shape_or_dtype_is_named_and_nothing_is_touched(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"a": torch.ones(2), "grids": {"fine": torch.ones(4, 2)}})
    a = torch.zeros(2)
    with pytest.raises(CheckpointError, match=r"items\['grids'\]\['fine'\] has shape \(5, 2\).*and \(4, 2\)"):
        checkpoints.restore({"a": a, "grids": {"fine": torch.ones(5, 2)}})
    with pytest.raises(CheckpointError, match=r"\['fine'\] is torch.float16.*torch.float32"):
        checkpoints.restore({"a": a, "grids": {"fine": torch.ones(4, 2, dtype=torch.float16)}})
    with pytest.raises(
        CheckpointError, match=r"items\['grids'\] has the keys \['coarse'\], the checkpoint has \['fine'\]"
    ):
        checkpoints.restore({"a": a, "grids": {"coarse": torch.ones(4, 2)}})
    with pytest.raises(CheckpointError, match=r"items\['grids'\] is a tensor"):
        checkpoints.restore({"a": a, "grids": torch.ones(4, 2)})
    assert a.tolist() == [0, 0]


def test_a_modules_other_shape_names_item_key_and_both_shapes(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"net": torch.nn.Linear(3, 4)})
    wanted = r"items\['net'\] \(Linear\).*\['net'\]\['weight'\] has shape \(5, 3\) in the run and \(4, 3\) in the check"
    with pytest.raises(CheckpointError, match=wanted):
        checkpoints.restore({"net": torch.nn.Linear(3, 5)})
    with pytest.raises(CheckpointError, match=r"items\['net'\] \(Conv1d\)"):
        checkpoints.restore({"net": torch.nn.Conv1d(3, 4, 1, bias=False)})


def test_moments_of_another_count_than_their_parameters_are_found(tmp_path):
    splats = torch.nn.Parameter(torch.ones(10, 3))
    optimizer = torch.optim.Adam([splats])
    splats.sum().backward()
    optimizer.step()
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"optimizer": optimizer})
    other = torch.optim.Adam([torch.nn.Parameter(torch.ones(12, 3))])
    wanted = r"items\['optimizer'\] 'exp_avg' of group 0, parameter 0 has shape \(10, 3\).*\(12, 3\)"
    with pytest.raises(CheckpointError, match=wanted):
        checkpoints.restore({"optimizer": other})


def test_every_scheduler_state_of_torch_that_a_run_uses_returns(tmp_path):
    def schedulers(optimizer):
        s = torch.optim.lr_scheduler
        return {
            "multi": s.MultiStepLR(optimizer, [2, 4]),
            "plateau": s.ReduceLROnPlateau(optimizer),
            "one": s.OneCycleLR(optimizer, 0.1, total_steps=10),
            "lambda": s.LambdaLR(optimizer, lambda step: 0.9**step),
            "chain": s.SequentialLR(optimizer, [s.ConstantLR(optimizer), s.CosineAnnealingLR(optimizer, 5)], [3]),
            "scaler": torch.amp.GradScaler("cpu"),
        }

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1, momentum=0.9)
    first = schedulers(optimizer)
    second = schedulers(optimizer)
    optimizer.step()
    for name in ("multi", "one", "lambda", "chain"):
        first[name].step()
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, first)
    checkpoints.restore(second)
    assert second["multi"].state_dict() == first["multi"].state_dict()
    assert second["lambda"].last_epoch == 1


def test_an_item_that_cannot_be_put_back_is_refused_when_saving(tmp_path):
    with pytest.raises(CheckpointError, match=r"items\['t'\]\['lr'\] is a float"):
        Checkpoints(tmp_path).save(1, {"t": {"lr": 0.1}})
    with pytest.raises(CheckpointError, match=r"items\['box'\]\['value'\] is a builtins.set"):
        Checkpoints(tmp_path).save(1, {"box": Box({1})})
    with pytest.raises(CheckpointError, match=r"note\['f'\] is a builtins.function"):
        Checkpoints(tmp_path).save(1, {}, note={"f": lambda: 0})
    with pytest.raises(CheckpointError, match=r"save\(step=-1\)"):
        Checkpoints(tmp_path).save(-1, {})
    with pytest.raises(CheckpointError, match=r"manifest.* [\d,]+ bytes.*16,777,216.*tensors"):
        Checkpoints(tmp_path).save(1, {"box": Box("x" * 17_000_000)})
    assert Checkpoints(tmp_path).steps() == []
    assert list(tmp_path.iterdir()) == []


def test_absent_checkpoints_are_clear_errors(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(CheckpointError, match="no checkpoint"):
        checkpoints.restore({})
    checkpoints.save(3, filled(3))
    with pytest.raises(CheckpointError, match=r"step 4 in .*: available steps are \[3\]"):
        checkpoints.restore(filled(0), step=4)
    with pytest.raises(CheckpointError, match=r"step 4 in .*\[3\]"):
        checkpoints.pin(4)


def test_a_newer_format_is_an_error_and_not_damage(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    path = checkpoints.save(1, filled(1))
    text = (path / "manifest.json").read_bytes().replace(b'"version":2', b'"version":3')
    (path / "manifest.json").write_bytes(text)
    (path / "manifest.sha256").write_text(f"{hashlib.sha256(text).hexdigest()}  manifest.json\n")
    with pytest.raises(CheckpointError, match="format version 3, this fieldwatch reads 1, 2") as caught:
        checkpoints.restore(filled(0))
    assert not isinstance(caught.value, DamageError)
    assert path.exists()


def test_nothing_is_a_checkpoint_too(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(0, {})
    assert checkpoints.restore({}).step == 0
    checkpoints.save(1, {"random": RandomState()}, note=(1, None, "x"))
    assert checkpoints.restore({"random": RandomState()}).note == (1, None, "x")


def test_find_names_the_checkpoint_that_read_would_read(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=Retention(last=3, metric="psnr"))
    for step, psnr in ((10, 30.0), (20, 31.0), (30, 29.0)):
        checkpoints.save(step, filled(step), metrics={"psnr": psnr})
    found = {which: checkpoints.find(which) for which in ("last", "best", 10)}
    assert {which: saved.step for which, saved in found.items()} == {"last": 30, "best": 20, 10: 10}
    assert found["best"].metrics == {"psnr": 31.0}
    with pytest.raises(CheckpointError, match=r"step 15 .* available steps are \[10, 20, 30\]"):
        checkpoints.find(15)
    (found["last"].path / "manifest.json").write_text("{}")
    with pytest.raises(DamageError, match=r"step_0000000030.*are \[10, 20\]"):
        checkpoints.find("last")
    assert checkpoints.steps() == [10, 20, 30]


def test_folders_have_the_name_that_was_asked_for_and_either_is_read(tmp_path):
    pmni = Checkpoints(tmp_path, keep=Retention(last=3, name="ckpt"))
    assert pmni.save(2500, filled(1)).name == "ckpt_002500"
    assert pmni.save(2500, filled(2)).name == "ckpt_002500.2"
    assert Checkpoints(tmp_path).save(5000, filled(3)).name == "step_0000005000"
    assert pmni.steps() == Checkpoints(tmp_path).steps() == [2500, 5000]
    assert pmni.save(1_250_000, filled(4)).name == "ckpt_1250000"
