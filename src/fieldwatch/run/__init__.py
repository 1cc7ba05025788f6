"""Record, guard, checkpoint and resume a user-written training loop."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.run.choices import RunChoices, RunOptions, choose_device, run_options
    from fieldwatch.run.crash import leave_crash_outside
    from fieldwatch.run.device import Device
    from fieldwatch.run.ending import Interrupted
    from fieldwatch.run.evaluation import EvaluationBlock
    from fieldwatch.run.external_targets import ExternalTargets
    from fieldwatch.run.micro_batches import MicroBatches
    from fieldwatch.run.objective import StepOutput
    from fieldwatch.run.options import FAILURES, Declared, Guard, HangTimeout, Outputs, Saving
    from fieldwatch.run.outcome import HasMetrics, Outcome
    from fieldwatch.run.profile import Profile
    from fieldwatch.run.profiled_loop import ProfiledLoop, profile_tensors
    from fieldwatch.run.rank_group import RankLost
    from fieldwatch.run.ranks import Ranks, Shard
    from fieldwatch.run.retry import shortage_of
    from fieldwatch.run.run import Run
    from fieldwatch.run.sinks import Sinks, default_sinks
    from fieldwatch.run.start import check_folder
    from fieldwatch.run.step import Step
    from fieldwatch.run.watchdog import Watchdog

__all__ = [
    "FAILURES",
    "Declared",
    "Device",
    "EvaluationBlock",
    "ExternalTargets",
    "Guard",
    "HangTimeout",
    "HasMetrics",
    "Interrupted",
    "MicroBatches",
    "Outcome",
    "Outputs",
    "Profile",
    "ProfiledLoop",
    "RankLost",
    "Ranks",
    "Run",
    "RunChoices",
    "RunOptions",
    "Saving",
    "Shard",
    "Sinks",
    "Step",
    "StepOutput",
    "Watchdog",
    "check_folder",
    "choose_device",
    "default_sinks",
    "leave_crash_outside",
    "profile_tensors",
    "run_options",
    "shortage_of",
]

__getattr__, __dir__ = lazy_names(__name__)
