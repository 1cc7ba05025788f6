"""A run: somebody's own training loop, recorded, guarded, saved and resumed."""

from fieldwatch.run.aside import FAILURES, Aside, Asides
from fieldwatch.run.attempts import Attempt, Attempts, Parts, shortage_of
from fieldwatch.run.choices import Device, RunChoices, choose_device
from fieldwatch.run.outcome import Measured, Outcome
from fieldwatch.run.profile import Profile
from fieldwatch.run.profiled_loop import ProfiledLoop, profile_tensors
from fieldwatch.run.rank_watch import RankLost
from fieldwatch.run.ranks import Ranks, Share
from fieldwatch.run.run import Run
from fieldwatch.run.sinks import Sinks, default_sinks
from fieldwatch.run.start import Interrupted, check_folder
from fieldwatch.run.step import Step
from fieldwatch.run.watchdog import HangTimeout, Watchdog

__all__ = [
    "FAILURES",
    "Aside",
    "Asides",
    "Attempt",
    "Attempts",
    "Device",
    "HangTimeout",
    "Interrupted",
    "Measured",
    "Outcome",
    "Parts",
    "Profile",
    "ProfiledLoop",
    "RankLost",
    "Ranks",
    "Run",
    "RunChoices",
    "Share",
    "Sinks",
    "Step",
    "Watchdog",
    "check_folder",
    "choose_device",
    "default_sinks",
    "profile_tensors",
    "shortage_of",
]
