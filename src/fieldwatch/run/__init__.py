"""A run: somebody's own training loop, recorded, guarded, saved and resumed."""

from fieldwatch.run.choices import Device, RunChoices, choose_device
from fieldwatch.run.outcome import Measured, Outcome
from fieldwatch.run.profile import Profile
from fieldwatch.run.profiled_loop import ProfiledLoop, profile_tensors
from fieldwatch.run.run import Run
from fieldwatch.run.sinks import Sinks, default_sinks
from fieldwatch.run.start import Interrupted, check_folder
from fieldwatch.run.step import Step

__all__ = [
    "Device",
    "Interrupted",
    "Measured",
    "Outcome",
    "Profile",
    "ProfiledLoop",
    "Run",
    "RunChoices",
    "Sinks",
    "Step",
    "check_folder",
    "choose_device",
    "default_sinks",
    "profile_tensors",
]
