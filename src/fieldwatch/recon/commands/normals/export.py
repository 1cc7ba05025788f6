"""Export of a trained surface, its poses and its renders to other formats, for ``fieldwatch export``."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64

from fieldwatch import InputError
from fieldwatch.cli.kit import (
    BadInput,
    RunFlags,
    Terminal,
    check_writable,
    open_stored,
    print_json,
    print_paths,
    reading_input,
    refuse_set,
)
from fieldwatch.files import output_names, output_path, write_file
from fieldwatch.recon.commands.normals.options import MeshOptions
from fieldwatch.recon.data import NormalSet, NormalView, write_normal_maps
from fieldwatch.recon.geometry import Camera, inverse_rigid, matrix_to_quaternion
from fieldwatch.recon.mesh import write_mesh
from fieldwatch.recon.pipelines.normals import (
    MOST_NODES,
    StoredNormalsRun,
    camera_in_world,
    depth_colors,
    normal_colors,
    open_run,
    pose_errors,
    render_view,
    save_cut_out,
    surface_mesh,
)
from fieldwatch.recon.render import Chunks

MESHES = ("ply", "glb", "obj")
POINT_CELLS = 40
"""Grid resolution of the mesh whose vertices become COLMAP's points."""
NAMES = {"poses": "poses-{}", "maps": "maps-{}"} | {kind: f"mesh-{{}}.{kind}" for kind in MESHES}
"""Default file names, with a placeholder for the step."""


def export_normals(chosen: RunFlags, to: str, out: Path | None, options: MeshOptions) -> int:
    """Write a run's surface, poses or maps.

    Args:
        chosen: flags, with run, checkpoint and device.
        to: format: ply, glb, obj, poses or maps.
        out: file or folder; None means RUN/products.
        options: resolution of a mesh; None means that of the run.

    Raises:
        BadInput: the run cannot be opened, there is no surface, or the files cannot be written.
    """
    resolution = options.resolution
    if to not in MESHES:
        refuse_set(options, ("resolution",), f"it applies to meshes, and --to is {to}")
    if resolution is not None and not 2 <= resolution <= MOST_NODES:
        raise BadInput(f"--resolution must be 2 to {MOST_NODES} nodes along a side of the box, got {resolution}")
    stored = open_stored(partial(open_run, device=chosen.device), chosen.run, chosen.checkpoint)
    path = out or output_path(chosen.run, "products", NAMES[to].format(stored.step))
    check_kind(path, to)
    console = Terminal(stderr=chosen.json)
    with reading_input(), console.status("writing"):
        check_writable(path.parent)
        counts = write(stored, to, path, resolution)
    about = {"run": chosen.run, "step": stored.step, "iteration": round(stored.scene.schedule.iteration(stored.step))}
    if chosen.json:
        print_json({**about, **counts, "file": path.absolute()})
        return 0
    console.print(", ".join(f"{value:,} {name}" for name, value in counts.items()) + f" of step {stored.step}")
    print_paths(console, {to: path.absolute()})
    return 0


def check_kind(path: Path, to: str) -> None:
    """Refuse a file in place of a folder, a folder in place of a file, and a mesh with the wrong suffix.

    Raises:
        BadInput: the path does not fit the format.
    """
    if to in MESHES and path.is_dir():
        raise BadInput(f"{path} is a folder: give a file, as in -o {path / f'mesh.{to}'}")
    if to in MESHES and path.suffix.lower() != f".{to}":
        raise BadInput(f"--to {to} writes a .{to} file, got -o {path}: name it {path.with_suffix(f'.{to}').name}")
    if to not in MESHES and path.is_file():
        raise BadInput(f"{path} is a file, but --to {to} writes a folder: give another name with -o")


def write(stored: StoredNormalsRun, to: str, path: Path, resolution: int | None) -> dict[str, int]:
    """Write one export; return counts of its contents."""
    if to in MESHES:
        nodes = stored.config.mesh_resolution if resolution is None else resolution
        mesh = surface_mesh(stored.model, stored.scene, nodes)
        if not len(mesh.faces):
            raise InputError(
                f"the field of step {stored.step} has no zero level set, so no mesh: choose another --checkpoint"
            )
        write_mesh(path, mesh)
        return {"vertices": len(mesh.vertices), "faces": len(mesh.faces)}
    cameras = learned_cameras(stored)
    return {"views": write_poses(stored, cameras, path) if to == "poses" else write_maps(stored, cameras, path)}


def learned_cameras(stored: StoredNormalsRun) -> dict[int, Camera]:
    """Return cameras by view number, in the frame of the unit sphere.

    Training views have their learned poses; held-out views have the poses of the data, transformed into the frame of
    the learned ones.
    """
    scene, model = stored.scene, stored.model
    poses = dict(zip(scene.train, model.poses().detach().double().cpu(), strict=True))
    errors = pose_errors(model, scene)
    for number in scene.test:
        pose = scene.maps.views[number].camera.world_from_camera.double().cpu()
        # The alignment maps learned poses to those of the data: its inverse brings held-out cameras along.
        poses[number] = pose if errors is None else errors.alignment.inverse().apply_to_pose(pose)
    return {number: scene.camera(number, poses[number]) for number in sorted(poses)}


def write_poses(stored: StoredNormalsRun, cameras: dict[int, Camera], folder: Path) -> int:
    """Write the data set with the trained poses, and these poses as COLMAP text files.

    Programs for this layout read `cameras_sphere.npz` and the maps next to it. COLMAP's `sparse/0` holds the cameras
    in the world frame of the run's meshes, with some vertices of the mesh as points. If poses were learned, the true
    mesh is left out, since it is in the frame of the data's poses.
    """
    maps = stored.scene.maps
    views = tuple(replace(maps.views[number], camera=camera) for number, camera in cameras.items())
    unchanged = pose_errors(stored.model, stored.scene) is None
    write_normal_maps(replace(maps, views=views, mesh=maps.mesh if unchanged else None), folder)
    placed = [camera_in_world(camera, stored.scene) for camera in cameras.values()]
    points = surface_mesh(stored.model, stored.scene, POINT_CELLS).vertices
    write_colmap_text(placed, points, output_path(folder, "sparse", "0"))
    return len(views)


def write_maps(stored: StoredNormalsRun, cameras: dict[int, Camera], folder: Path) -> int:
    """Render every view: normals, masks and depth as a data set of the layout, and pictures.

    Depth in this layout is in radii of the unit sphere, as in `cameras_sphere.npz`.
    """
    chunks = Chunks(stored.config.rendering.chunk)
    options = stored.config.rendering
    views = list[NormalView]()
    # Names of views come from the data: made safe and unique as file names.
    files = output_names(stored.scene.maps.names)
    for number, camera in cameras.items():
        render = render_view(stored.model, camera, options, options.last_step, chunks=chunks)
        normals, depth, mask = (part.cpu() for part in (render.camera_normals, render.depth, render.mask))
        name = stored.scene.maps.names[number]
        views.append(NormalView(name=name, camera=camera, normals=normals.float(), mask=mask, depth=depth.float()))
        save_cut_out(output_path(folder, "pictures", f"{files[number]}_normals.png"), normal_colors(normals), mask)
        save_cut_out(output_path(folder, "pictures", f"{files[number]}_depth.png"), depth_colors(depth, mask), mask)
    write_normal_maps(
        NormalSet(views=tuple(views), world_from_unit=stored.scene.maps.world_from_unit, source=str(stored.folder)),
        folder,
    )
    return len(views)


def write_colmap_text(cameras: Sequence[Camera], points: Float64[np.ndarray, "n 3"], folder: Path) -> Path:
    """Write cameras and points as COLMAP's text model: cameras.txt, images.txt, points3D.txt; no tracks.

    Args:
        cameras: cameras in the world frame; each gets its own PINHOLE entry. COLMAP has the same pixel convention.
        points: points on the surface in the world frame, written in gray. COLMAP's readers refuse a model without
            points.
        folder: output folder, created if missing.
    """
    lenses = list[str]()
    images = list[str]()
    for number, camera in enumerate(cameras, 1):
        lens = (camera.width, camera.height, camera.fx, camera.fy, camera.cx, camera.cy)
        lenses.append(f"{number} PINHOLE " + _words(lens))
        # COLMAP stores camera_from_world, as quaternion (w first) and translation.
        camera_from_world = inverse_rigid(camera.world_from_camera.double())
        quaternion = matrix_to_quaternion(camera_from_world[:3, :3])
        values = torch.cat([quaternion, camera_from_world[:3, 3]]).tolist()
        images.append(f"{number} {_words(values)} {number} {camera.name}.png\n")
    rows = [f"{number} {_words(point)} 128 128 128 0" for number, point in enumerate(points.tolist(), 1)]
    for name, about, lines in (
        ("cameras.txt", "CAMERA_ID MODEL WIDTH HEIGHT PARAMS[]", lenses),
        ("images.txt", "IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME; then POINTS2D[] (none)", images),
        ("points3D.txt", "POINT3D_ID X Y Z R G B ERROR TRACK[] (none)", rows),
    ):
        write_file(output_path(folder, name), ("\n".join([f"# {about}", *lines]) + "\n").encode())
    return folder


def _words(values: Sequence[Any]) -> str:
    # repr is the shortest text that reads back as the same float64.
    return " ".join(repr(value) for value in values)
