"""The driver: orders tries, judges how they ended, tries again what crashed, and lets no scene touch another."""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final

from fieldwatch.base import output_path
from fieldwatch.many.ledger import Ledger, SceneHistory
from fieldwatch.many.run_folder import LiveProgress, last_start
from fieldwatch.many.scene import PlannedScene
from fieldwatch.many.task import Executor, ProcessExit, SceneTask
from fieldwatch.many.verdict import FAILED, SceneAttempt, State, judge
from fieldwatch.monitor import PER_HOUR, InputPaths, RestartLimiter

_GIBIBYTE: Final = 2**30
_POLL_SECONDS: Final = 0.2


@dataclass(kw_only=True)
class SceneStatus:
    """How one scene stands; the driver changes it.

    Attributes:
        scene: what it is about.
        folder: the run folder.
        console: file of what its processes printed.
        state: now.
        attempts: those that ended, of earlier starts of the driver too.
        restarts: those of this start of the driver; None before the first crash.
        live: the run while it is trained.
        paths: the inputs that its command names.
        finished_earlier: whether an earlier start of the driver finished it.
    """

    scene: PlannedScene
    folder: Path
    console: Path
    state: State = "waiting"
    attempts: list[SceneAttempt] = field(default_factory=list[SceneAttempt])
    restarts: RestartLimiter | None = None
    live: LiveProgress
    paths: InputPaths
    finished_earlier: bool = False
    not_before: float = 0.0
    began: float = 0.0
    starts: int = 0
    printed: int = 0

    @property
    def open(self) -> bool:
        """Whether something is still to be done."""
        return self.state in ("waiting", "queued", "running")


@final
class Driver:
    """Trains scenes in a folder, one run folder each, and goes on with what it finds there.

    Args:
        scenes: the plan.
        out: the folder of all scenes.
        executor: who tries them.
        ledger: open.
        place: the folder in which their processes start.
        grace: seconds a process has for saving when it is told to end.
        pause: seconds before a scene is tried again; doubled each time within an hour, to a minute at most.
        program: words before ``train``; ``-m fieldwatch``.
    """

    def __init__(  # noqa: PLR0913  each is one decision about all scenes
        self,
        scenes: Sequence[PlannedScene],
        out: Path,
        executor: Executor,
        ledger: Ledger,
        *,
        place: Path,
        grace: float = 120.0,
        pause: float = 1.0,
        program: tuple[str, ...] = ("-m", "fieldwatch"),
    ) -> None:
        self.out = out.absolute()
        self._executor = executor
        self._ledger = ledger
        self._place = place
        self._grace = grace
        self._pause = pause
        self._program = program
        output_path(self.out, "console").mkdir(parents=True, exist_ok=True)
        # Left by a driver that was killed: a new one must not stop at once.
        for stale in self.out.glob(".stop-*"):
            stale.unlink()
        # A file, because tasks may run on other machines that share only the file system.
        self._stop_file = self.out / f".stop-{uuid.uuid4().hex[:12]}"
        self.statuses = [self._initial_status(scene, ledger.past.get(scene.name, SceneHistory())) for scene in scenes]
        self._by_name = {status.scene.name: status for status in self.statuses}

    def run(self, stop: Callable[[], bool], report: Callable[[Sequence[SceneStatus]], None]) -> None:
        """Train until every scene is done, has failed for good, or was told to stop.

        Args:
            stop: asked again and again; once it says so, all processes save and end.
            report: called again and again with how all scenes stand.
        """
        self._ledger.write("start", scenes=[status.scene.name for status in self.statuses])
        try:
            while any(status.open for status in self.statuses):
                # Touched once: the processes poll for it.
                if stop() and not self._stop_file.exists():
                    self._stop_all()
                self._submit_waiting()
                for task, result in self._executor.wait(_POLL_SECONDS):
                    self._finish_attempt(task, result)
                self._refresh()
                report(self.statuses)
            self._ledger.write("end", states={status.scene.name: status.state for status in self.statuses})
        finally:
            self._stop_file.touch()  # whatever ended this, nothing trains on unwatched
            self._executor.close()
            self._stop_file.unlink(missing_ok=True)

    def exit_code(self, *, strict: bool = False) -> int:
        """0 all finished without errors, 1 some with errors (``strict``: or warnings), 3 some failed."""
        counted = {"findings", "warnings"} if strict else {"findings"}
        states = {status.state for status in self.statuses}
        return 3 if states & FAILED else 1 if states & counted else 0

    def _initial_status(self, scene: PlannedScene, past: SceneHistory) -> SceneStatus:
        folder = output_path(self.out, scene.name)
        done = past.done and last_start(folder) is not None
        return SceneStatus(
            scene=scene,
            folder=folder,
            console=output_path(self.out, "console", f"{scene.name}.txt"),
            state=past.attempts[-1].state if done else "waiting",
            attempts=list(past.attempts),
            live=LiveProgress(folder),
            paths=InputPaths(scene.command(folder)),
            finished_earlier=done,
        )

    def _submit_waiting(self) -> None:
        now = time.monotonic()
        for status in self.statuses:
            if status.state == "waiting" and now >= status.not_before and not self._stop_file.exists():
                self._submit(status)

    def _submit(self, status: SceneStatus) -> None:
        scene = status.scene
        number = len(status.attempts) + 1
        start = last_start(status.folder)
        status.starts = start[0] if start else 0
        status.began = time.time()
        status.printed = _size(status.console)
        status.paths.refresh()
        status.state = "queued"
        self._ledger.began(scene, number)
        self._executor.submit(
            SceneTask(
                scene=scene.name,
                number=number,
                command=(*self._program, *scene.command(status.folder)),
                folder=status.folder,
                console=status.console,
                stop_file=self._stop_file,
                place=self._place,
                env=dict(scene.env),
                cpus=scene.cpus,
                gpus=scene.gpus,
                memory_bytes=round(scene.memory_gib * _GIBIBYTE),
                timeout=scene.timeout,
                grace=self._grace,
            )
        )

    def _finish_attempt(self, task: SceneTask, result: ProcessExit) -> None:
        """Note how a try ended, and decide what becomes of the scene."""
        status = self._by_name[task.scene]
        status.live.refresh()
        state, death = judge(task, result, status.began, status.paths)
        start = last_start(status.folder)
        # A new segment in run.json shows that this attempt got as far as opening its run.
        begun = start is not None and start[0] > status.starts
        attempt = SceneAttempt(
            number=task.number,
            state=state,
            cause=death.detail,
            code=result.code,
            seconds=round(result.seconds, 3),
            first=start[1] if start is not None and begun else None,
            reached=status.live.step,
        )
        status.attempts.append(attempt)
        self._ledger.ended(task.scene, attempt)
        status.state = state
        if state == "crashed":
            self._try_again(status, passes=death.passes(at_start=not begun))

    def _try_again(self, status: SceneStatus, *, passes: bool) -> None:
        """Order another try after a pause, if one is left; a cause that passes costs none, but each hour has its limit.

        Args:
            status: of the scene; its last try crashed.
            passes: whether the cause is likely to pass.
        """
        limit = status.scene.retries
        restarts = status.restarts = status.restarts or RestartLimiter(
            in_a_row=limit + 1, per_hour=max(limit, PER_HOUR), pause=self._pause
        )
        # progress=False: retries of a scene are limited even if each attempt gets further.
        if (limit or passes) and not restarts.record_death(progress=False, passes=passes):
            status.not_before = time.monotonic() + restarts.next_pause()
            status.state = "waiting"

    def _refresh(self) -> None:
        for status in self.statuses:
            # The console file grows as soon as an executor starts the attempt, wherever that is.
            if status.state == "queued" and _size(status.console) > status.printed:
                status.state = "running"
            if status.state == "running":
                status.live.refresh()

    def _stop_all(self) -> None:
        self._stop_file.touch()
        self._ledger.write("stop")
        for status in self.statuses:
            if status.state == "waiting":
                status.state = "stopped"


def changed_scenes(scenes: Sequence[PlannedScene], past: Mapping[str, SceneHistory]) -> Mapping[str, tuple[str, str]]:
    """Scenes that were begun with other flags: by name, what was said then and what is said now."""
    known = {scene.name: (scene, past[scene.name].arguments) for scene in scenes if scene.name in past}
    return {
        name: (" ".join(words), " ".join((scene.pipeline, *scene.arguments)))
        for name, (scene, words) in known.items()
        if words and words != (scene.pipeline, *scene.arguments) and past[name].done
    }


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
