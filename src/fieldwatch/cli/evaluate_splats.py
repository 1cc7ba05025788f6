"""Scoring splats for ``fieldwatch eval``."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from fieldwatch.cli.ending import print_json, print_places, reading_input
from fieldwatch.cli.front_splats import quality_table
from fieldwatch.cli.opening import RunFlags, open_stored
from fieldwatch.cli.training import check_writable
from fieldwatch.losses import find_lpips
from fieldwatch.pipelines.splats import (
    Evaluation,
    StoredRun,
    evaluate,
    open_drawn_run,
    save_picture,
    worst_views,
    write_geometry,
    write_renders,
    write_table,
)


def evaluate_splats(chosen: RunFlags, out: Path | None) -> int:
    """Score a checkpoint on its held-out photos and on those it was trained on.

    Args:
        chosen: the run, its checkpoint and device.
        out: where the files go; None means the run's products.

    Raises:
        BadInput: the run cannot be opened, or nothing can be written.
    """
    stored = open_stored(partial(open_drawn_run, device=chosen.device), chosen.run, chosen.checkpoint)
    folder = out or chosen.run / "products" / f"eval-{stored.step}"
    console = Console(stderr=chosen.json)
    with reading_input():
        check_writable(folder)
        lpips, why = find_lpips()
        with console.status("drawing and scoring") as status:
            held_out = evaluate(stored.model, stored.scene, lpips=lpips)
            trained = on_training_photos(stored, held_out)
            status.update("drawing pictures")
            files = write_files(stored, held_out, trained, folder)
    places = {name: path.absolute() for name, path in files.items()}
    training = None if trained is None else trained.metrics
    if chosen.json:
        about = {"run": chosen.run, "step": stored.step, "held_out": held_out.held_out}
        print_json({**about, "metrics": held_out.metrics, "training": training, "files": places})
        return 0
    scored = f"{len(held_out.rows)} photos {'held out' if held_out.held_out else 'trained on'}"
    console.print(f"{chosen.run}, step {stored.step}, {scored}", soft_wrap=True)
    console.print(quality_table(held_out.metrics, training))
    if lpips is None:
        console.print(f"  no LPIPS: {why}", soft_wrap=True, markup=False)
    print_places(console, places)
    return 0


def on_training_photos(stored: StoredRun, held_out: Evaluation) -> Evaluation | None:
    """Score the training photos alike; None where those are what was scored already."""
    if not held_out.held_out:
        return None
    return evaluate(stored.model, replace(stored.scene, photos=stored.scene.photos.having(test=())))


def write_files(stored: StoredRun, held_out: Evaluation, trained: Evaluation | None, folder: Path) -> dict[str, Path]:
    """Write tables and pictures; returns them by what they are."""
    files = {"per photo": write_table(folder, held_out, stored.step), "metrics": folder / "metrics.json"}
    if trained is not None:
        files["per training photo"] = write_table(folder / "train", trained, stored.step)
    files["worst views"] = save_picture(folder / "worst_views.png", worst_views(held_out, stored.scene))
    files["renders"] = write_renders(stored.model, stored.scene, folder / "renders")
    files["depth and normals"] = write_geometry(stored.model, stored.scene, folder / "geometry.png")
    return files
