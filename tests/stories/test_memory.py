"""Where the bytes of a run are, as its user finds out."""

import json
import re

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

CATEGORIES = ("parameters", "gradients", "optimizer", "buffers", "data", "activations", "other")


@pytest.fixture
def profiled(tmp_path, frames, tiny, finish):
    """A finished run that was profiled at every second step."""
    folder = tmp_path / "run"
    code, _, err = finish(
        *("train", "video", "--data", frames, "--out", folder, "--epochs", 2, *tiny, "--profile-tensors", 2)
    )
    assert code in (0, 1), err
    return folder


def test_a_profiled_run_and_its_report(profiled, finish):
    events = EventAccumulator(str(profiled / "tensorboard")).Reload()
    tags = set(events.Tags()["scalars"])
    assert {f"TensorProfiling/Tensor_Category/{name}_MB" for name in CATEGORIES} <= tags
    original = ("Large_Tensors/count", "Large_Tensors/total_MB", "Tensor_Count/total", "fragmentation_percent")
    assert {f"TensorProfiling/{name}" for name in original} <= tags
    assert {"TensorProfiling/Peak/forward_MB", "TensorProfiling/Peak/loss_pixel_MB", "Time/recording"} <= tags

    code, out, _ = finish("memory", profiled)
    assert code in (0, 1)
    assert "TENSOR PROFILING SUMMARY" in out
    assert re.search(r"parameters\s+:\s+[\d.]+ MB", out)
    code, out, _ = finish("memory", profiled, "--json")
    assert json.loads(out)

    (log,) = (profiled / "profiles").glob("tensor_profile_*.log")
    code, out, _ = finish("memory", log, "--html", profiled / "memory.html")
    assert code in (0, 1)
    assert "<html" in (profiled / "memory.html").read_text()
    assert str(profiled / "memory.html") in out.replace("\n", "")

    whole = log.read_bytes()  # and torn in the middle of its last snapshot
    torn = profiled / "torn.log"
    torn.write_bytes(whole[: whole.rindex(b"Data Types") + 5])
    code, out, _ = finish("memory", torn)
    assert code in (0, 1)
    assert f"Total Snapshots: {whole.count(b'Iteration ') - 1}" in out


def test_the_names_of_the_other_guide(tmp_path, frames, tiny, finish):
    folder = tmp_path / "run"
    words = ("train", "video", "--data", frames, "--out", folder, "--epochs", 2, *tiny)
    code, _, err = finish(*words, "--profile-tensors", 2, "--profile-names", "Memory")
    assert code in (0, 1), err
    named = {f"Memory/Tensor_Category/{name}_MB" for name in CATEGORIES} | {"Memory/Tensor_DType/float32_MB"}
    named |= {"Memory/Large_Tensors/count", "Memory/Large_Tensors/total_MB", "Memory/fragmentation_percent"}

    tags = set(EventAccumulator(str(folder / "tensorboard")).Reload().Tags()["scalars"])
    assert named <= tags
    assert not any(tag.startswith("TensorProfiling/") for tag in tags)
    assert json.loads(finish("watch", folder, "--json")[1])
    assert "TENSOR PROFILING SUMMARY" in finish("memory", folder)[1]
    account = finish("report", folder, "--json")[1]
    assert {"By owner", "By type", "Large tensors"} <= titles(json.loads(account))
    assert finish("health", folder)[0] in (0, 1)


def titles(part):
    """Every title in a report's account, however deep."""
    if isinstance(part, dict):
        own = {part["title"]} if isinstance(part.get("title"), str) else set()
        return own.union(*map(titles, part.values()))
    return set().union(*map(titles, part)) if isinstance(part, list) else set()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--profile-tensors", "-3"), "got -3"),
        (("--profile-tensors=often",), "expected a number of steps"),
        (("--profile-window", "1", "2"), "--profile-window needs --profile-tensors"),
        (("--snapshot-at", "10"), "--snapshot-at needs a GPU"),
    ],
)
def test_wrong_flags_write_nothing(flags, message, tmp_path, frames, finish):
    folder = tmp_path / "run"
    code, _, err = finish("train", "video", "--data", frames, "--device", "cpu", "--out", folder, *flags)
    assert code == 2
    assert message in err
    assert not folder.exists()


def test_the_machine_is_shown_without_a_gpu_too(finish):
    code, out, _ = finish("gpu", "--once", "--json")
    assert code == 0
    assert "gpus" in json.loads(out)


def test_a_hostile_snapshot_is_refused_and_not_executed(tmp_path, finish):
    canary = tmp_path / "canary"
    hostile = tmp_path / "snapshot.pickle"
    hostile.write_bytes(b"\x80\x02cos\nsystem\n(S'touch " + str(canary).encode() + b"'\ntR.")
    code, _, err = finish("memory", hostile)
    assert code == 2
    assert "os.system" in err
    assert not canary.exists()
