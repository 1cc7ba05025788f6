"""The driver: submits attempts, evaluates their results, retries crashes, and keeps scenes independent."""

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
    """Current status of one scene, updated by the driver.

    Attributes:
        scene: planned scene.
        folder: run folder.
        console: file with the output of its processes.
        state: current state.
        attempts: attempts that have ended, including those of earlier driver runs.
        restarts: limiter of the restarts in this driver run; None before the first crash.
        live: progress of the run while it is trained.
        paths: input paths in its command.
        finished_earlier: whether an earlier driver run finished it.
        not_before: monotonic time before which it is not retried.
        began: time of the last submission, in seconds since 1970.
        starts: number of starts of the run at the last submission.
        printed: size of the console file at the last submission, in bytes.
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
        """Whether the scene is not finished yet."""
        return self.state in ("waiting", "queued", "running")


@final
class Driver:
    """Trains scenes, one run folder each, and resumes runs that already exist.

    Args:
        scenes: planned scenes.
        out: output folder of all scenes.
        executor: executor of the attempts.
        ledger: open ledger of the output folder.
        place: working directory of the processes.
        grace: time that a process has to save when it is stopped, in seconds.
        pause: delay before a retry, in seconds; doubled for each retry within an hour, up to one minute.
        program: arguments of `python` that precede ``train``.
    """

    def __init__(  # noqa: PLR0913  each is one setting for all scenes
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
        # Remove stop files of killed drivers.
        for stale in self.out.glob(".stop-*"):
            stale.unlink()
        # Use a file as stop signal, because tasks may run on other machines that share only the file system.
        self._stop_file = self.out / f".stop-{uuid.uuid4().hex[:12]}"
        self.statuses = [self._initial_status(scene, ledger.past.get(scene.name, SceneHistory())) for scene in scenes]
        self._by_name = {status.scene.name: status for status in self.statuses}

    def run(self, stop: Callable[[], bool], report: Callable[[Sequence[SceneStatus]], None]) -> None:
        """Train until every scene has finished, failed permanently or been stopped.

        Args:
            stop: polled periodically; once it returns True, all processes save and end.
            report: called periodically with the status of all scenes.
        """
        self._ledger.write("start", scenes=[status.scene.name for status in self.statuses])
        try:
            while any(status.open for status in self.statuses):
                # Create the stop file only once; the processes poll for it.
                if stop() and not self._stop_file.exists():
                    self._stop_all()
                self._submit_waiting()
                for task, result in self._executor.wait(_POLL_SECONDS):
                    self._finish_attempt(task, result)
                self._refresh()
                report(self.statuses)
            self._ledger.write("end", states={status.scene.name: status.state for status in self.statuses})
        finally:
            self._stop_file.touch()  # also on an exception: no training may continue without a driver
            self._executor.close()
            self._stop_file.unlink(missing_ok=True)

    def exit_code(self, *, strict: bool = False) -> int:
        """Return 0 if all scenes are healthy, 1 if some have errors (``strict``: or warnings), 3 if some failed."""
        unhealthy = {"findings", "warnings"} if strict else {"findings"}
        states = {status.state for status in self.statuses}
        return 3 if states & FAILED else 1 if states & unhealthy else 0

    def _initial_status(self, scene: PlannedScene, past: SceneHistory) -> SceneStatus:
        folder = output_path(self.out, scene.name)
        # If the run folder was deleted, the scene is trained again.
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
        # Write the ledger first: if the driver dies now, the next one knows that this attempt may be running.
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
                gpus=scene.gpus or 0.0,
                memory_bytes=round(scene.memory_gib * _GIBIBYTE),
                timeout=scene.timeout,
                grace=self._grace,
            )
        )

    def _finish_attempt(self, task: SceneTask, result: ProcessExit) -> None:
        """Record the result of an attempt, and schedule a retry if appropriate."""
        status = self._by_name[task.scene]
        status.live.refresh()
        state, death = judge(task, result, status.began, status.paths)
        start = last_start(status.folder)
        # A new segment in run.json means that this attempt got as far as opening its run.
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
            self._schedule_retry(status, passes=death.passes(at_start=not begun))

    def _schedule_retry(self, status: SceneStatus, *, passes: bool) -> None:
        """Schedule another attempt after a pause, unless the retries are used up.

        A transient cause does not use up a retry, but the number of restarts per hour is limited.

        Args:
            status: status of the scene whose last attempt crashed.
            passes: whether the cause is likely to be transient.
        """
        limit = status.scene.retries
        restarts = status.restarts = status.restarts or RestartLimiter(
            in_a_row=limit + 1, per_hour=max(limit, PER_HOUR), pause=self._pause
        )
        # progress=False: retries are limited even if each attempt gets further than the previous one.
        if (limit or passes) and not restarts.record_death(progress=False, passes=passes):
            status.not_before = time.monotonic() + restarts.next_pause()
            status.state = "waiting"

    def _refresh(self) -> None:
        for status in self.statuses:
            # The console file grows as soon as the executor starts the attempt, on any machine.
            if status.state == "queued" and _size(status.console) > status.printed:
                status.state = "running"
            if status.state == "running":
                status.live.refresh()

    def _stop_all(self) -> None:
        self._stop_file.touch()
        self._ledger.write("stop")
        # Running attempts change their state when their process has saved and ended.
        for status in self.statuses:
            if status.state == "waiting":
                status.state = "stopped"


def changed_scenes(scenes: Sequence[PlannedScene], past: Mapping[str, SceneHistory]) -> Mapping[str, tuple[str, str]]:
    """Return finished scenes whose arguments have changed: by name, the old and the new arguments."""
    known = {scene.name: (scene, past[scene.name].arguments) for scene in scenes if scene.name in past}
    return {
        name: (" ".join(arguments), " ".join((scene.pipeline, *scene.arguments)))
        for name, (scene, arguments) in known.items()
        if arguments and arguments != (scene.pipeline, *scene.arguments) and past[name].done
    }


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
