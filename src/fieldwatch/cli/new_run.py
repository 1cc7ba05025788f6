"""Default run folder of a training without ``--out``."""

import os
from datetime import datetime
from pathlib import Path

from fieldwatch.cli.output import BadInput


def new_run(pipeline: str) -> Path:
    """Return a new folder name, from pipeline and time.

    Raises:
        BadInput: several processes train together, and each would choose another folder.
    """
    # The same variables as in `Ranks.of_process`; importing it would load torch for every --help.
    if "RANK" in os.environ and "MASTER_ADDR" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise BadInput("several processes train together: give all of them the same run folder with --out")
    return Path("runs") / pipeline / datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
