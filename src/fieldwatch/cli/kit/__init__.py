"""Public: what the commands of a pipeline are written with: errors, answers, flags, opening a run, training.

Importing it loads torch; the command line imports it with the command that was asked for.
"""

from fieldwatch.cli.compare_checkpoints import Compared, Row, Tell, refuse_none, stored_steps
from fieldwatch.cli.doctor_report import DataFinding, DataReport, MachineCheck
from fieldwatch.cli.ending import BadInput, print_json, print_places, reading_input
from fieldwatch.cli.flags import dashed, preset_of, renamed
from fieldwatch.cli.frame_progress import counting_frames
from fieldwatch.cli.opening import open_stored
from fieldwatch.cli.profiling import ProfileFlags, spelled_out
from fieldwatch.cli.run_flags import RunFlags, refuse_set
from fieldwatch.cli.training import EXTRA_SINKS, check_writable, train_and_tell
from fieldwatch.record import Terminal

__all__ = [
    "EXTRA_SINKS",
    "BadInput",
    "Compared",
    "DataFinding",
    "DataReport",
    "MachineCheck",
    "ProfileFlags",
    "Row",
    "RunFlags",
    "Tell",
    "Terminal",
    "check_writable",
    "counting_frames",
    "dashed",
    "open_stored",
    "preset_of",
    "print_json",
    "print_places",
    "reading_input",
    "refuse_none",
    "refuse_set",
    "renamed",
    "spelled_out",
    "stored_steps",
    "train_and_tell",
]
