"""Many: more than one scene. Runs `fieldwatch train` in processes of their own, on this machine or on Ray.

Nothing is trained here and no torch is needed: a scene is a command line, resources, and a number of tries.
"""

from fieldwatch.many.attempt import attempt
from fieldwatch.many.driver import Driver, Standing, changed_scenes
from fieldwatch.many.ledger import LEDGER, Ledger, OutInUse, Past, read_ledger
from fieldwatch.many.on_ray import NoRay, RayExecutor
from fieldwatch.many.page import scenes_page
from fieldwatch.many.plan import PlanError, read_plan
from fieldwatch.many.processes import ProcessExecutor
from fieldwatch.many.run_folder import Live, RunSummary, read_run
from fieldwatch.many.scene import Scene
from fieldwatch.many.summary import scene_summary, write_summary
from fieldwatch.many.task import Capacity, Ended, Executor, Order, capacity_here
from fieldwatch.many.verdict import State, Try

__all__ = [
    "LEDGER",
    "Capacity",
    "Driver",
    "Ended",
    "Executor",
    "Ledger",
    "Live",
    "NoRay",
    "Order",
    "OutInUse",
    "Past",
    "PlanError",
    "ProcessExecutor",
    "RayExecutor",
    "RunSummary",
    "Scene",
    "Standing",
    "State",
    "Try",
    "attempt",
    "capacity_here",
    "changed_scenes",
    "read_ledger",
    "read_plan",
    "read_run",
    "scene_summary",
    "scenes_page",
    "write_summary",
]
