"""``fieldwatch eval RUN``: how good a checkpoint is, as tables, pictures and JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console
from rich.text import Text

from fieldwatch.cli.ending import BadInput, print_json, print_places, reading_input
from fieldwatch.cli.frame_progress import counting_frames
from fieldwatch.cli.opening import open_stored
from fieldwatch.cli.training import check_writable, quality_table
from fieldwatch.pipelines.video import Device, Evaluated, drawings_of, write_evaluation


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Score a checkpoint on the frames it was trained on and on those held out, beside what needs no network.

    Example: fieldwatch eval runs/bunny --checkpoint best --positions-frames 20

    Writes the quality of every patch and frame, of places between the patches, a report and a map of the embeddings,
    the worst frames as pictures, and metrics.json. The run itself is not changed.
    """

    run: tyro.conf.Positional[Path]
    """The run folder."""
    checkpoint: str = "best"
    """best (by held-out PSNR), last, or a step."""
    out: Path | None = None
    """Where the files go; default RUN/products/eval-<step>."""
    positions_frames: int = 10
    """Frames, evenly spaced, at which places between the patches are scored too; 0 for none."""
    device: Device = "auto"
    """Where to draw."""
    json: bool = False
    """Print the metrics as JSON, and nothing else on standard output."""


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = tyro.cli(Arguments, prog="fieldwatch eval", args=arguments)
    if chosen.positions_frames < 0:
        raise BadInput(f"--positions-frames is {chosen.positions_frames}: wanted a number of frames, 0 for none")
    stored = open_stored(chosen.run, chosen.checkpoint, chosen.device)
    folder = chosen.out or chosen.run / "products" / f"eval-{stored.step}"
    console = Console(stderr=chosen.json)
    with reading_input():
        check_writable(folder)
    with counting_frames(console, "drawing", drawings_of(stored, chosen.positions_frames)) as drawn:
        evaluated = write_evaluation(stored, folder, positions_frames=chosen.positions_frames, drawn=drawn)
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
