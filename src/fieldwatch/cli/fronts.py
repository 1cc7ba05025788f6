"""Every pipeline that the commands know."""

from pathlib import Path
from typing import Any

from fieldwatch.cli.front import Front
from fieldwatch.cli.front_normals import NORMALS_FRONT
from fieldwatch.cli.front_refined import REFINED_FRONT
from fieldwatch.cli.front_splats import SPLATS_FRONT
from fieldwatch.cli.front_video import VIDEO_FRONT
from fieldwatch.cli.pipeline import by_pipeline

FRONTS: dict[str, Front[Any]] = {
    front.name: front for front in (VIDEO_FRONT, SPLATS_FRONT, REFINED_FRONT, NORMALS_FRONT)
}
"""By the name that run.json holds."""


def front_of(folder: Path) -> Front[Any]:
    """The pipeline that a run was trained by.

    Raises:
        BadInput: the folder holds no run, or one of a loop that no command knows.
    """
    return by_pipeline(folder, FRONTS)
