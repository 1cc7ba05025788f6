"""Every pipeline trains on the pretended device: from the start, after a kill, after going back, and to the end."""

import dataclasses
import json
import shutil
from functools import partial

import numpy as np
import pytest
import torch

from fake_cuda.conftest import pretended_gpu, share_trials, stored_as_tensors
from fake_cuda.emulator import REVERSE, SHUFFLED
from fake_cuda.training import (
    COUNTS,
    LATE_RUNS,
    MORE_LAUNCHES,
    OTHER_NUMBERS,
    PRESET_RUNS,
    RUNS,
    STOP,
    SURFACE,
    SURFACE_STOP,
    Training,
    draw_frames,
    refused_from,
    train,
    write_scene,
)
from fieldwatch import Checkpoints, Guard
from fieldwatch.recon.pipelines.normals import recovery
from fieldwatch.recon.pipelines.normals.presets import PRESETS as NORMALS
from fieldwatch.recon.pipelines.splats.presets import PRESETS as SPLATS
from fieldwatch.recon.pipelines.video.presets import PRESETS as VIDEO
from fieldwatch.record import read_events, read_history

ROUNDED = {"splats-planar": 5e-4, "splats-sugar": 5e-4, "splats-mcmc": 5e-4}
"""Largest difference of losses between CPU and device where the CPU renders with its own kernels."""
ENDING = {"splats-planar": {".ply", ".png"}, "normals": {".ply", ".png"}, "video": set()}
"""Trainings that go on to their end, and the types of their products."""


@pytest.fixture
def fake_cuda(fake_cuda):
    """The device, on which kernels were tried."""
    return share_trials(fake_cuda)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Folders of photos and of frames."""
    folder = tmp_path_factory.mktemp("data")
    return write_scene(folder), draw_frames(folder / "frames")


@pytest.fixture(scope="module")
def trained():
    """Trainings until `STOP`, by name, which several tests compare with."""
    return {}


@pytest.fixture
def whole(fake_cuda, data, trained, tmp_path_factory):
    """Return a training until `STOP` on the device."""

    def of(name):
        if name not in trained:
            trained[name] = train(RUNS[name](*data), tmp_path_factory.mktemp("whole") / "run", stop=STOP)
        return trained[name]

    return of


@pytest.fixture
def on_cpu(data, trained, tmp_path_factory):
    """Return a training until `STOP` on the CPU."""

    def of(name):
        if (name, "cpu") not in trained:
            folder = tmp_path_factory.mktemp("cpu") / "run"
            trained[name, "cpu"] = train(RUNS[name](*data), folder, device="cpu", stop=STOP)
        return trained[name, "cpu"]

    return of


def assert_counts_as_recorded(training: Training, name: str) -> None:
    # The file is written anew when a number falls: python tests/fake_cuda/count_steps.py
    recorded = json.loads(COUNTS.read_text())[name]
    # The number of samples, and with it that of launches, depends on last bits, which differ between processors.
    launches = pytest.approx(recorded["launches"], rel=0.02, abs=MORE_LAUNCHES)
    assert training.steady_counts() == recorded | {"launches": launches}


def assert_same_state(one: Training, other: Training) -> None:
    wanted = other.weights()
    for path, tensor in one.weights().items():
        assert torch.equal(tensor, wanted[path]), path


@pytest.mark.parametrize("name", RUNS)
def test_a_run_on_the_device_is_that_on_the_cpu_has_the_same_bits_after_a_kill_and_in_any_order_and_ends(  # noqa: PLR0917  fixtures
    fake_cuda, name, data, on_cpu, whole, tmp_path
):
    words = RUNS[name](*data)
    on_cpu = on_cpu(name)
    whole = whole(name)
    # Each kind of kernel rounds in its own way, and training amplifies it.
    assert on_cpu.optimizers == whole.optimizers
    rounding = ROUNDED.get(name, 1e-5) if fake_cuda.counts else 0.02
    assert whole.losses[:9] == pytest.approx(on_cpu.losses[:9], rel=rounding)
    if fake_cuda.counts:
        assert_counts_as_recorded(whole, name)

    # A GPU repeats to the bit only with deterministic algorithms; the pretended one computes on the CPU.
    more = [] if fake_cuda.counts else ["--deterministic"]
    whole = train([*words, *more], tmp_path / "repeating", stop=STOP) if more else whole
    if fake_cuda.counts:
        fake_cuda.emulator.order = REVERSE
    first = train([*words, *more], tmp_path / "run", stop=4)
    if fake_cuda.counts:
        fake_cuda.emulator.order = SHUFFLED
    second = train([*words, *more], tmp_path / "run", stop=STOP)
    assert first.losses + second.losses == whole.losses
    assert_same_state(second, whole)
    if fake_cuda.counts and name in SURFACE:
        later = train(words, tmp_path / "run", stop=SURFACE_STOP)
        assert_counts_as_recorded(later, SURFACE[name])
    if name in ENDING:
        ended = train([*words, *more], tmp_path / "run")
        on_cpu = train(words, on_cpu.folder, device="cpu")
        assert np.mean(ended.losses[-5:]) == pytest.approx(np.mean(on_cpu.losses[-5:]), rel=0.05)
        assert json.loads((tmp_path / "run" / "run.json").read_text())["state"] == "finished"
        written = {path.suffix for path in (tmp_path / "run" / "products").glob("*")}
        assert written >= ENDING[name]


@pytest.fixture
def hasty(monkeypatch):
    """Runs go back after two refused updates instead of five or ten."""
    for pipeline in ("splats", "video"):
        monkeypatch.setattr(f"fieldwatch.recon.pipelines.{pipeline}.start.Guard", partial(Guard, max_refusals=2))
    monkeypatch.setattr(recovery, "REFUSED", 2)
    monkeypatch.setattr(recovery, "JUDGE_EVERY_ON_GPU", 1)


def assert_goes_on(fake_cuda, words: list[str], folder) -> Training:
    """Train to step 1, resume, restart from the checkpoint before, and go back; return the first steps."""
    first = train(words, folder, stop=1)
    resumed = train(words, folder, stop=3)
    # The process ends without a last checkpoint, and is started again.
    saved = Checkpoints(folder / "checkpoints")
    shutil.rmtree(saved.find(4).path)
    began = saved.steps()[-1]
    assert began in {2, 3}
    restarted = train(words, folder, stop=8, at_step=refused_from(5, count=2))
    if fake_cuda.counts:  # a GPU repeats to the bit only with deterministic algorithms
        repeated = resumed.losses[began - 2 :]
        assert restarted.losses[: len(repeated)] == repeated
    assert np.isfinite(first.losses + resumed.losses + restarted.losses).all()
    (event,) = [event for event in read_events(folder) if event["kind"] == "rolled_back"]
    assert event["to"] <= 5 < event["from"]
    return first


@pytest.mark.parametrize("name", PRESET_RUNS)
def test_every_preset_begins_as_on_the_cpu_is_resumed_restarted_and_goes_back(fake_cuda, hasty, name, data, tmp_path):
    words = PRESET_RUNS[name](*data)
    on_cpu = train(words, tmp_path / "cpu", device="cpu", stop=1)
    first = assert_goes_on(fake_cuda, words, tmp_path / "cuda")
    assert first.losses == pytest.approx(on_cpu.losses, rel=1e-3)


def test_terms_that_compare_views_act_on_the_device_and_go_on_after_a_kill(fake_cuda, hasty, data, tmp_path):
    words = [*PRESET_RUNS["splats rooms"](*data), "--multi-view-from", "0"]
    on_cpu = train(words, tmp_path / "cpu", device="cpu", stop=1)
    first = assert_goes_on(fake_cuda, words, tmp_path / "cuda")
    # The pixels of these terms are drawn on the device.
    assert first.losses == pytest.approx(on_cpu.losses, rel=1e-2)
    recorded = read_history(tmp_path / "cpu")
    for term in ("multi_view_depth", "multi_view_photo"):
        assert recorded[f"Loss/component_{term}"].values[0] > 0


def settings(config, prefix=""):
    """Return all settings of a config by path."""
    found = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            found |= settings(value, f"{prefix}{field.name}.")
        else:
            found[prefix + field.name] = value
    return found


def test_presets_that_are_not_trained_differ_in_sizes_and_lengths_only():
    presets = {"splats": SPLATS, "normals": NORMALS, "video": VIDEO}
    made = {f"{kind} {name}": settings(make()) for kind, several in presets.items() for name, make in several.items()}
    assert made.keys() == PRESET_RUNS.keys() | OTHER_NUMBERS.keys()
    for name, (like, differing) in OTHER_NUMBERS.items():
        assert like in PRESET_RUNS
        assert {path for path, value in made[name].items() if value != made[like][path]} == differing, name


@pytest.mark.pretended
@pytest.mark.parametrize("first", [11, 12])
def test_a_surface_of_which_updates_are_refused_goes_back_before_the_run_ends(
    fake_cuda, first, data, tmp_path, monkeypatch
):
    """The steps at which a check every five, or every four steps has seen one refusal too few."""
    back = []
    restore = recovery.Recovery._restore
    monkeypatch.setattr(recovery.Recovery, "_restore", lambda own: back.append(own) or restore(own))
    # Ten refused updates in a row end the run.
    train(PRESET_RUNS["normals poses"](*data), tmp_path, stop=22, at_step=refused_from(first, until=lambda: bool(back)))
    (event,) = [event for event in read_events(tmp_path) if event["kind"] == "rolled_back"]
    assert event["from"] - first <= 9


@pytest.mark.pretended
@pytest.mark.parametrize("name", LATE_RUNS)
def test_later_steps_launch_as_many_kernels_as_recorded_and_add_in_order(fake_cuda, name, data, tmp_path):
    training = train(LATE_RUNS[name](*data), tmp_path / "run", stop=SURFACE_STOP)
    assert np.isfinite(training.losses).all()
    assert_counts_as_recorded(training, name)


@pytest.mark.parametrize("name", ["splats-sugar", "normals-poses", "video-hnerv"])
def test_a_deterministic_run_uses_nothing_that_may_not_repeat(fake_cuda, name, data, tmp_path):
    steps = train([*RUNS[name](*data), "--deterministic"], tmp_path / "run", stop=STOP).steps
    assert sum(step.unordered.total() for step in steps) == 0
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_run_of_which_ten_updates_are_refused_goes_back_on_the_device(fake_cuda, data, tmp_path):
    gone_back = train(RUNS["splats-planar"](*data), tmp_path / "run", stop=17, at_step=refused_from(7))
    (event,) = [event for event in read_events(tmp_path / "run") if event["kind"] == "rolled_back"]
    assert event["to"] < 7
    assert np.isfinite(gone_back.losses).all()
    assert len(gone_back.losses) > 18


@pytest.mark.pretended
@pytest.mark.parametrize("name", ["splats-planar", "normals", "video"])
def test_a_step_that_runs_out_of_memory_is_repeated_in_parts(fake_cuda, name, data, whole, tmp_path):
    words = RUNS[name](*data)

    def exhaust(step, _):
        if step.index == 3:
            # In the next step, before its update: those of video are longer.
            fake_cuda.run_out_of_memory(after=40 if name == "video" else 20)

    run = train(words, tmp_path / "run", stop=6, at_step=exhaust)
    kinds = [event["kind"] for event in read_events(tmp_path / "run")]
    assert "out_of_memory" in kinds
    # The rays of a part are marched with those of the part only: sums are rounded differently.
    assert run.losses == pytest.approx(whole(name).losses[:7], rel=2e-2)


def test_a_mesh_is_refined_on_the_device(fake_cuda, data, benchmark, tmp_path):
    train(RUNS["splats-planar"](*data), tmp_path / "run", device="cpu", stop=4)
    sphere = benchmark("identical_runs").write_sphere(tmp_path / "sphere.obj")
    words = "--iterations 16 --degree 1 --test-iterations 12 --checkpoint-interval 5 --turntable 0"
    words = ["mesh", "refine", str(tmp_path / "run"), str(sphere), *words.split(), "--first-colors", "vertices"]
    on_cpu = train(words, tmp_path / "cpu", device="cpu", stop=9)
    whole = train(words, tmp_path / "whole", stop=9)
    assert whole.losses == pytest.approx(on_cpu.losses, rel=1e-2)
    train(words, tmp_path / "refined", stop=5)
    again = train(words, tmp_path / "refined", stop=9)
    saved = Checkpoints(tmp_path / "refined" / "checkpoints")
    # The process ends without its last checkpoint, and is started again.
    shutil.rmtree(saved.find(saved.steps()[-1]).path)
    restarted = train(words, tmp_path / "refined", stop=9)
    if fake_cuda.counts:
        assert_same_state(again, whole)
        assert_same_state(restarted, whole)


@pytest.mark.pretended
@pytest.mark.filterwarnings("ignore:the state is of 1 CUDA devices:RuntimeWarning")
@pytest.mark.parametrize("name", ["splats-planar", "normals"])
def test_a_run_goes_on_when_the_gpu_comes_and_goes(name, data, on_cpu, tmp_path):
    words = RUNS[name](*data)
    with stored_as_tensors():
        before = train(words, tmp_path / "run", device="auto", stop=3)
        with pretended_gpu() as device:
            share_trials(device)
            on_gpu = train(words, tmp_path / "run", device="auto", stop=6)
        again = train(words, tmp_path / "run", device="auto", stop=9)
    losses = [*before.losses, *on_gpu.losses, *again.losses]
    assert losses == pytest.approx(on_cpu(name).losses, rel=1e-2)
