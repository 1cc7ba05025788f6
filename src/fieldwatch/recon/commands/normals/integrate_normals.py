"""``fieldwatch data integrate-normals FOLDER``: depth and mesh of one view of photometric stereo."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from jaxtyping import Float64
from rich.text import Text

from fieldwatch.cli.kit import (
    BadInput,
    DataReport,
    Terminal,
    check_writable,
    print_json,
    print_paths,
    read_flags,
    reading_input,
)
from fieldwatch.files import output_path, whole_file, write_file
from fieldwatch.recon.commands.normals.flags import IntegrateNormalsFlags
from fieldwatch.recon.data import integrate_normals
from fieldwatch.recon.data.normal_maps import Choices, NormalView, SingleView, canonical_axes, read_single_view
from fieldwatch.recon.geometry import normals_from_depth
from fieldwatch.recon.mesh import Triangles, write_mesh
from fieldwatch.recon.pipelines.normals import depth_colors, save_picture

RECORD = "integration.json"
JUMP = 3.0
"""Difference of depth between neighbors, in their sizes on the object, above which they are not joined by a face."""


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = read_flags(IntegrateNormalsFlags, prog="fieldwatch data integrate-normals", arguments=arguments)
    folder = chosen.folder.expanduser()
    out = chosen.out.expanduser()
    with reading_input():
        if chosen.median <= 0 or chosen.sharpness < 0:
            raise BadInput(
                f"--median {chosen.median:g} --sharpness {chosen.sharpness:g}: expected a median depth greater than 0 "
                "and a sharpness of at least 0, as in --median 1 --sharpness 2"
            )
        choices = Choices(
            axes=None if chosen.axes in {None, "auto"} else canonical_axes(str(chosen.axes)),
            space="camera",
            channels=chosen.channels,
            pixel_center=chosen.pixel_center,
        )
        check_writable(out)
        single = read_single_view(folder, choices, chosen.lens)
        view = single.view
        depth = integrate_normals(
            view.normals, view.valid, view.camera, sharpness=chosen.sharpness, median=chosen.median
        )
    facts = facts_of(single, depth)
    files = write_files(out, view, depth, facts)
    if chosen.json:
        print_json({**facts, "places": files})
    else:
        console = Terminal()
        for note in single.notes:
            console.print(Text(f"  note: {note}"), soft_wrap=True)
        print_paths(console, {name: str(value) for name, value in facts.items() if name != "notes"})
        print_paths(console, files)
    return 0


def facts_of(single: SingleView, depth: Float64[torch.Tensor, "h w"]) -> dict[str, Any]:
    """Return what was integrated, and how well the depth explains the normals."""
    view = single.view
    again, valid = normals_from_depth(depth.float(), view.camera, mask=view.valid)
    cosine = (again * view.normals).sum(-1)[valid & view.valid].double().clamp(-1, 1)
    return {
        "size": f"{view.camera.width}x{view.camera.height}",
        "pixels": int(view.valid.sum()),
        "degrees between normals and depth (median)": round(float(cosine.acos().rad2deg().median()), 3),
        "depth": [round(float(value), 6) for value in (depth[depth > 0].min(), depth.max())],
        "notes": list(single.notes),
    }


def write_files(
    out: Path, view: NormalView, depth: Float64[torch.Tensor, "h w"], facts: dict[str, Any]
) -> dict[str, Path]:
    """Write depth, its picture, the mesh and the record."""
    known = depth > 0
    out.mkdir(parents=True, exist_ok=True)
    values = np.where(known.numpy(), depth.numpy(), np.nan).astype(np.float32)
    with whole_file(output_path(out, "depth.npy")) as draft, draft.open("wb") as file:
        np.save(file, values)
    files = {
        "depth": output_path(out, "depth.npy"),
        "picture": save_picture(output_path(out, "depth.png"), depth_colors(depth.float(), known)),
        "mesh": write_mesh(output_path(out, "mesh.ply"), mesh_of(view, depth)),
        "record": output_path(out, RECORD),
    }
    write_file(files["record"], orjson.dumps(facts, option=orjson.OPT_INDENT_2) + b"\n")
    return files


def mesh_of(view: NormalView, depth: Float64[torch.Tensor, "h w"]) -> Triangles:
    """Return the depth as a mesh in camera axes (x right, y down, z forward), with two faces per square of pixels."""
    points = (view.camera.to("cpu", torch.float64).directions() * depth[..., None]).numpy()
    distance = depth.numpy()
    known = distance > 0
    number = np.cumsum(known.reshape(-1)).reshape(known.shape) - 1
    corners = [(slice(None, -1), slice(None, -1)), (slice(1, None), slice(None, -1))]
    corners += [(slice(1, None), slice(1, None)), (slice(None, -1), slice(1, None))]
    depths = np.stack([distance[corner] for corner in corners])
    # A pixel covers depth / f on a surface that faces the camera; steeper steps than a few of them are discontinuities.
    step = depths.max(0) - depths.min(0)
    whole = (depths > 0).all(0) & (step <= JUMP * 4 * depths.max(0) / min(view.camera.fx, view.camera.fy))
    upper, lower, right, left = (number[corner][whole] for corner in corners)
    # Counter-clockwise as seen from the camera: y points down.
    faces = np.concatenate([np.stack([upper, lower, right], -1), np.stack([upper, right, left], -1)])
    return Triangles(vertices=points[known], faces=faces.astype(np.int64))


def single_report(path: Path) -> DataReport:
    """Return what `fieldwatch doctor` says about the normal map of a single view.

    Raises:
        NormalMapError: the files cannot be read.
    """
    single = read_single_view(path, Choices(space="camera"))
    view = single.view
    return DataReport(
        path=path,
        kind="normal map of a single view (photometric stereo)",
        facts={
            "size (width x height)": f"{view.camera.width}x{view.camera.height}",
            "pixels with a normal": int(view.valid.sum()),
            "focal length in pixels": view.camera.fx,
        },
        notes=single.notes,
        findings=(),
        command=f"fieldwatch data integrate-normals {path} --out {path.name}_depth",
    )
