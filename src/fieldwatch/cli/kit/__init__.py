"""Public: what the commands of a pipeline are written with: errors, answers, flags, opening a run, training.

Each name is imported at its first use: those of flags load no torch.
"""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.checkpoint import FolderLock
    from fieldwatch.cli.child_command import run_command
    from fieldwatch.cli.commands import flag_names
    from fieldwatch.cli.compare_checkpoints import (
        Announce,
        CheckpointRanking,
        CheckpointRow,
        refuse_empty_ranking,
        stored_steps,
    )
    from fieldwatch.cli.doctor_report import DataFinding, DataReport, MachineCheck
    from fieldwatch.cli.entry import main
    from fieldwatch.cli.flag_help import FlagGroups, read_flags
    from fieldwatch.cli.flags import dashed, preset_of, renamed
    from fieldwatch.cli.frame_progress import counting_frames
    from fieldwatch.cli.open_run import open_stored
    from fieldwatch.cli.output import BadInput, print_json, print_paths, reading_input
    from fieldwatch.cli.profiling import ProfileFlags, spelled_out
    from fieldwatch.cli.run_flags import RunFlags, refuse_set
    from fieldwatch.cli.train_flags import NewRunFlags, TrainingFlags, merged_groups
    from fieldwatch.cli.training import check_writable, train_and_report
    from fieldwatch.record import Terminal
    from fieldwatch.report.page import Panel, PanelKind, document, facts, points, table, write_page

__all__ = [
    "Announce",
    "BadInput",
    "CheckpointRanking",
    "CheckpointRow",
    "DataFinding",
    "DataReport",
    "FlagGroups",
    "FolderLock",
    "MachineCheck",
    "NewRunFlags",
    "Panel",
    "PanelKind",
    "ProfileFlags",
    "RunFlags",
    "Terminal",
    "TrainingFlags",
    "check_writable",
    "counting_frames",
    "dashed",
    "document",
    "facts",
    "flag_names",
    "main",
    "merged_groups",
    "open_stored",
    "points",
    "preset_of",
    "print_json",
    "print_paths",
    "read_flags",
    "reading_input",
    "refuse_empty_ranking",
    "refuse_set",
    "renamed",
    "run_command",
    "spelled_out",
    "stored_steps",
    "table",
    "train_and_report",
    "write_page",
]

__getattr__, __dir__ = lazy_names(__name__)
