"""``fieldwatch infer normals RUN --image MAP``: find the pose of a new view, render its depth, complete its normals."""

import difflib
from collections.abc import Sequence
from functools import partial
from typing import Any

from rich.table import Table
from rich.text import Text

from fieldwatch import InputError
from fieldwatch.cli.kit import (
    Terminal,
    check_writable,
    open_stored,
    print_json,
    print_paths,
    read_flags,
    reading_input,
)
from fieldwatch.files import output_path
from fieldwatch.recon.commands.normals.flags import InferNormalsFlags
from fieldwatch.recon.geometry import Camera
from fieldwatch.recon.pipelines.normals import (
    NormalsScene,
    Registration,
    RegistrationOptions,
    open_run,
    read_view,
    register_view,
    write_registration,
)

FINDINGS = 1


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = read_flags(InferNormalsFlags, prog="fieldwatch infer normals", arguments=arguments)
    with reading_input():
        options = RegistrationOptions(
            directions=chosen.directions, most_error=chosen.most_error, least_iou=chosen.least_iou
        )
    stored = open_stored(partial(open_run, device=chosen.device), chosen.run, chosen.checkpoint)
    folder = chosen.out or output_path(chosen.run, "products", f"infer-{stored.step}-{chosen.image.stem}")
    console = Terminal(stderr=chosen.json)
    with reading_input():
        # Also checks the output folder before the search, which may take minutes.
        view = read_view(chosen.image, chosen.mask, lens_of(chosen, stored.scene), axes=chosen.axes)
        check_writable(folder)
    about = {"run": str(chosen.run), "step": stored.step, "image": str(chosen.image), "view": view.name}
    with reading_input(), console.status("searching the pose"):
        registration = register_view(stored.model, view, stored.config.rendering, options=options)
        files = write_registration(registration, stored.scene, folder, about)
    paths = {name: path.absolute() for name, path in files.items()}
    figures = registration.figures()
    if chosen.json:
        pose = {
            "unit_from_camera": registration.best.pose.tolist(),
            "world_from_camera": registration.world_from_camera(stored.scene).tolist(),
        }
        print_json({**about, **pose, "fit": figures, "files": paths})
    else:
        console.print(f"{chosen.run}, step {stored.step}, {chosen.image.name}", soft_wrap=True, markup=False)
        console.print(fit_table(figures))
        print_paths(console, paths)
    for line in verdict(registration):
        console.print(Text(line, "yellow"), soft_wrap=True)
    return 0 if registration.fits and not registration.ambiguous else FINDINGS


def lens_of(chosen: InferNormalsFlags, scene: NormalsScene) -> Camera | tuple[float, float, float, float] | None:
    """Return the intrinsics that --lens or --like sets; None without them.

    Raises:
        InputError: both flags are given, or there is no such view.
    """
    if chosen.lens is not None and chosen.like is not None:
        raise InputError(f"--lens and --like {chosen.like} both set the intrinsics of the map: give one of them")
    if chosen.like is None:
        return chosen.lens
    cameras = dict(zip(scene.maps.names, scene.maps.cameras, strict=True))
    # cutoff=0: always suggest a name.
    if chosen.like not in cameras:
        near = difflib.get_close_matches(chosen.like, cameras, n=1, cutoff=0)
        raise InputError(
            f"--like {chosen.like}: the run has no view of that name; its {len(cameras)} views have names such as "
            f"{near[0]}"
        )
    return cameras[chosen.like]


def fit_table(figures: dict[str, Any]) -> Table:
    """Return a table with the quality of the fit."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2))
    mae, rival = figures["mae"], figures["rival_score"]
    table.add_row("mean angular error", "-" if mae is None else f"{mae:.2f} deg", f"{figures['pixels']:,} pixels")
    table.add_row("IoU of the silhouettes", f"{figures['iou']:.4f}", "without the holes of the mask")
    table.add_row("normals added", f"{figures['completed_pixels']:,}", "pixels")
    table.add_row("score", f"{figures['score']:.2f} deg", "pixels in only one silhouette count 90 deg")
    if rival is not None:
        table.add_row("best other pose", f"{rival:.2f} deg", f"turned by {figures['rival_rotation']:.0f} deg")
    return table


def verdict(registration: Registration) -> list[str]:
    """Return the problems of the fit, with their possible causes."""
    error = registration.comparison.error
    lines = list[str]()
    if not registration.fits:
        mae = "no pixel in common" if error.mae is None else f"mean angular error {error.mae:.2f} deg"
        lines.append(
            f"the surface does not fit this view: {mae} (at most {registration.options.most_error:g}), IoU "
            f"{registration.iou:.3f} (at least {registration.options.least_iou:g}): another object, wrong "
            "intrinsics, wrong --axes, or an object that is cut off by the image border; the pose is meaningless"
        )
    if registration.ambiguous and registration.runner_up is not None:
        lines.append(
            f"another pose fits nearly as well (score {registration.runner_up.score:.2f} against "
            f"{registration.best.score:.2f} deg): the object looks alike from both; the other pose is "
            "rival_unit_from_camera in pose.json"
        )
    return lines
