"""``fieldwatch train-many scenes.toml``: more than one scene, each in processes of its own, on Ray."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import tyro
from rich.console import Console

from fieldwatch.checkpoint import StopRequest
from fieldwatch.cli.flag_help import read_flags
from fieldwatch.cli.output import BadInput, print_json, print_paths, reading_input
from fieldwatch.cli.train_many_check import check_begun, check_room, check_scene
from fieldwatch.cli.train_many_view import SceneReporter, print_plan
from fieldwatch.many import (
    Driver,
    Executor,
    Ledger,
    NoRay,
    OutInUse,
    PlannedScene,
    ProcessExecutor,
    RayExecutor,
    capacity_here,
    read_plan,
    scene_summary,
    write_summary,
)
from fieldwatch.monitor import read_machine
from fieldwatch.record import Terminal
from fieldwatch.registry import find_pipeline, installed_pipelines


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Train many scenes: each in a run folder of its own, tried again after a crash, from its last checkpoint.

    Example: fieldwatch train-many examples/scenes.toml

    Example: fieldwatch train-many scenes.toml --ray 10.0.0.1:6379 --out /shared/runs/city

    The file has one [[scene]] each: name, pipeline, any flag of `fieldwatch train PIPELINE` as key = value, and cpus,
    gpus, memory (GiB), retries, timeout (s), env. [defaults] and [defaults.PIPELINE] hold for all. Everything is
    checked before anything starts. Ctrl-C, or a kill: all scenes save and end, and the same command goes on.

    Runs go to OUT/SCENE; OUT/report.html, summary.json and summary.csv compare them; OUT/console holds what they
    printed, OUT/many.jsonl what was done. Exit code: 0 all finished (warnings are
    shown), 1 some with an error among their findings (--strict: or a warning), 3 some failed, 130 stopped.
    """

    plan: tyro.conf.Positional[Path]
    """The TOML file that names the scenes."""
    out: Path | None = None
    """Folder of all runs; default runs/many/<name of the file>. What is finished there is not trained again."""
    ray: str = "local"
    """local: Ray on this machine alone. ADDRESS: a cluster that sees the same files. off: plain processes, no Ray."""
    cpus: int | None = None
    """Processors to use on this machine; all of them if left out."""
    grace: float = 120.0
    """Seconds a process has for saving when it is told to end."""
    dry_run: bool = False
    """Check everything, print the plan, and start nothing."""
    strict: bool = False
    """Exit with 1 for warnings, too."""
    json: bool = False
    """Print the outcome as JSON at the end, and nothing else on standard output."""


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = read_flags(Arguments, prog="fieldwatch train-many", arguments=arguments)
    console = Terminal(stderr=chosen.json)
    with reading_input():
        scenes = read_plan(chosen.plan, trainable())
    for scene in scenes:
        check_scene(scene)
    out = chosen.out or Path("runs") / "many" / chosen.plan.stem
    if chosen.dry_run:
        check_begun(scenes, out)
        print_plan(console, scenes, out)
        if chosen.json:
            print_json({"out": out, "scenes": [planned(scene, out) for scene in scenes]})
        return 0
    try:
        with reading_input(), Ledger(out) as ledger:
            check_begun(scenes, out)
            executor = executor_for(chosen, scenes)
            return train(chosen, Driver(scenes, out, executor, ledger, place=Path.cwd(), grace=chosen.grace), console)
    except (NoRay, OutInUse) as error:
        raise BadInput(str(error)) from error


def trainable() -> tuple[str, ...]:
    """Return the pipelines that `fieldwatch train` begins with."""
    return tuple(each.name for each in installed_pipelines() if not each.trained_by)


def train(chosen: Arguments, driver: Driver, console: Console) -> int:
    """Train, compare, and tell.

    Returns:
        0 all finished, 1 some with errors among their findings, or with warnings and ``--strict``, 3 some failed, 130
        or 143 when it was stopped.
    """
    with StopRequest() as stop, SceneReporter(console) as reporter:
        driver.run(lambda: stop.requested is not None, reporter)
        code = stop.exit_code or driver.exit_code(strict=chosen.strict)
    out = driver.out
    measured = {name: find_pipeline(name).measured for name in {status.scene.pipeline for status in driver.statuses}}
    files = write_summary(out, driver.statuses, measured, code)
    if chosen.json:
        summaries = [scene_summary(status, measured[status.scene.pipeline]) for status in driver.statuses]
        without_curves = [{name: value for name, value in scene.items() if name != "curve"} for scene in summaries]
        print_json({"out": out, "exit_code": code, "scenes": without_curves, "files": dict(files)})
    reporter.print_summary(driver.statuses)
    print_paths(console, {"runs": out, **files, "what was done": out / "many.jsonl"})
    if stop.requested:
        console.print("stopped: every scene was saved; the same command goes on", soft_wrap=True)
    return code


def executor_for(chosen: Arguments, scenes: Sequence[PlannedScene]) -> Executor:
    """Who tries the scenes; there has to be room for each.

    Raises:
        BadInput: a scene needs more than there is.
        NoRay: Ray is missing, or does not answer.
    """
    if chosen.ray == "off":
        gpus = len(read_machine().gpus) if any(scene.gpus for scene in scenes) else 0
        executor: Executor = ProcessExecutor(capacity_here(chosen.cpus, gpus, psutil.virtual_memory().total))
    else:
        executor = RayExecutor(None if chosen.ray == "local" else chosen.ray, chosen.cpus)
    try:
        check_room(scenes, executor.capacity(), whole_gpus=chosen.ray == "off")
    except BadInput:
        executor.close()
        raise
    return executor


def planned(scene: PlannedScene, out: Path) -> dict[str, Any]:
    """What would be done for one scene."""
    return {
        "scene": scene.name,
        "command": ["fieldwatch", *scene.command(out / scene.name)],
        "cpus": scene.cpus,
        "gpus": scene.gpus,
        "memory_gib": scene.memory_gib,
        "retries": scene.retries,
        "timeout": scene.timeout,
        "env": dict(scene.env),
    }
