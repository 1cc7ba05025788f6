"""``fieldwatch mesh extract RUN``: extract a mesh from trained Gaussians."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from fieldwatch.cli.kit import (
    Terminal,
    check_writable,
    open_stored,
    print_json,
    print_paths,
    read_flags,
    reading_input,
)
from fieldwatch.files import output_path, write_file
from fieldwatch.recon.commands.mesh.pictures import write_still_and_film
from fieldwatch.recon.commands.migrate.mesh import translate_extract
from fieldwatch.recon.commands.splats.flags import ExtractFlags
from fieldwatch.recon.mesh import MeshQuality, grade_mesh, mesh_quality, write_mesh
from fieldwatch.recon.pipelines.splats import Extraction, StoredRun, extract_mesh, open_run, upwards


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = parse(arguments)
    # The extraction runs on the CPU, whatever device trained the run.
    stored = open_stored(partial(open_run, device="cpu"), chosen.run, chosen.checkpoint)
    folder = chosen.out or output_path(chosen.run, "mesh")
    console = Terminal(stderr=chosen.json)
    with reading_input():
        check_writable(folder)
        with progress_bars(console) as on_progress:
            extraction = extract_mesh(stored.model, stored.scene, chosen.extraction, on_progress=on_progress)
        files, qualities = write_meshes(extraction, stored, chosen, folder)
    paths = {name: path.absolute() for name, path in files.items()}
    if chosen.json:
        quality_rows = {name: asdict(quality) for name, quality in qualities.items()}
        about = {"run": chosen.run, "step": stored.step, **extraction.facts}
        print_json({**about, "notes": extraction.notes, "quality": quality_rows, "files": paths})
        return 0
    console.print(f"{chosen.run}, step {stored.step}: {extraction.facts['seconds']:.0f} s", soft_wrap=True)
    for note in extraction.notes:
        console.print(Text(f"  note: {note}"))
    console.print(overview(qualities, should_close=extraction.facts["should_close"]))
    print_paths(console, paths)
    return 0


def parse(arguments: Sequence[str]) -> ExtractFlags:
    """Read the command line, with our flags or those of the original script.

    Raises:
        InputError: options exclude each other, or a corner of the box is missing or invalid.
    """
    words = translate_extract(arguments)
    return read_flags(ExtractFlags, prog="fieldwatch mesh extract", arguments=words)


def write_meshes(
    extraction: Extraction, stored: StoredRun, chosen: ExtractFlags, folder: Path
) -> tuple[dict[str, Path], Mapping[str, MeshQuality]]:
    """Write every mesh with pictures and a JSON file; return the files by content, and the quality by mesh."""
    files: dict[str, Path] = {}
    qualities: dict[str, MeshQuality] = {}
    for name, mesh in extraction.meshes.items():
        files[name] = write_mesh(output_path(folder, f"{name}.ply"), mesh)
        qualities[name] = mesh_quality(mesh, file=files[name])
        if chosen.pictures:
            pictures = write_still_and_film(
                mesh, output_path(folder, name), up=upwards(stored.scene.photos.cameras).tolist()
            )
            files |= {f"{name} {what}": path for what, path in pictures.items()}
        grade = grade_mesh(qualities[name], should_close=extraction.facts["should_close"])
        about = {"run": str(chosen.run), "step": stored.step, "options": asdict(chosen.extraction)}
        judgment = {"grade": asdict(grade), "quality": asdict(qualities[name])}
        facts = orjson.dumps({**about, **extraction.facts, **judgment}, option=orjson.OPT_INDENT_2) + b"\n"
        files[f"{name} facts"] = write_file(output_path(folder, f"{name}.json"), facts)
    return files, qualities


def overview(qualities: Mapping[str, MeshQuality], *, should_close: bool) -> Table:
    """Return a table with a few figures of each mesh."""
    table = Table()
    for title in ("mesh", "vertices", "triangles", "pieces", "watertight", "outward", "grade"):
        table.add_column(title, justify="left" if title == "mesh" else "right")
    for name, quality in qualities.items():
        grade = grade_mesh(quality, should_close=should_close)
        outward = {True: "yes", False: "no", None: "-"}[quality.faces_outward]
        counts = (f"{count:,}" for count in (quality.n_vertices, quality.n_faces, quality.n_pieces))
        closed = "yes" if quality.is_watertight else "no"
        table.add_row(name, *counts, closed, outward, f"{grade.word} ({grade.score:.0f})")
    return table


@contextmanager
def progress_bars(console: Console) -> Iterator[Callable[[str, float], None]]:
    """Display one bar per stage; the yielded function takes a stage and its completed fraction."""
    columns: Sequence[Any] = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TaskProgressColumn(),
        TimeRemainingColumn(elapsed_when_finished=True, compact=True),
    )
    with Progress(*columns, console=console) as progress:
        tasks: dict[str, Any] = {}

        def on_progress(stage: str, fraction: float) -> None:
            if stage not in tasks:
                # Stages are sequential; an earlier one may end without reporting 1.0.
                for earlier in tasks.values():
                    progress.update(earlier, completed=1.0)
                tasks[stage] = progress.add_task(stage, total=1.0)
            progress.update(tasks[stage], completed=min(fraction, 1.0))

        yield on_progress
