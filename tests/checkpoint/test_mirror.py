"""The mirror of checkpoints at a URL: copied atomically, pruned like local ones, and verified when fetched."""

import threading

import fsspec
import pytest
import torch

from fieldwatch.checkpoint import CheckpointError, Checkpoints, Mirror, Retention


def filled(step):
    return {"x": torch.full((1000,), float(step))}


@pytest.fixture(params=["file", "memory"])
def url(request, tmp_path):
    yield f"file://{tmp_path}/far" if request.param == "file" else "memory://bucket/run"
    fsspec.filesystem("memory").store.clear()


@pytest.fixture
def near(tmp_path):
    return Checkpoints(tmp_path / "run" / "checkpoints", keep=Retention(last=2, best=1, metric="psnr"))


def mirrored(mirror, checkpoints, steps, metrics=None):
    for step in steps:
        mirror.offer(checkpoints.save(step, filled(step), metrics=(metrics or {}).get(step)))
        assert mirror._thread.wait(10)
    return [(one.step, one.error) for one in mirror.copied]


def test_a_lost_run_comes_back_from_its_mirror(tmp_path, url, near):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text('{"config": {"lr": 0.5}}')
    mirror = Mirror(url, near.keep)
    assert mirror.config() is None
    assert mirror.names() == []
    assert mirrored(mirror, near, [1, 2]) == [(1, None), (2, None)]
    again = Mirror(url, near.keep)
    assert again.config() == {"lr": 0.5}
    assert again.fetch(tmp_path / "new") == []
    items = filled(0)
    assert Checkpoints(tmp_path / "new").restore(items).step == 2
    assert items["x"].eq(2).all()


def test_retention_holds_there_too(url, near):
    mirror = Mirror(url, near.keep)
    psnr = {1: {"psnr": 9.0}, 2: {"psnr": 5.0}, 3: {"psnr": 6.0}, 4: {"psnr": 7.0}}
    mirrored(mirror, near, [1, 2, 3, 4], psnr)
    assert mirror.names() == [f"step_{step:010d}" for step in (1, 3, 4)] == [f"step_{s:010d}" for s in near.steps()]
    fresh = Mirror(url, near.keep)  # another process knows nothing yet and has to read the manifests
    mirrored(fresh, near, [5], {5: {"psnr": 1.0}})
    assert fresh.names() == [f"step_{step:010d}" for step in (1, 4, 5)]


def test_later_steps_of_a_branch_that_was_left_are_not_taken_for_the_last(url, near):
    mirror = Mirror(url, near.keep)
    mirrored(mirror, near, [1, 9])
    mirrored(mirror, near, [4])
    assert mirror.names() == ["step_0000000001", "step_0000000004"]
    mirrored(mirror, near, [4])
    assert mirror.names() == ["step_0000000001", "step_0000000004.2"]


@pytest.mark.parametrize("damage", ["flip", "no seal", "truncated"])
def test_a_damaged_copy_is_passed_over(tmp_path, url, near, damage):
    mirror = Mirror(url, near.keep)
    mirrored(mirror, near, [1, 2])
    system, root = fsspec.url_to_fs(url)
    place = f"{root}/checkpoints/step_0000000002"
    data = system.cat_file(f"{place}/tensors.safetensors")
    if damage == "no seal":  # what a copy that was cut off leaves
        system.rm_file(f"{place}/manifest.sha256")
    else:
        system.pipe_file(f"{place}/tensors.safetensors", b"\x01" + data[1:] if damage == "flip" else data[:500])
    incidents = Mirror(url, near.keep).fetch(tmp_path / "new")
    assert [(one.step, one.what) for one in incidents] == ([] if damage == "no seal" else [(2, "damaged")])
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["step_0000000001"]


def test_without_a_good_one_nothing_is_brought(tmp_path, url, near):
    mirror = Mirror(url, near.keep)
    mirrored(mirror, near, [1])
    system, root = fsspec.url_to_fs(url)
    system.rm_file(f"{root}/checkpoints/step_0000000001/tensors.safetensors")
    with pytest.raises(CheckpointError, match=r"no good checkpoint.*step 1"):
        Mirror(url, near.keep).fetch(tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


def test_a_place_that_fails_is_told_and_the_next_copy_is_tried(url, near, monkeypatch):
    mirror = Mirror(url, near.keep)

    def fails(*_args, **_kwargs):
        raise RuntimeError("the network is gone")

    with monkeypatch.context() as broken:
        broken.setattr(type(mirror._system), "open", fails)
        ((step, error),) = mirrored(mirror, near, [1])
    assert step == 1
    assert "network" in str(error)
    assert mirrored(mirror, near, [2])[-1] == (2, None)
    assert mirror.names() == ["step_0000000002"]


def test_while_a_copy_is_under_way_only_the_newest_offer_is_kept(tmp_path, near, monkeypatch):
    mirror = Mirror(f"file://{tmp_path}/far", near.keep)
    go = threading.Event()
    real = Mirror._copy

    def slow(self, folder):
        go.wait(10)
        real(self, folder)

    monkeypatch.setattr(Mirror, "_copy", slow)
    for step in (1, 2, 3, 4):
        mirror.offer(near.save(step, filled(step)))
    go.set()
    assert mirror.close(10)
    assert mirror.names() == ["step_0000000004"]  # the first was deleted here before it was read
    assert [(one.step, one.error) for one in mirror.copied] == [(4, None)]


def test_a_url_that_means_nothing_is_refused():
    with pytest.raises(CheckpointError, match="mirror 'nowhere://x' cannot be used"):
        Mirror("nowhere://x", Retention())
