"""``fieldwatch train-many scenes.toml``: train several scenes, each in its own process, on Ray."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from fieldwatch.checkpoint import StopRequest
from fieldwatch.cli.flag_help import read_flags
from fieldwatch.cli.output import BadInput, print_json, print_paths, reading_input
from fieldwatch.cli.train_flags import TrainManyFlags
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


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = read_flags(TrainManyFlags, prog="fieldwatch train-many", arguments=arguments)
    console = Terminal(stderr=chosen.json)
    with reading_input():
        scenes = read_plan(chosen.plan, trainable())
    # Check every scene before the first one starts: a typo in the last table must not cost hours.
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
            # Checked under the ledger's lock, so that no other command can finish a scene in between.
            check_begun(scenes, out)
            executor = executor_for(chosen, scenes)
            scenes = [scene.with_gpus(executor.capacity().gpus) for scene in scenes]
            return train(chosen, Driver(scenes, out, executor, ledger, place=Path.cwd(), grace=chosen.grace), console)
    except (NoRay, OutInUse) as error:
        raise BadInput(str(error)) from error


def trainable() -> tuple[str, ...]:
    """Return the names of the pipelines that `fieldwatch train` can start."""
    return tuple(each.name for each in installed_pipelines() if not each.trained_by)


def train(chosen: TrainManyFlags, driver: Driver, console: Console) -> int:
    """Train all scenes, write the comparison, and print the results.

    Returns:
        0 if all finished; 1 if some have an error among their findings (with ``--strict`` also a warning); 3 if some
        failed; 130 or 143 if stopped by a signal.
    """
    with StopRequest() as stop, SceneReporter(console) as reporter:
        driver.run(lambda: stop.requested is not None, reporter)
        code = stop.exit_code or driver.exit_code(strict=chosen.strict)
    out = driver.out
    measured = {name: find_pipeline(name).measured for name in {status.scene.pipeline for status in driver.statuses}}
    files = write_summary(out, driver.statuses, measured, code)
    if chosen.json:
        summaries = [scene_summary(status, measured[status.scene.pipeline]) for status in driver.statuses]
        # The curves are only for the page, and too long for a script's output.
        without_curves = [{name: value for name, value in scene.items() if name != "curve"} for scene in summaries]
        print_json({"out": out, "exit_code": code, "scenes": without_curves, "files": dict(files)})
    reporter.print_summary(driver.statuses)
    print_paths(console, {"runs": out, **files, "events": out / "many.jsonl"})
    if stop.requested:
        console.print("stopped: every scene was saved; run the same command again to continue", soft_wrap=True)
    return code


def executor_for(chosen: TrainManyFlags, scenes: Sequence[PlannedScene]) -> Executor:
    """Return the executor for the scenes, after checking that each scene fits.

    Raises:
        BadInput: a scene needs more than the machine or cluster has.
        NoRay: Ray is not installed, or does not answer.
    """
    if chosen.ray == "off":
        gpus = len(read_machine(settle=0.0).gpus)
        executor: Executor = ProcessExecutor(capacity_here(chosen.cpus, gpus, psutil.virtual_memory().total))
    else:
        executor = RayExecutor(None if chosen.ray == "local" else chosen.ray, chosen.cpus)
    try:
        check_room(scenes, executor.capacity(), whole_gpus=chosen.ray == "off")
    except BadInput:
        # Otherwise a Ray instance that was started for this command would stay alive.
        executor.close()
        raise
    return executor


def planned(scene: PlannedScene, out: Path) -> dict[str, Any]:
    """Return the plan for one scene, as ``--dry-run --json`` prints it."""
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
