"""Every pipeline trains on the pretended device: from the start, after a kill, after going back, and to the end."""

import json

import numpy as np
import pytest
import torch

from fake_cuda.conftest import pretended_gpu, share_trials, stored_as_tensors
from fake_cuda.emulator import REVERSE, SHUFFLED
from fake_cuda.training import (
    COUNTS,
    LATE_RUNS,
    MORE_LAUNCHES,
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
from fieldwatch.record import read_events

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
def test_a_run_on_the_device_is_that_on_the_cpu_goes_on_after_a_kill_and_ends(  # noqa: PLR0917  fixtures
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
    first = train([*words, *more], tmp_path / "run", stop=4)
    second = train([*words, *more], tmp_path / "run", stop=STOP)
    assert first.losses + second.losses == whole.losses
    assert_same_state(second, whole)
    if fake_cuda.counts and name in SURFACE:
        later = train(words, tmp_path / "run", stop=SURFACE_STOP)
        assert_counts_as_recorded(later, SURFACE[name])
    if name in ENDING:
        ended = train([*words, *more], tmp_path / "run")
        on_cpu = train(words, tmp_path / "cpu", device="cpu")
        assert np.mean(ended.losses[-5:]) == pytest.approx(np.mean(on_cpu.losses[-5:]), rel=0.05)
        assert json.loads((tmp_path / "run" / "run.json").read_text())["state"] == "finished"
        written = {path.suffix for path in (tmp_path / "run" / "products").glob("*")}
        assert written >= ENDING[name]


@pytest.mark.parametrize("name", PRESET_RUNS)
def test_first_steps_of_other_presets_are_those_of_the_cpu(fake_cuda, name, data, tmp_path):
    words = PRESET_RUNS[name](*data)
    on_cpu, on_device = (train(words, tmp_path / device, device=device, stop=1) for device in ("cpu", "cuda"))
    assert on_device.losses == pytest.approx(on_cpu.losses, rel=1e-3)


@pytest.mark.pretended
@pytest.mark.parametrize("name", LATE_RUNS)
def test_later_steps_launch_as_many_kernels_as_recorded_and_add_in_order(fake_cuda, name, data, tmp_path):
    training = train(LATE_RUNS[name](*data), tmp_path / "run", stop=SURFACE_STOP)
    assert np.isfinite(training.losses).all()
    assert_counts_as_recorded(training, name)


@pytest.mark.pretended
@pytest.mark.parametrize(
    ("name", "order"), [("splats-planar", REVERSE), ("splats-planar", SHUFFLED), ("normals-poses", SHUFFLED)]
)
def test_runs_have_the_same_bits_in_any_order_of_blocks_and_threads(fake_cuda, name, order, data, whole, tmp_path):  # noqa: PLR0917
    whole = whole(name)
    words = RUNS[name](*data)
    fake_cuda.emulator.order = order
    train(words, tmp_path, stop=5)
    fake_cuda.emulator.order = order + 10  # and another one after a kill
    again = train(words, tmp_path, stop=STOP)
    assert again.losses == whole.losses[6:]
    assert_same_state(again, whole)


@pytest.mark.parametrize("name", ["splats-sugar", "normals-poses", "video-hnerv"])
def test_a_deterministic_run_uses_nothing_that_may_not_repeat(fake_cuda, name, data, tmp_path):
    steps = train([*RUNS[name](*data), "--deterministic"], tmp_path / "run", stop=STOP).steps
    assert sum(step.unordered.total() for step in steps) == 0
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(("name", "spoiled", "stop"), [("splats-planar", 7, 17), ("video", 9, 20)])
def test_a_diverged_run_goes_back_on_the_device(fake_cuda, name, spoiled, stop, data, tmp_path):  # noqa: PLR0917
    gone_back = train(RUNS[name](*data), tmp_path / "run", stop=stop, at_step=refused_from(spoiled))
    (event,) = [event for event in read_events(tmp_path / "run") if event["kind"] == "rolled_back"]
    assert event["to"] < spoiled
    assert np.isfinite(gone_back.losses).all()
    assert len(gone_back.losses) > stop + 1


@pytest.mark.pretended
@pytest.mark.parametrize("name", ["splats-planar", "normals", "video"])
def test_a_step_that_runs_out_of_memory_is_repeated_in_parts(fake_cuda, name, data, whole, tmp_path):
    words = RUNS[name](*data)

    def exhaust(step, _):
        if step.index == 3:
            fake_cuda.run_out_of_memory(after=40)  # in the next step, before its update

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
    if fake_cuda.counts:
        assert_same_state(again, whole)


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
