"""Draws the README's picture: python docs/pictures/make.py RUN, with the folder that `make demo` printed."""

import sys
from pathlib import Path

from PIL import Image

from fieldwatch.pipelines.video import evaluate, open_run
from fieldwatch.pipelines.video.show import worst_frame


def main() -> None:
    """Draw the worst held-out frame: truth, prediction, error."""
    stored = open_run(Path(sys.argv[1]), "last")
    evaluation = evaluate(stored.model, stored.scene)
    picture = worst_frame(stored.scene, "held-out", evaluation.parts["val"])
    Image.fromarray(picture).save(Path(__file__).with_name("demo.png"))


if __name__ == "__main__":
    main()
