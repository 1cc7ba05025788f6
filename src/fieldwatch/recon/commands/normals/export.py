"""A trained surface, its poses and what its cameras see, in the files of other programs, for ``fieldwatch export``."""

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
    depth_colours,
    normal_colours,
    open_run,
    pose_errors,
    render_view,
    save_cut_out,
    surface_mesh,
)
from fieldwatch.recon.render import Chunks

MESHES = ("ply", "glb", "obj")
POINT_CELLS = 40
"""Cells of the mesh whose vertices are COLMAP's points."""
NAMES = {"poses": "poses-{}", "maps": "maps-{}"} | {kind: f"mesh-{{}}.{kind}" for kind in MESHES}
"""What is written where no name is given, the step left open."""


def export_normals(chosen: RunFlags, to: str, out: Path | None, options: MeshOptions) -> int:
    """Write a run's surface, poses or maps.

    Args:
        chosen: the run, its checkpoint and device.
        to: ply, glb, obj, poses or maps.
        out: the file or folder; None means the run's products.
        options: the resolution of a mesh; None takes the run's own.

    Raises:
        BadInput: the run cannot be opened, there is no surface, or nothing can be written.
    """
    resolution = options.resolution
    if to not in MESHES:
        refuse_set(options, ("resolution",), f"it belongs to meshes, and --to is {to}")
    if resolution is not None and not 2 <= resolution <= MOST_NODES:
        raise BadInput(f"--resolution must be 2 to {MOST_NODES} nodes along a side of the box, got {resolution}")
    stored = open_stored(partial(open_run, device=chosen.device), chosen.run, chosen.checkpoint)
    path = out or output_path(chosen.run, "products", NAMES[to].format(stored.step))
    check_kind(path, to)
    console = Terminal(stderr=chosen.json)
    with reading_input(), console.status("writing"):
        check_writable(path.parent)
        found = write(stored, to, path, resolution)
    about = {"run": chosen.run, "step": stored.step, "iteration": round(stored.scene.schedule.iteration(stored.step))}
    if chosen.json:
        print_json({**about, **found, "file": path.absolute()})
        return 0
    console.print(", ".join(f"{value:,} {name}" for name, value in found.items()) + f" of step {stored.step}")
    print_paths(console, {to: path.absolute()})
    return 0


def check_kind(path: Path, to: str) -> None:
    """Refuse a file in place of a folder, a folder in place of a file, and a mesh with the wrong suffix.

    Raises:
        BadInput: the path is of another kind.
    """
    if to in MESHES and path.is_dir():
        raise BadInput(f"{path} is a folder: give a file, as in -o {path / f'mesh.{to}'}")
    if to in MESHES and path.suffix.lower() != f".{to}":
        raise BadInput(f"--to {to} writes a .{to} file, and -o is {path}: name it {path.with_suffix(f'.{to}').name}")
    if to not in MESHES and path.is_file():
        raise BadInput(f"{path} is a file, and --to {to} writes a folder: give another name with -o")


def write(stored: StoredNormalsRun, to: str, path: Path, resolution: int | None) -> dict[str, int]:
    """Write one export; return counts of its contents."""
    if to in MESHES:
        nodes = stored.config.mesh_resolution if resolution is None else resolution
        mesh = surface_mesh(stored.model, stored.scene, nodes)
        if not len(mesh.faces):
            raise InputError(f"the field of step {stored.step} is nowhere 0, so it has no mesh: choose a --checkpoint")
        write_mesh(path, mesh)
        return {"vertices": len(mesh.vertices), "faces": len(mesh.faces)}
    cameras = learned_cameras(stored)
    return {"views": write_poses(stored, cameras, path) if to == "poses" else write_maps(stored, cameras, path)}


def learned_cameras(stored: StoredNormalsRun) -> dict[int, Camera]:
    """Return cameras by the number of their view, in the frame of the scene's sphere.

    Those that were trained on stand where the training put them; those held out where the data has them, brought into
    the frame of the learned ones.
    """
    scene, model = stored.scene, stored.model
    poses = dict(zip(scene.train, model.poses().detach().double().cpu(), strict=True))
    errors = pose_errors(model, scene)
    for number in scene.test:
        pose = scene.maps.views[number].camera.world_from_camera.double().cpu()
        # Held-out cameras were not trained: bring them into the frame of the learned ones.
        poses[number] = pose if errors is None else errors.alignment.inverse().apply_to_pose(pose)
    return {number: scene.camera(number, poses[number]) for number in sorted(poses)}


def write_poses(stored: StoredNormalsRun, cameras: dict[int, Camera], folder: Path) -> int:
    """Write the data set with the trained poses, and these poses as COLMAP text files.

    Other programs of the layout read `cameras_sphere.npz` and the maps beside it; COLMAP's `sparse/0` holds the cameras
    in the world of the run's meshes, with some of the mesh's vertices as points. The true mesh stays out
    where poses were learned: it lies in the frame of the data's poses.
    """
    maps = stored.scene.maps
    views = tuple(replace(maps.views[number], camera=camera) for number, camera in cameras.items())
    own = pose_errors(stored.model, stored.scene) is None
    write_normal_maps(replace(maps, views=views, mesh=maps.mesh if own else None), folder)
    placed = [camera_in_world(camera, stored.scene) for camera in cameras.values()]
    points = surface_mesh(stored.model, stored.scene, POINT_CELLS).vertices
    write_colmap_text(placed, points, output_path(folder, "sparse", "0"))
    return len(views)


def write_maps(stored: StoredNormalsRun, cameras: dict[int, Camera], folder: Path) -> int:
    """Render every view: normals, masks and depth as a data set of the layout, and pictures.

    Depth in the layout is in units of the scene's sphere, as `cameras_sphere.npz` has it.
    """
    chunks, options = Chunks(stored.config.rendering.chunk), stored.config.rendering
    views = list[NormalView]()
    files = output_names(stored.scene.maps.names)
    for number, camera in cameras.items():
        seen = render_view(stored.model, camera, options, options.last_step, chunks=chunks)
        normals, depth, mask = (part.cpu() for part in (seen.camera_normals, seen.depth, seen.mask))
        name = stored.scene.maps.names[number]
        views.append(NormalView(name=name, camera=camera, normals=normals.float(), mask=mask, depth=depth.float()))
        save_cut_out(output_path(folder, "pictures", f"{files[number]}_normals.png"), normal_colours(normals), mask)
        save_cut_out(output_path(folder, "pictures", f"{files[number]}_depth.png"), depth_colours(depth, mask), mask)
    write_normal_maps(
        NormalSet(views=tuple(views), world_from_unit=stored.scene.maps.world_from_unit, source=str(stored.folder)),
        folder,
    )
    return len(views)


def write_colmap_text(cameras: Sequence[Camera], points: Float64[np.ndarray, "n 3"], folder: Path) -> Path:
    """Write cameras and points as COLMAP's text model: cameras.txt, images.txt, points3D.txt; no tracks.

    Args:
        cameras: in the world; each gets a lens of its own, PINHOLE. COLMAP's pixels are ours.
        points: of the surface, in the world; grey. COLMAP's readers refuse a model without any.
        folder: made if missing.
    """
    lenses, images = list[str](), list[str]()
    for number, camera in enumerate(cameras, 1):
        lens = (camera.width, camera.height, camera.fx, camera.fy, camera.cx, camera.cy)
        lenses.append(f"{number} PINHOLE " + _words(lens))
        motion = inverse_rigid(camera.world_from_camera.double())
        turn = matrix_to_quaternion(motion[:3, :3])
        values = torch.cat([turn, motion[:3, 3]]).tolist()
        images.append(f"{number} {_words(values)} {number} {camera.name}.png\n")
    places = [f"{number} {_words(point)} 128 128 128 0" for number, point in enumerate(points.tolist(), 1)]
    for name, about, lines in (
        ("cameras.txt", "CAMERA_ID MODEL WIDTH HEIGHT PARAMS[]", lenses),
        ("images.txt", "IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME; then POINTS2D[] (none)", images),
        ("points3D.txt", "POINT3D_ID X Y Z R G B ERROR TRACK[] (none)", places),
    ):
        write_file(output_path(folder, name), ("\n".join([f"# {about}", *lines]) + "\n").encode())
    return folder


def _words(values: Sequence[Any]) -> str:
    return " ".join(repr(value) for value in values)
