"""Train many scenes: run `fieldwatch train` in separate processes, on this machine or on Ray.

This package does not train by itself and does not import torch: a scene is a command line with resource requirements
and a number of retries.
"""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.many.attempt import run_task
    from fieldwatch.many.driver import Driver, SceneStatus, changed_scenes
    from fieldwatch.many.ledger import LEDGER, Ledger, OutInUse, SceneHistory, read_ledger
    from fieldwatch.many.on_ray import NoRay, RayExecutor
    from fieldwatch.many.page import scenes_account
    from fieldwatch.many.plan import PlanError, read_plan
    from fieldwatch.many.processes import ProcessExecutor
    from fieldwatch.many.run_folder import LiveProgress, RunSummary, read_run
    from fieldwatch.many.scene import PlannedScene
    from fieldwatch.many.summary import scene_summary, write_summary
    from fieldwatch.many.task import Capacity, Executor, ProcessExit, SceneTask, capacity_here
    from fieldwatch.many.verdict import SceneAttempt, State

__all__ = [
    "LEDGER",
    "Capacity",
    "Driver",
    "Executor",
    "Ledger",
    "LiveProgress",
    "NoRay",
    "OutInUse",
    "PlanError",
    "PlannedScene",
    "ProcessExecutor",
    "ProcessExit",
    "RayExecutor",
    "RunSummary",
    "SceneAttempt",
    "SceneHistory",
    "SceneStatus",
    "SceneTask",
    "State",
    "capacity_here",
    "changed_scenes",
    "read_ledger",
    "read_plan",
    "read_run",
    "run_task",
    "scene_summary",
    "scenes_account",
    "write_summary",
]

__getattr__, __dir__ = lazy_names(__name__)
