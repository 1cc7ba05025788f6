"""Scoring a neural video for ``fieldwatch eval``."""

from functools import partial
from pathlib import Path

from rich.console import Console
from rich.text import Text

from fieldwatch.cli.ending import print_json, print_places, reading_input
from fieldwatch.cli.frame_progress import counting_frames
from fieldwatch.cli.front_video import quality_table
from fieldwatch.cli.opening import RunFlags, open_stored
from fieldwatch.cli.training import check_writable
from fieldwatch.pipelines.video import Evaluated, drawings_of, open_run, write_evaluation


def evaluate_video(chosen: RunFlags, out: Path | None, positions_frames: int) -> int:
    """Score a checkpoint on the frames it was trained on and on those held out, beside what needs no network.

    Args:
        chosen: the run, its checkpoint and device.
        out: where the files go; None means the run's products.
        positions_frames: frames at which places between the patches are scored too.

    Raises:
        BadInput: the run cannot be opened, or nothing can be written.
    """
    stored = open_stored(partial(open_run, device=chosen.device), chosen.run, chosen.checkpoint)
    folder = out or chosen.run / "products" / f"eval-{stored.step}"
    console = Console(stderr=chosen.json)
    with reading_input():
        check_writable(folder)
    with counting_frames(console, "drawing", drawings_of(stored, positions_frames)) as drawn:
        evaluated = write_evaluation(stored, folder, positions_frames=positions_frames, drawn=drawn)
    files = {name: path.absolute() for name, path in evaluated.files.items()}
    if chosen.json:
        about = {"run": chosen.run, "step": stored.step, "teacher": stored.scene.teacher}
        print_json({**about, "metrics": evaluated.metrics, "embeddings": evaluated.report, "files": files})
        return 0
    console.print(f"{chosen.run}, step {stored.step}, targets by {stored.scene.teacher}", soft_wrap=True)
    _print_quality(console, evaluated, patches=stored.model.unit == "patch")
    print_places(console, files)
    return 0


def _print_quality(console: Console, evaluated: Evaluated, *, patches: bool) -> None:
    console.print(quality_table(evaluated.metrics))
    for row in evaluated.positions if patches else ():  # a network that draws whole frames has no untrained places
        if row["split"] == "all" and row["category"] != "trained_center":
            drop = float(row["PSNR_drop"] or 0)
            compared = f"{abs(drop):.2f} dB {'below' if drop > 0 else 'above'} the patch centres"
            console.print(Text(f"  {row['category']}: {row['PSNR_mean']:.2f} dB, {compared}"), soft_wrap=True)
    if evaluated.report is None:
        console.print("  no semantic report: the semantic head of this checkpoint is untrained")
    else:
        score = evaluated.report["score"]
        console.print(Text(f"  embeddings: {evaluated.report['verdict']} ({score['total']} of {score['of']} points)"))
