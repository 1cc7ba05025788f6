"""Checkpoints of all earlier versions can be read, restored and continued."""

import random
import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from fieldwatch.checkpoint import Checkpoints, DamageError, Mirror, RandomState, Retention, preserve_random_state
from fieldwatch.checkpoint.folder import read_manifest, verify_folder
from fieldwatch.checkpoint.layout import LAYOUTS

FIXTURES = Path(__file__).parent / "fixtures"
SCRIPT = runpy.run_path(str(FIXTURES / "save_all.py"))
VERSIONS = {"raw-1dd8b72": 1, "raw-4e344f1": 1, "safetensors": 2}


@pytest.fixture(params=VERSIONS)
def stored(request, tmp_path):
    """A copy of the stored checkpoints of one version."""
    return Path(shutil.copytree(FIXTURES / request.param, tmp_path / request.param))


def same(one, other):
    """Return whether two trees are bitwise identical."""
    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor)
            and (one.dtype, one.shape) == (other.dtype, other.shape)
            and torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
        )
    if isinstance(one, np.ndarray | np.generic):
        return (type(one), one.dtype, one.tobytes()) == (type(other), other.dtype, other.tobytes())
    if isinstance(one, dict):
        return (type(one), list(one)) == (type(other), list(other)) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return (type(one), one) == (type(other), other)


def test_every_version_has_a_fixture():
    assert set(VERSIONS.values()) == set(LAYOUTS)
    assert {path.name for path in FIXTURES.iterdir() if path.is_dir() and path.name != "__pycache__"} == set(VERSIONS)


@pytest.mark.parametrize("name", VERSIONS)
def test_the_fixture_is_of_the_version(name):
    manifest = read_manifest(FIXTURES / name / "step_0000000400")
    assert manifest.version == VERSIONS[name]
    assert (FIXTURES / name / "step_0000000400" / LAYOUTS[VERSIONS[name]].file).is_file()


def test_it_is_read_bit_for_bit(stored):
    found = Checkpoints(stored).read()
    model, optimizer = SCRIPT["trained"]()
    assert same(found["tree"]["value"], SCRIPT["tree"]())
    shared = found["tree"]["value"]["shared"]
    assert shared[0].data_ptr() == shared[1].data_ptr()
    # what a training computes may differ in the last bits between machines; that it was stored exactly, the hashes say
    assert all(torch.allclose(found["model"][name], value) for name, value in model.state_dict().items())
    moments = optimizer.state_dict()["state"][0]
    assert all(torch.allclose(found["optimizer"]["state"][0][name], value) for name, value in moments.items())


def test_it_is_put_back_with_its_random_states_and_its_note(stored):
    holder = SCRIPT["Holder"]()
    model, optimizer = SCRIPT["trained"]()
    with preserve_random_state():
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002  the global state is what is stored
        torch.manual_seed(1)
        wanted = (random.random(), np.random.rand(), torch.rand(3).tolist())  # noqa: NPY002
        items = {"tree": holder, "model": model, "optimizer": optimizer, "random": RandomState()}
        restored = Checkpoints(stored).restore(items)
        drawn = (random.random(), np.random.rand(), torch.rand(3).tolist())  # noqa: NPY002
    assert (restored.step, restored.fell_back) == (400, ())
    assert same(restored.note, SCRIPT["NOTE"])
    assert same(holder.value, SCRIPT["tree"]())
    assert drawn == wanted


def test_its_hashes_and_its_metrics_are_found(stored):
    verify_folder(stored / "step_0000000400")
    found = Checkpoints(stored, keep=Retention(metric="psnr")).find("best")
    assert (found.step, found.metrics) == (400, {"psnr": 31.5})


def test_every_damaged_byte_is_found(stored):
    folder = stored / "step_0000000400"
    generator = random.Random(0)
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        for _ in range(20):
            damaged = bytearray(content)
            damaged[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
            path.write_bytes(damaged)
            with pytest.raises(DamageError):
                Checkpoints(stored).read()
        path.write_bytes(content)
    Checkpoints(stored).read()


def test_the_next_checkpoint_in_its_folder_is_of_the_newest_version(stored):
    checkpoints = Checkpoints(stored, keep=Retention(last=2))
    checkpoints.save(500, {"x": torch.ones(3)})
    assert read_manifest(stored / "step_0000000500").version == max(LAYOUTS)
    assert checkpoints.steps() == [400, 500]
    assert same(checkpoints.read(400)["tree"]["value"], SCRIPT["tree"]())


def test_a_mirror_takes_and_returns_it(stored, tmp_path):
    mirror = Mirror(f"file://{tmp_path}/far", Retention())
    mirror.offer(stored / "step_0000000400")
    assert mirror.close(10)
    assert [copied.error for copied in mirror.copied] == [None]
    assert Mirror(f"file://{tmp_path}/far", Retention()).fetch(tmp_path / "near") == []
    assert same(Checkpoints(tmp_path / "near").read()["tree"]["value"], SCRIPT["tree"]())
