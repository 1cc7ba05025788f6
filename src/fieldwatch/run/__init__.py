"""Record, guard, checkpoint and resume a user-written training loop."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.run.choices import RunChoices, RunOptions, choose_device, run_options
    from fieldwatch.run.crash import leave_crash_outside
    from fieldwatch.run.determinism import deterministic_algorithms
    from fieldwatch.run.device import Device
    from fieldwatch.run.ending import Interrupted, ReplayEnded
    from fieldwatch.run.evaluation import EvaluationBlock
    from fieldwatch.run.external_targets import ExternalTargets
    from fieldwatch.run.machine import device_name, machine_facts
    from fieldwatch.run.micro_batches import MicroBatches
    from fieldwatch.run.objective import StepOutput
    from fieldwatch.run.observer import ObservedStep, Observer, observing
    from fieldwatch.run.options import FAILURES, Declared, Guard, HangTimeout, Outputs, Saving
    from fieldwatch.run.outcome import Outcome
    from fieldwatch.run.profile import Profile
    from fieldwatch.run.profiled_loop import profile_tensors
    from fieldwatch.run.rank_group import RankLost
    from fieldwatch.run.ranks import Ranks, Shard
    from fieldwatch.run.retry import shortage_of
    from fieldwatch.run.run import Run
    from fieldwatch.run.sinks import LOG_EVERY, Sinks, default_sinks, stored_log_interval
    from fieldwatch.run.start import check_folder
    from fieldwatch.run.step import Step
    from fieldwatch.run.tracked_objects import TrackedObjects
    from fieldwatch.run.watchdog import Watchdog

__all__ = [
    "FAILURES",
    "LOG_EVERY",
    "Declared",
    "Device",
    "EvaluationBlock",
    "ExternalTargets",
    "Guard",
    "HangTimeout",
    "Interrupted",
    "MicroBatches",
    "ObservedStep",
    "Observer",
    "Outcome",
    "Outputs",
    "Profile",
    "RankLost",
    "Ranks",
    "ReplayEnded",
    "Run",
    "RunChoices",
    "RunOptions",
    "Saving",
    "Shard",
    "Sinks",
    "Step",
    "StepOutput",
    "TrackedObjects",
    "Watchdog",
    "check_folder",
    "choose_device",
    "default_sinks",
    "deterministic_algorithms",
    "device_name",
    "leave_crash_outside",
    "machine_facts",
    "observing",
    "profile_tensors",
    "run_options",
    "shortage_of",
    "stored_log_interval",
]

__getattr__, __dir__ = lazy_names(__name__)
