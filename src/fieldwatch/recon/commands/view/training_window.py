"""The window of a training: between two steps it draws the model if somebody looks, and it can pause the training."""

import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import torch

from fieldwatch import History, Run, follow, preserve_random_state
from fieldwatch.pipeline import Outcome, RunChoices
from fieldwatch.recon.commands.view.scene import ViewedScene
from fieldwatch.recon.commands.view.window import BrowserWindow, Picture
from fieldwatch.recon.geometry import Camera, quaternion_to_matrix

NOTHING: Final = "nothing"
WORST: Final = "the worst: highest loss"
MOST_PIXELS: Final = 1600
MOST_LOSSLESS: Final = 1 << 18
"""Size in bytes up to which a picture is sent as it is."""
SHARE: Final = 0.1
"""Fraction of the time that drawing takes at most while the view does not move; a view that moves takes half."""
_BRIGHTER: Final = 3.0
"""Factor of the difference between what was wanted and what is drawn."""
_LONGEST_WAIT: Final = 10.0
_SHORTEST_WAIT: Final = 0.1
_SLEEP: Final = 0.03


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """What is drawn in the window of a training.

    Attributes:
        draw: function from a camera in the world and one of the window's modes to a picture.
        compare: function from the index of a photo to a picture of it, the drawn one, and their difference.
    """

    draw: Callable[[Camera, str], Picture]
    compare: Callable[[int], Picture]


@dataclass(frozen=True, kw_only=True)
class ShownTraining:
    """A training with a window, as `Job.window` returns it.

    Attributes:
        address: address of the window.
        train: function of a folder and the choices of a run.
    """

    address: str
    train: Callable[[Path, RunChoices], Outcome[Any]]


class TrainingWindow:
    """The window of a training. Close it with :meth:`close`, or use it as a context manager.

    The training calls :meth:`after_step` at the end of each step. While no browser is connected, that takes a few
    microseconds. Drawing computes no gradients and restores all random states: the training computes the same numbers
    with and without a window.

    Args:
        scene: scene with the cameras of the training, and without Gaussians or a mesh.
        modes: ways to draw, the first one at first.
        photos: names of the photos to compare with.
        port: port; another free one is taken if it is in use.
        across: width of a drawn picture at first, pixels.

    Raises:
        InputError: viser is not installed, or the port is out of bounds.
    """

    def __init__(
        self,
        scene: ViewedScene,
        *,
        modes: Sequence[str],
        photos: Sequence[str] = (),
        port: int = 8080,
        across: int = 480,
    ) -> None:
        self._window = BrowserWindow(scene, port=port)
        gui = self._window.server.gui
        self._status = gui.add_markdown("")
        self._mode = gui.add_dropdown("Show", tuple(modes), initial_value=modes[0])
        self._across = gui.add_slider("Pixels across", min=64, max=MOST_PIXELS, step=16, initial_value=across)
        self._photos = tuple(photos)
        self._photo = gui.add_dropdown("Compare with", (NOTHING, WORST, *self._photos), initial_value=NOTHING)
        self._comparison: Any = None
        self._pause = gui.add_button("Pause")
        self._step = gui.add_button("One step", disabled=True)
        self._paused = threading.Event()
        self._one_step = threading.Event()
        self._pause.on_click(lambda _: self._set_paused(paused=not self._paused.is_set()))
        self._step.on_click(lambda _: self._one_step.set())
        # What was drawn last, when, and how long it took.
        self._drawn: dict[int, tuple[object, ...]] = {}
        self._at = -math.inf
        self._cost = 0.0
        self._failed = False
        # The record of the run, read only while somebody looks at the worst photo.
        self._follower: Any = None
        self._history = History()

    @property
    def address(self) -> str:
        """Address to open in a browser on this machine."""
        return self._window.address

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server."""
        self._window.close()

    def after_step(self, run: Run, drawing: Drawing) -> None:
        """Draw the model if somebody looks and it is time to; wait while the training is paused.

        Args:
            run: run of the training, in a step.
            drawing: how to draw its model.
        """
        # Also true of a browser that was closed during a pause: the training goes on.
        if self._failed or not (clients := self._window.server.get_clients()):
            return
        self._show(run, drawing, clients)
        if not self._paused.is_set():
            return
        # A signal ends the pause, and then the run, which saves its state.
        while self._paused.is_set() and not self._one_step.is_set() and not run.stop_point.signal:
            # A pause is no hang.
            run.stop_point("a pause")
            time.sleep(_SLEEP)
            clients = self._window.server.get_clients()
            if not clients:
                self._set_paused(paused=False)
            self._show(run, drawing, clients)
        # Only now: a click during the step or its drawing counts, too.
        self._one_step.clear()

    def _set_paused(self, *, paused: bool) -> None:
        self._one_step.clear()
        (self._paused.set if paused else self._paused.clear)()
        self._pause.label = "Go on" if paused else "Pause"
        self._step.disabled = not paused

    def _show(self, run: Run, drawing: Drawing, clients: dict[int, Any]) -> None:
        """Draw for every browser whose picture is out of date."""
        try:
            waited = time.perf_counter() - self._at
            for number, client in clients.items():
                wanted = (client.camera.update_timestamp, self._mode.value, self._across.value, self._photo.value)
                before = self._drawn.get(number)
                moved = before is None or before[:-1] != wanted
                if moved or before != (*wanted, run.step_index):
                    wait = self._cost if moved else min(self._cost / SHARE, _LONGEST_WAIT)
                    if waited >= max(wait, _SHORTEST_WAIT):
                        self._draw(run, drawing, client)
                        self._drawn[number] = (*wanted, run.step_index)
        # Out of memory, or a connection that broke.
        except Exception:  # noqa: BLE001  code of strangers (viser): printed; it must not end the training
            self._failed = True
            sys.stderr.write(f"fieldwatch: the window ended, and the training goes on:\n{traceback.format_exc()}")

    def _draw(self, run: Run, drawing: Drawing, client: Any) -> None:
        began = time.perf_counter()
        camera = camera_of(client.camera, int(self._across.value))
        compared = self._compared(run)
        with torch.no_grad(), preserve_random_state():
            picture = drawing.draw(camera, self._mode.value)
            comparison = None if compared is None else drawing.compare(compared)
        # The browser enlarges small pictures, and the blocks of JPEG with them.
        lossless = picture.nbytes <= MOST_LOSSLESS
        client.scene.set_background_image(picture, format="png" if lossless else "jpeg", jpeg_quality=80)
        self._compare(comparison)
        self._at = time.perf_counter()
        self._cost = self._at - began
        paused = ", paused" if self._paused.is_set() else ""
        name = "" if compared is None else f"; compared with {self._photos[compared]}"
        self._status.content = f"step {run.step_index:,}{paused}; drawn in {1e3 * self._cost:.0f} ms{name}"

    def _compared(self, run: Run) -> int | None:
        """Return the index of the photo to compare with; None for none, and while no loss of a photo is recorded."""
        chosen = self._photo.value
        if chosen in self._photos:
            return self._photos.index(chosen)
        if chosen == NOTHING:
            return None
        self._follower = self._follower or follow(run.folder)
        self._follower.poll().apply_to(self._history)
        losses = self._history.sample_losses()
        last = {name: float(losses[name].values[-1]) for name in self._photos if name in losses}
        # NaN compares with nothing, and is the worst of all.
        worst = max(last, key=lambda name: math.inf if math.isnan(last[name]) else last[name], default=None)
        return None if worst is None else self._photos.index(worst)

    def _compare(self, comparison: Picture | None) -> None:
        if self._comparison is not None and comparison is None:
            self._comparison.remove()
            self._comparison = None
        elif self._comparison is not None:
            self._comparison.image = comparison
        elif comparison is not None:
            self._comparison = self._window.server.gui.add_image(comparison, label="Comparison")


def beside(wanted: Picture, drawn: Picture) -> Picture:
    """Return what was wanted, what is drawn, and their difference, three times as bright."""
    difference = np.abs(wanted.astype(np.float32) - drawn).mean(-1, keepdims=True)
    error = np.repeat(np.minimum(_BRIGHTER * difference, 255).astype(np.uint8), 3, axis=-1)
    return np.concatenate([wanted, drawn, error], axis=1)


def camera_of(view: Any, across: int) -> Camera:
    """Return a browser's view as a camera.

    Args:
        view: viser's camera, with axes as those of OpenCV.
        across: width of the picture, pixels.
    """
    height = min(max(round(across / max(float(view.aspect), 1e-3)), 16), 2 * MOST_PIXELS)
    focal = height / 2 / math.tan(float(view.fov) / 2)
    pose = torch.eye(4, dtype=torch.float64)
    pose[:3, :3] = quaternion_to_matrix(torch.from_numpy(np.asarray(view.wxyz, np.float64)))
    pose[:3, 3] = torch.from_numpy(np.asarray(view.position, np.float64))
    return Camera(
        name="window",
        width=across,
        height=height,
        fx=focal,
        fy=focal,
        cx=across / 2,
        cy=height / 2,
        world_from_camera=pose,
    )
