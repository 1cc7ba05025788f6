"""The preflight check: a test checkpoint of the real size is written and read back, and leaves no files."""

import errno
import os
from pathlib import Path

import pytest
import torch

from fieldwatch.checkpoint import CheckpointError, Checkpoints, optimizer_growth, share_memory, write_test_checkpoint
from fieldwatch.checkpoint import preflight as module


def draft(folder):
    return Checkpoints(folder).take(0, {"x": torch.arange(1000.0)}, share_memory)


def test_nothing_is_left_of_a_rehearsal(tmp_path):
    folder = tmp_path / "run" / "checkpoints"
    write_test_checkpoint(folder, draft(folder), growth=1000)
    assert list(folder.parent.iterdir()) == []
    Checkpoints(folder).save(1, {"x": torch.ones(3)})
    write_test_checkpoint(folder, draft(folder))
    assert [path.name for path in folder.iterdir()] == ["step_0000000001"]


@pytest.mark.parametrize(("code", "call"), [("ENOSPC", "posix_fallocate"), ("EROFS", "mkdir"), ("EIO", "fsync")])
def test_a_disk_that_does_not_take_it_is_told_with_what_is_wanted(tmp_path, monkeypatch, code, call):
    def fails(*_args, **_kwargs):
        raise OSError(getattr(errno, code), os.strerror(getattr(errno, code)))

    made = draft(tmp_path)
    monkeypatch.setattr(os, call, fails)
    with pytest.raises(CheckpointError, match=r"9,000 bytes needed, [\d,]+ free") as caught:
        write_test_checkpoint(tmp_path / "checkpoints", made, growth=5000)
    assert caught.value.__cause__.errno == getattr(errno, code)
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_gives_back_something_else_is_told(tmp_path, monkeypatch):
    real = module.verify_folder

    def lies(folder):
        data = bytearray((folder / "tensors.safetensors").read_bytes())
        data[-77] ^= 1
        (folder / "tensors.safetensors").write_bytes(data)
        real(folder)

    monkeypatch.setattr(module, "verify_folder", lies)
    with pytest.raises(CheckpointError, match="hash"):
        write_test_checkpoint(tmp_path / "checkpoints", draft(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_moments_that_are_not_there_yet_are_counted():
    weight = torch.ones(10, 10, requires_grad=True)
    optimizer = torch.optim.Adam([weight])
    nested = {"a": {"b": optimizer}, "c": torch.ones(3)}
    assert optimizer_growth(nested) == 2 * 400
    optimizer.state[weight] = {"exp_avg": torch.zeros(10, 10)}
    assert optimizer_growth(nested) == 0


def test_what_is_read_back_comes_from_the_disk(tmp_path, monkeypatch):
    calls = []
    real = {name: getattr(os, name) for name in ("fsync", "posix_fadvise", "preadv")}

    def noted(name):
        def call(descriptor, *rest):
            calls.append((name, Path(f"/proc/self/fd/{descriptor}").readlink().name))
            return real[name](descriptor, *rest)

        return call

    for name in real:
        monkeypatch.setattr(os, name, noted(name))
    write_test_checkpoint(tmp_path / "checkpoints", draft(tmp_path))
    for file in ("tensors.safetensors", "manifest.json", "manifest.sha256"):
        of_file = [name for name, path in calls if path == file]
        assert of_file[:2] == ["fsync", "posix_fadvise"]  # on the disk, then out of the system's memory
        assert set(of_file[2:]) == {"preadv"}
