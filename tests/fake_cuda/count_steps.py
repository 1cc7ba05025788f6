"""Count what a steady step of each training does on the pretended device, and write it to `counts.json`.

    python tests/fake_cuda/count_steps.py

The numbers may only fall: the command keeps a lower one, and refuses one that is higher by more than a step varies.
"""

import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

from fake_cuda.conftest import pretended_gpu
from fake_cuda.training import (
    COUNTS,
    LATE_RUNS,
    MORE_LAUNCHES,
    RUNS,
    STOP,
    SURFACE,
    SURFACE_STOP,
    draw_frames,
    train,
    write_scene,
)


def main() -> int:
    """Count, compare, write; return 1 if a number rose."""
    recorded = json.loads(COUNTS.read_text()) if COUNTS.is_file() else {}
    counted: dict[str, dict[str, int]] = {}
    with tempfile.TemporaryDirectory() as place, mock.patch.dict("os.environ", {"XDG_STATE_HOME": place}):
        folder = Path(place)
        scene, frames = write_scene(folder), draw_frames(folder / "frames")
        for name, words in RUNS.items():
            with pretended_gpu(), contextlib.redirect_stdout(io.StringIO()):
                counted[name] = train(words(scene, frames), folder / name, stop=STOP).steady_counts()
                if name in SURFACE:
                    later = train(words(scene, frames), folder / name, stop=SURFACE_STOP)
                    counted[SURFACE[name]] = later.steady_counts()
        for name, words in LATE_RUNS.items():
            with pretended_gpu(), contextlib.redirect_stdout(io.StringIO()):
                counted[name] = train(words(scene, frames), folder / name, stop=SURFACE_STOP).steady_counts()
        for name, counts in counted.items():
            print(f"{name:21}", *(f"{count} {what}" for what, count in counts.items()), sep="  ")
    risen = [
        f"{name}: {what} rose from {recorded[name][what]} to {count}"
        for name, counts in counted.items()
        for what, count in counts.items()
        if count > recorded.get(name, counts)[what] + (MORE_LAUNCHES if what == "launches" else 0)
    ]
    if risen:
        print("\n".join(risen), file=sys.stderr)
        return 1
    for name, counts in counted.items():
        counts["launches"] = min(counts["launches"], recorded.get(name, counts)["launches"])
    COUNTS.write_text(json.dumps(counted, indent=2) + "\n")
    print(COUNTS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
