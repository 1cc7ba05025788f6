"""Draws the pictures of README and docs: python docs/pictures/make.py VIDEO_RUN SPLATS_RUN.

The folders are those that `make demo` and `fieldwatch train splats` print.
"""

import sys
from pathlib import Path

from PIL import Image

from fieldwatch.pipelines import splats, video
from fieldwatch.pipelines.video.show import worst_frame

HERE = Path(__file__).parent


def draw_video(run: Path) -> None:
    """Draw the worst held-out frame: truth, prediction, error."""
    stored = video.open_run(run, "last")
    evaluation = video.evaluate(stored.model, stored.scene)
    picture = worst_frame(stored.scene, "held-out", evaluation.parts["val"])
    Image.fromarray(picture).save(HERE / "demo.png")


def draw_splats(run: Path) -> None:
    """Draw colour, depth and normals of some held-out views."""
    stored = splats.open_run(run, "last")
    splats.write_geometry(stored.model, stored.scene, HERE / "splats.png")


if __name__ == "__main__":
    draw_video(Path(sys.argv[1]))
    draw_splats(Path(sys.argv[2]))
