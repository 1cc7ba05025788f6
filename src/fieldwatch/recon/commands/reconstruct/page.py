"""Page of a reconstruction: the pictures, the figures, and the file of every result."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from PIL import Image

from fieldwatch.cli.kit import Panel, document, facts, table
from fieldwatch.cli.kit import write_page as write_document
from fieldwatch.files import output_path
from fieldwatch.recon.commands.picture_panel import picture_panel
from fieldwatch.recon.commands.reconstruct.flags import ReconstructFlags
from fieldwatch.recon.commands.reconstruct.record import Record
from fieldwatch.recon.commands.reconstruct.stages import Stage

PAGE: Final = "index.html"
_PICTURE_SIDE: Final = 1400
# Pictures of the stages: name of the file in the stage's outcome, title, caption.
_PICTURES: Final = (
    ("view", "still", "Mesh", "from four sides; below, without texture"),
    ("train", "geometry", "Gaussians", "color, depth and normals of held-out photos"),
    ("cameras", "contact_sheet", "Photos", "those without a camera in a red frame"),
)


def write_page(chosen: ReconstructFlags, stages: Sequence[Stage], record: Record) -> None:
    """Write the page, with the stages finished so far."""
    account = account_of(chosen, stages, record)
    write_document(account, output_path(chosen.out, PAGE))


def account_of(chosen: ReconstructFlags, stages: Sequence[Stage], record: Record) -> dict[str, Any]:
    """Return the page in the form of a run's account."""
    finished = [stage for stage in stages if stage.name in record.stages]
    panels = [*_pictures(record), *_figures(record), _files(finished, record), _stages(stages, record)]
    waiting = [stage.title for stage in stages if stage.name not in record.stages]
    training = record.stages["train"].outcome if "train" in record.stages else {}
    counted = training.get("counted", {})
    level = "findings" if counted.get("warning") else "healthy"
    if counted.get("error"):
        level = "failed"
    return document(
        f"Reconstruction of {chosen.data.name}",
        facts=[str(chosen.data.absolute())],
        label="Reconstruction",
        level="running" if waiting else level,
        headline=f"{len(finished)} of {len(stages)} stages are done" if waiting else _headline(record, counted),
        detail=f"Next: {waiting[0]}." if waiting else "",
        findings=training.get("findings", []),
        panels=panels,
    )


def _headline(record: Record, counted: Mapping[str, int]) -> str:
    """Return a sentence on the training and the mesh."""
    found = ", ".join(f"{count} {level}s" for level, count in counted.items() if count) or "no findings"
    metrics = record.stages["train"].outcome.get("metrics", {})
    psnr = f", held-out PSNR {metrics['Test/psnr']:.1f} dB" if "Test/psnr" in metrics else ""
    mesh = record.stages["view"].outcome["facts"]["grade"] if "view" in record.stages else ""
    return f"training: {found}{psnr}" + (f"; mesh: {mesh}" if mesh else "")


def _pictures(record: Record) -> Iterator[Panel]:
    found = [(title, caption, Path(record.file_of(stage, name))) for stage, name, title, caption in _PICTURES]
    pictures = [(title, caption, _small(path)) for title, caption, path in found if path.is_file()]
    if pictures:
        yield picture_panel("pictures", "Pictures", pictures)


def _small(path: Path) -> Image.Image:
    """Return a picture, scaled down."""
    with Image.open(path) as picture:
        small = picture.convert("RGB")
    small.thumbnail((_PICTURE_SIDE, _PICTURE_SIDE))
    return small


def _figures(record: Record) -> Iterator[Panel]:
    if "cameras" in record.stages:
        known = record.stages["cameras"].outcome
        rows = [
            ("registered", f"{known['registered']} of {known['photos']}"),
            ("reprojection error", f"{known['reprojection_error']:.2f} pixels (mean)"),
            ("points", f"{known['points']:,}"),
        ]
        yield facts("Cameras", rows, "Cameras found for the photos.")
    if "masks" in record.stages:
        found = record.stages["masks"].outcome["masks"]
        agreement = found["agreement"]
        worst = min(agreement, key=agreement.__getitem__)
        rows = [
            ("overlap with the other photos' masks", f"{statistics.median(agreement.values()):.0%} (median)"),
            ("lowest", f"{agreement[worst]:.0%} ({worst})"),
            ("pixels that colors tell apart", f"{found['separation']:.0%}"),
            ("replaced by the silhouette of the others", ", ".join(found["replaced"]) or "none"),
        ]
        yield facts("Masks", rows, "Foreground masks of the object; what they leave out is darker among the photos.")
    if "train" in record.stages:
        metrics = record.stages["train"].outcome.get("metrics", {})
        rows = [{"metric": name, "value": value} for name, value in metrics.items()]
        about = "Figures of the last evaluation: held-out photos, or the errors of the surface."
        yield table("Training", (("metric", "metric", False), ("value", "value", True)), rows, about)
    if "view" in record.stages:
        yield facts("Mesh", record.stages["view"].outcome.get("facts", {}).items(), "")


def _files(finished: Sequence[Stage], record: Record) -> Panel:
    rows = [
        {"stage": stage.title, "content": name, "file": str(path)}
        for stage in finished
        for name, path in (record.stages[stage.name].outcome.get("files") or {}).items()
    ]
    columns = (("stage", "stage", False), ("content", "content", False), ("file", "file", False))
    return table("Files", columns, rows, "")


def _stages(stages: Sequence[Stage], record: Record) -> Panel:
    rows: list[dict[str, Any]] = []
    for stage in stages:
        done = record.stages.get(stage.name)
        command = "" if done is None else " ".join(["fieldwatch", *done.words])
        rows.append({"stage": stage.title, "seconds": None if done is None else done.seconds, "command": command})
    columns = (("stage", "stage", False), ("seconds", "seconds", True), ("command", "command", False))
    return table("Stages", columns, rows, "Each stage is a command that also works on its own.")
