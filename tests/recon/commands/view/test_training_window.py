"""The window of a training: it draws what somebody looks at, it pauses and steps, and it changes no number."""

import itertools
import signal
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fieldwatch import Checkpoints, InputError, Interrupted, Run, Terms
from fieldwatch.cli import main
from fieldwatch.recon.mesh import Triangles, write_mesh
from ports import free_port
from small_products import small_products

viser = pytest.importorskip("viser", reason="no viser here: pip install 'fieldwatch[viewer]'")

from fieldwatch.recon.commands.view import training_window  # noqa: E402  needs viser
from fieldwatch.recon.commands.view.scene import ViewedScene  # noqa: E402  needs viser
from fieldwatch.recon.commands.view.training_window import WORST, Drawing, TrainingWindow, camera_of  # noqa: E402

TINY = (
    "--views 6 --held-out 3 --coarse-iterations 15000 --schedule-scale 0.002 --device cpu --growth-cap 1500 "
    "--test-iterations 10000 --turntable 0 --threads 1 --prune-below 0.01 --no-doctor"
).split()

REFINE = "--device cpu --threads 1 --turntable 0 --iterations 6 --test-iterations 3 --degree 1 -g 3".split()
NORMALS = (
    "--views 3 --size 24 --steps 8 --threads 1 --device cpu --levels 3 --first-levels 1 --base-resolution 4 "
    "--finest-resolution 12 --table-bits 10 --hidden 16 --grid-resolution 16 --rays 60 --mesh-resolution 12 "
    "--mesh-at 0 --evaluate-at 0 --turntable 0 --no-doctor"
).split()


class Browser:
    """Somebody who looks: a camera that moves with every look at it, and the pictures that arrived."""

    def __init__(self, *, moves=True):
        self.pictures = []
        self.moves = moves
        self.scene = SimpleNamespace(set_background_image=lambda picture, **_: self.pictures.append(picture))

    @property
    def camera(self):
        moment = time.time() if self.moves else 0.0
        pose = {"wxyz": np.array([0.0, 1.0, 0.0, 0.0]), "position": np.array([0.0, 0.0, 4.0])}
        return SimpleNamespace(update_timestamp=moment, fov=0.9, aspect=1.5, **pose)


@pytest.fixture
def port():
    return free_port()


@pytest.fixture
def watched(monkeypatch):
    browsers = {}
    monkeypatch.setattr(viser.ViserServer, "get_clients", lambda _: dict(browsers))
    return browsers


@pytest.fixture
def window(port):
    scene = ViewedScene(title="nothing", up=(0.0, 0.0, 1.0))
    with TrainingWindow(scene, modes=("gray", "noise"), photos=("a", "b"), port=port, across=64) as window:
        yield window


@pytest.fixture
def unhurried(monkeypatch):
    """A clock on which a second passes between two looks at it: steps are long enough for a picture of each."""
    seconds = itertools.count()
    clock = SimpleNamespace(perf_counter=lambda: float(next(seconds)), sleep=time.sleep)
    monkeypatch.setattr(training_window, "time", clock)


def noisy(camera, mode):
    """A careless drawing, which draws random numbers."""
    shape = (camera.height, camera.width, 3)
    return np.full(shape, 7, np.uint8) if mode == "gray" else (255 * torch.rand(shape)).byte().numpy()


DRAWING = Drawing(draw=noisy, compare=lambda index: np.full((4, 8, 3), index, np.uint8))


def items_of(folder):
    return flat(Checkpoints(folder / "checkpoints").read(max(Checkpoints(folder / "checkpoints").steps())))


def flat(value, name=""):
    if isinstance(value, dict):
        return {key: leaf for part, inner in value.items() for key, leaf in flat(inner, f"{name}/{part}").items()}
    if isinstance(value, list | tuple):
        return {key: leaf for at, inner in enumerate(value) for key, leaf in flat(inner, f"{name}/{at}").items()}
    return {name: value}


def same(one, other):
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(np.all(one == other))


def train_plain_and_seen(words, folder, port, watched):
    """Train without a window, then with one and somebody who looks; compare every item of the last checkpoints."""
    plain, seen = folder / "plain", folder / "seen"
    assert main([*words, "--out", str(plain)]) in (0, 1)
    watched[0] = Browser()
    assert main([*words, "--out", str(seen), "--viewer", "--viewer-port", str(port)]) in (0, 1)
    pictures = watched.pop(0).pictures
    assert len(pictures) > 2
    assert pictures[-1].std() > 1
    one, other = items_of(plain), items_of(seen)
    assert one.keys() == other.keys()
    assert [name for name in one if not same(one[name], other[name])] == []
    assert any("random_state" in name for name in one)
    return plain, pictures


@pytest.mark.usefixtures("unhurried")
def test_a_training_of_splats_and_its_refinement_have_the_same_state_with_a_window(tmp_path, port, watched):
    plain, pictures = train_plain_and_seen(["train", "splats", *TINY], tmp_path, port, watched)
    assert pictures[-1].shape == (160, 240, 3)
    corners = np.array([[-1.0, -1.0, 0.1], [1.0, -1.0, 0.1], [1.0, 1.0, 0.1], [-1.0, 1.0, 0.1]])
    plate = Triangles(vertices=corners, faces=np.array([[0, 1, 2], [0, 2, 3]]))
    mesh = write_mesh(tmp_path / "plate.ply", plate)
    refine = ["mesh", "refine", str(plain), str(mesh), *REFINE]
    train_plain_and_seen(refine, tmp_path / "refined", port, watched)


@pytest.mark.usefixtures("unhurried")
def test_a_training_of_normals_has_the_same_state_with_a_window(tmp_path, port, watched):
    with small_products():
        _, pictures = train_plain_and_seen(["train", "normals", *NORMALS], tmp_path, port, watched)
    assert pictures[-1].shape[1] == 96


@pytest.fixture
def steps(tmp_path, window):
    """Make steps with the window after each of them."""

    def steps(count, drawing=DRAWING):
        with Run(tmp_path / "run") as run:
            for step in run.steps(count):
                window.after_step(run, drawing)
                yield step.index

    return steps


def test_nobody_looks_and_a_step_costs_microseconds(window, watched, tmp_path):
    with Run(tmp_path) as run:
        before = time.thread_time()
        for _ in range(500):
            window.after_step(run, DRAWING)
        assert time.thread_time() - before < 0.25


def test_pictures_follow_mode_size_and_view_and_leave_random_states_alone(window, watched, steps):
    watched[0] = Browser()
    state = torch.random.get_rng_state()
    for _ in steps(2):
        window._mode.value = "noise"
        window._across.value = 96
        time.sleep(0.15 + window._cost)
    assert [picture.shape for picture in watched[0].pictures] == [(43, 64, 3), (64, 96, 3)]
    assert watched[0].pictures[0].std() == 0
    assert torch.equal(torch.random.get_rng_state(), state)
    assert "step 1" in window._status.content


def test_a_photo_is_compared_and_the_comparison_disappears(window, watched, steps):
    watched[0] = Browser()
    window._photo.value = "b"
    shown = []
    for _ in steps(2):
        shown.append(window._comparison is not None)
        window._photo.value = "nothing"
        time.sleep(0.15 + window._cost)
    assert shown == [True, False]


def test_the_photo_with_the_highest_loss_is_compared(window, watched, tmp_path):
    watched[0] = Browser()
    window._photo.value = WORST
    compared = []
    drawing = Drawing(draw=noisy, compare=lambda index: compared.append(index) or np.zeros((4, 8, 3), np.uint8))
    with Run(tmp_path) as run:
        for step in run.steps(200):
            # Photo "a" begins worse than "b", and ends better.
            loss = 1.0 if step.index % 2 else 2.0 - 0.01 * step.index
            step.observe(Terms(fit=(1.0, torch.tensor(loss))), sample="ab"[step.index % 2])
        deadline = time.monotonic() + 60
        # The record is written by another thread.
        while 1 not in compared and time.monotonic() < deadline:
            window.after_step(run, drawing)
            time.sleep(0.15)
    assert compared[-1] == 1
    assert window._status.content.endswith(" b")


def test_a_pause_waits_for_a_single_step_and_draws_a_view_that_stays_once(window, watched, steps):
    watched[0] = Browser(moves=False)
    window._set_paused(paused=True)
    threading.Timer(0.5, window._one_step.set).start()
    before = time.perf_counter()
    assert next(steps(2)) == 0
    assert time.perf_counter() - before > 0.4
    assert len(watched[0].pictures) == 1
    assert window._paused.is_set()
    assert not window._step.disabled


def test_a_click_on_one_step_during_the_step_counts(window, watched, steps):
    watched[0] = Browser()
    window._set_paused(paused=True)
    window._one_step.set()
    assert next(steps(2)) == 0
    assert not window._one_step.is_set()


def test_a_signal_ends_a_pause_and_the_run(window, watched, steps):
    watched[0] = Browser()
    window._set_paused(paused=True)
    threading.Timer(0.3, signal.raise_signal, [signal.SIGTERM]).start()
    with pytest.raises(Interrupted):
        list(steps(5))


def test_the_training_goes_on_when_nobody_looks_any_more(window, watched, steps):
    watched[0] = Browser()
    window._set_paused(paused=True)
    threading.Timer(0.3, watched.clear).start()
    assert list(steps(3)) == [0, 1, 2]
    assert not window._paused.is_set()


def test_a_drawing_that_fails_ends_the_window_and_not_the_training(watched, steps, capsys):
    watched[0] = Browser()

    def fail(_camera, _mode):
        raise RuntimeError("out of memory")

    assert list(steps(3, Drawing(draw=fail, compare=DRAWING.compare))) == [0, 1, 2]
    assert capsys.readouterr().err.count("Traceback") == 1


def test_a_view_of_the_browser_is_a_camera():
    camera = camera_of(Browser().camera, 120)
    assert (camera.width, camera.height) == (120, 80)
    assert camera.fy == pytest.approx(40 / np.tan(0.45))
    assert torch.allclose(camera.forward, torch.tensor([0.0, 0.0, -1.0], dtype=torch.float64))


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_does_not_exist_is_refused(port):
    with pytest.raises(InputError, match="port"):
        TrainingWindow(ViewedScene(title="a", up=(0.0, 0.0, 1.0)), modes=("a",), port=port)
