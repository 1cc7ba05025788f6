"""The driver: orders tries, judges how they ended, tries again what crashed, and lets no scene touch another."""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final

from fieldwatch.base import output_path
from fieldwatch.many.ledger import Ledger, Past
from fieldwatch.many.run_folder import Live, last_start
from fieldwatch.many.scene import Scene
from fieldwatch.many.task import Ended, Executor, Order
from fieldwatch.many.verdict import FAILED, State, Try, judge
from fieldwatch.monitor import PER_HOUR, NamedPaths, Restarts

_GIBIBYTE: Final = 2**30
_LOOK_EVERY: Final = 0.2


@dataclass(kw_only=True)
class Standing:
    """How one scene stands; the driver changes it.

    Attributes:
        scene: what it is about.
        folder: the run folder.
        console: file of what its processes printed.
        state: now.
        tries: those that ended, of earlier starts of the driver too.
        restarts: those of this start of the driver; None before the first crash.
        live: the run while it is trained.
        paths: the inputs that its command names.
        earlier: whether an earlier start of the driver finished it.
    """

    scene: Scene
    folder: Path
    console: Path
    state: State = "waiting"
    tries: list[Try] = field(default_factory=list[Try])
    restarts: Restarts | None = None
    live: Live
    paths: NamedPaths
    earlier: bool = False
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
        scenes: Sequence[Scene],
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
        for left in self.out.glob(".stop-*"):
            left.unlink()
        self._stop_file = self.out / f".stop-{uuid.uuid4().hex[:12]}"
        self.standings = [self._standing(scene, ledger.past.get(scene.name, Past())) for scene in scenes]
        self._by_name = {standing.scene.name: standing for standing in self.standings}

    def run(self, stop: Callable[[], bool], tell: Callable[[Sequence[Standing]], None]) -> None:
        """Train until every scene is done, has failed for good, or was told to stop.

        Args:
            stop: asked again and again; once it says so, all processes save and end.
            tell: called again and again with how all scenes stand.
        """
        self._ledger.write("start", scenes=[standing.scene.name for standing in self.standings])
        try:
            while any(standing.open for standing in self.standings):
                if stop() and not self._stop_file.exists():
                    self._stop_all()
                self._order_what_waits()
                for order, ended in self._executor.wait(_LOOK_EVERY):
                    self._take(order, ended)
                self._look()
                tell(self.standings)
            self._ledger.write("end", states={standing.scene.name: standing.state for standing in self.standings})
        finally:
            self._stop_file.touch()  # whatever ended this, nothing trains on unwatched
            self._executor.close()
            self._stop_file.unlink(missing_ok=True)

    def exit_code(self, *, strict: bool = False) -> int:
        """0 all finished without errors, 1 some with errors (``strict``: or warnings), 3 some failed."""
        counted = {"findings", "warnings"} if strict else {"findings"}
        states = {standing.state for standing in self.standings}
        return 3 if states & FAILED else 1 if states & counted else 0

    def _standing(self, scene: Scene, past: Past) -> Standing:
        folder = output_path(self.out, scene.name)
        done = past.done and last_start(folder) is not None
        return Standing(
            scene=scene,
            folder=folder,
            console=output_path(self.out, "console", f"{scene.name}.txt"),
            state=past.tries[-1].state if done else "waiting",
            tries=list(past.tries),
            live=Live(folder),
            paths=NamedPaths(scene.command(folder)),
            earlier=done,
        )

    def _order_what_waits(self) -> None:
        now = time.monotonic()
        for standing in self.standings:
            if standing.state == "waiting" and now >= standing.not_before and not self._stop_file.exists():
                self._order(standing)

    def _order(self, standing: Standing) -> None:
        scene = standing.scene
        number = len(standing.tries) + 1
        start = last_start(standing.folder)
        standing.starts = start[0] if start else 0
        standing.began = time.time()
        standing.printed = _size(standing.console)
        standing.paths.look()
        standing.state = "queued"
        self._ledger.began(scene, number)
        self._executor.start(
            Order(
                scene=scene.name,
                number=number,
                command=(*self._program, *scene.command(standing.folder)),
                folder=standing.folder,
                console=standing.console,
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

    def _take(self, order: Order, ended: Ended) -> None:
        """Note how a try ended, and decide what becomes of the scene."""
        standing = self._by_name[order.scene]
        standing.live.look()
        state, death = judge(order, ended, standing.began, standing.paths)
        start = last_start(standing.folder)
        begun = start is not None and start[0] > standing.starts
        one = Try(
            number=order.number,
            state=state,
            cause=death.detail,
            code=ended.code,
            seconds=round(ended.seconds, 3),
            first=start[1] if start is not None and begun else None,
            reached=standing.live.step,
        )
        standing.tries.append(one)
        self._ledger.ended(order.scene, one)
        standing.state = state
        if state == "crashed":
            self._try_again(standing, passes=death.passes(at_start=not begun))

    def _try_again(self, standing: Standing, *, passes: bool) -> None:
        """Order another try after a pause, if one is left; a cause that passes costs none, but each hour has its limit.

        Args:
            standing: of the scene; its last try crashed.
            passes: whether the cause is likely to pass.
        """
        limit = standing.scene.retries
        restarts = standing.restarts = standing.restarts or Restarts(
            in_a_row=limit + 1, per_hour=max(limit, PER_HOUR), pause=self._pause
        )
        if (limit or passes) and not restarts.died(progress=False, passes=passes):
            standing.not_before = time.monotonic() + restarts.restart()
            standing.state = "waiting"

    def _look(self) -> None:
        for standing in self.standings:
            if standing.state == "queued" and _size(standing.console) > standing.printed:
                standing.state = "running"
            if standing.state == "running":
                standing.live.look()

    def _stop_all(self) -> None:
        self._stop_file.touch()
        self._ledger.write("stop")
        for standing in self.standings:
            if standing.state == "waiting":
                standing.state = "stopped"


def changed_scenes(scenes: Sequence[Scene], past: Mapping[str, Past]) -> Mapping[str, tuple[str, str]]:
    """Scenes that were begun with other flags: by name, what was said then and what is said now."""
    known = {scene.name: (scene, past[scene.name].words) for scene in scenes if scene.name in past}
    return {
        name: (" ".join(words), " ".join((scene.pipeline, *scene.words)))
        for name, (scene, words) in known.items()
        if words and words != (scene.pipeline, *scene.words) and past[name].done
    }


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
