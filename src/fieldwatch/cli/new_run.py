"""Where a training goes that was given no folder."""

from datetime import datetime
from pathlib import Path

from fieldwatch.cli.output import BadInput
from fieldwatch.run import Ranks


def new_run(pipeline: str) -> Path:
    """Where a run goes that was given no folder.

    Raises:
        BadInput: several processes train, and each would find a folder of its own.
    """
    if not Ranks.of_process().alone:
        raise BadInput("several processes train together: name their run folder with --out, for all the same one")
    return Path("runs") / pipeline / datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
