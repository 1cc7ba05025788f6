"""Preparation of a refinement: read and validate run and mesh, and create Gaussians on the mesh."""

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import psutil
import torch
from jaxtyping import Bool, Float
from scipy.spatial import KDTree
from torch import Tensor

from fieldwatch import InputError, Ranks
from fieldwatch.pipeline import CheckpointSelector, choose_device
from fieldwatch.recon.geometry import colors_to_constant, harmonics_count
from fieldwatch.recon.mesh import MeshError, Triangles, read_mesh
from fieldwatch.recon.pipelines.splats.config import SplatsConfig
from fieldwatch.recon.pipelines.splats.model import SplatModel
from fieldwatch.recon.pipelines.splats.refined.binding import BoundGaussians
from fieldwatch.recon.pipelines.splats.refined.config import RefineConfig
from fieldwatch.recon.pipelines.splats.refined.pattern import PATTERNS
from fieldwatch.recon.pipelines.splats.refined.schedule import make_refine_plan
from fieldwatch.recon.pipelines.splats.scene import Scene
from fieldwatch.recon.pipelines.splats.stored import StoredRun, open_run
from fieldwatch.recon.render import View

Colors = tuple[Float[Tensor, "n 3"], Float[Tensor, "n functions 3"]]
"""SH coefficients of degree 0 and of the higher degrees."""

COLOR_NEIGHBORS = 4
"""Number of Gaussians of the run whose colors are blended, weighted by inverse squared distance."""
OPAQUE = 0.3
"""Opacity above which a Gaussian of the run is used for colors."""
MEMORY_SHARE = 0.8
"""Fraction of the free memory that a refinement may use."""
_COPIES = 4
"""Copies of every parameter: the parameter, its gradient, and two moments."""
_DERIVED_FLOATS = 120
"""Upper estimate of the floats per Gaussian that a step derives and keeps for backward."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Refinement:
    """A refinement, ready for training.

    Attributes:
        scene: photos and cameras of the run, with the schedule of the refinement.
        model: Gaussians bound to the mesh, rendered with the run's settings and its fixed color transforms.
        coarse: settings of the run.
        mesh: mesh with duplicate vertices merged.
        mesh_digest: SHA-256 digest of the mesh file.
    """

    scene: Scene
    model: SplatModel[BoundGaussians]
    coarse: SplatsConfig
    mesh: Triangles
    mesh_digest: str

    @property
    def gaussians(self) -> BoundGaussians:
        """Gaussians bound to the mesh."""
        return self.model.gaussians


def prepare_refinement(config: RefineConfig) -> Refinement:
    """Read and validate run and mesh, and create Gaussians on the mesh; nothing is written.

    Raises:
        MeshError: The mesh cannot be read, has no faces, or contains non-finite values.
        ValueError, OSError: The folder is not a splats run, its photos are missing, no photo shows the mesh, or the
            mesh is too large for the memory; the message says what to do.
        CheckpointError: The checkpoint does not exist.
    """
    if not Ranks.of_process().alone:
        raise InputError("refinement does not support several processes: run `fieldwatch mesh refine` without torchrun")
    # Merged, because faces that do not share vertices would drift apart in training.
    mesh = read_mesh(config.mesh).welded()
    if not len(mesh.faces):
        msg = f"{config.mesh} has no faces: give a triangle mesh; a point cloud must be meshed first"
        raise MeshError(msg)
    device = choose_device(config.device)
    # Before the run is opened, since reading its photos takes much longer than this check.
    _refuse_too_large(config, mesh, device)
    stored = open_run(config.run, _checkpoint_selector(config.checkpoint), device=config.device)
    visible = visible_faces(mesh, stored.scene.training_views)
    if not visible.any():
        raise InputError(_not_visible_message(config, mesh, stored.scene))
    notes = _notes(mesh, stored, visible)
    scene = replace(stored.scene, plan=make_refine_plan(config, notes), cloud=None, loaded=None, notes=notes)
    return Refinement(
        scene=scene,
        model=initial_refined_model(config, stored, mesh),
        coarse=stored.config,
        mesh=mesh,
        mesh_digest=hashlib.sha256(config.mesh.expanduser().read_bytes()).hexdigest(),
    )


def initial_refined_model(config: RefineConfig, stored: StoredRun, mesh: Triangles) -> SplatModel[BoundGaussians]:
    """Return the initial model: Gaussians on a mesh with the config's initial colors and the run's render settings."""
    device = stored.scene.device
    vertices = torch.from_numpy(mesh.vertices).float().to(device)
    faces = torch.from_numpy(mesh.faces).to(device)
    barycentric = vertices.new_tensor(PATTERNS[config.gaussians_per_triangle].centers)
    means = (barycentric @ vertices[faces]).reshape(-1, 3)
    constant, rest = initial_colors(config, stored.model, mesh, means)
    gaussians = BoundGaussians.on_mesh(
        vertices,
        faces,
        constant,
        rest,
        per_triangle=config.gaussians_per_triangle,
        thickness=config.thickness * stored.scene.extent,
        opacity=config.opacity,
        first_size=config.first_size,
    ).to(device)
    exposures = stored.model.exposures
    if exposures is not None:
        # No optimizer of a refinement updates the color transforms, so their gradients are not needed.
        exposures.requires_grad_(requires_grad=False)
    return SplatModel(gaussians, stored.scene.background, exposures=exposures, antialiased=stored.config.antialiased)


def initial_colors(
    config: RefineConfig, coarse: SplatModel[Any], mesh: Triangles, means: Float[Tensor, "n 3"]
) -> Colors:
    """Return initial SH coefficients for Gaussians on a mesh.

    Args:
        config: settings with the SH degree and the source of the colors.
        coarse: model of the run.
        mesh: mesh; it must have vertex colors if they are the source.
        means: centers of the Gaussians, `gaussians_per_triangle` consecutive rows per face.

    Raises:
        InputError: Vertex colors are the source, but the mesh has none.
    """
    functions = harmonics_count(config.degree) - 1
    rest = means.new_zeros(len(means), functions, 3)
    if config.first_colors == "gray":
        return means.new_zeros(len(means), 3), rest
    if config.first_colors == "vertices":
        if mesh.colors is None:
            raise InputError(
                f"{config.mesh} has no vertex colors: use --first-colors gaussians, or a mesh with vertex colors"
            )
        colors = torch.from_numpy(mesh.colors[mesh.faces]).to(means) / 255
        barycentric = means.new_tensor(PATTERNS[config.gaussians_per_triangle].centers)
        return colors_to_constant((barycentric @ colors).reshape(-1, 3)), rest
    constant, stored = nearest_colors(coarse, means)
    common = min(functions, stored.shape[1])
    # Higher degrees than the run has start at zero; degrees above the config's are dropped.
    rest[:, :common] = stored[:, :common]
    return constant, rest


@torch.no_grad()
def nearest_colors(coarse: SplatModel[Any], means: Float[Tensor, "n 3"]) -> Colors:
    """Blend the SH coefficients of the nearest opaque Gaussians at each center, by inverse squared distance."""
    opacities = coarse.shapes()[1]
    opaque = (opacities > OPAQUE).nonzero()[:, 0]
    rows = coarse.gaussians.rows()
    # With too few opaque Gaussians, use all of them instead of failing.
    chosen = opaque if len(opaque) >= COLOR_NEIGHBORS else torch.arange(len(opacities), device=opacities.device)
    tree = KDTree(rows.means[chosen].double().numpy(force=True))
    distances, indices = tree.query(means.double().numpy(force=True), k=min(COLOR_NEIGHBORS, len(chosen)))
    distances, indices = (np.reshape(part, (len(means), -1)) for part in (distances, indices))  # k=1 has no columns
    shares = 1 / (np.square(distances) + np.finfo(np.float32).tiny)  # finite at a distance of 0
    weights = torch.from_numpy(shares / shares.sum(1, keepdims=True)).to(means)
    table = chosen[torch.from_numpy(indices).to(chosen.device)]
    constant = torch.zeros_like(means)
    rest = means.new_zeros(len(means), *rows.rest.shape[1:])
    # One neighbor at a time: all at once would take four times the memory of the SH coefficients.
    for weight, row in zip(weights.unbind(1), table.unbind(1), strict=True):
        constant += weight[:, None] * rows.constant[row]
        rest += weight[:, None, None] * rows.rest[row]
    return constant, rest


def visible_faces(mesh: Triangles, views: tuple[View, ...]) -> Bool[np.ndarray, "m"]:
    """Return a mask of the faces whose centroid is inside at least one view; occlusion is ignored."""
    middles = mesh.corners.mean(1)
    visible = np.zeros(len(middles), np.bool_)
    for view in views:
        pose = view.camera_from_world.double().numpy(force=True)
        x, y, z = (middles @ pose[:3, :3].T + pose[:3, 3]).T
        ahead = np.maximum(z, view.near)
        across = view.fx * x / ahead + view.cx
        down = view.fy * y / ahead + view.cy
        inside = (across >= 0) & (across < view.width) & (down >= 0) & (down < view.height)
        visible |= inside & (z > view.near)
    return visible


def needed_bytes(faces: int, vertices: int, config: RefineConfig) -> int:
    """Return the memory that a refinement needs, bytes: parameters, gradients, moments, and intermediates of a step."""
    # Plane scales, rotation, opacity and SH coefficients of three channels.
    per_gaussian = 2 + 2 + 1 + 3 * harmonics_count(config.degree)
    count = faces * config.gaussians_per_triangle
    return 4 * (count * (_COPIES * per_gaussian + _DERIVED_FLOATS) + vertices * _COPIES * 3)


def _refuse_too_large(config: RefineConfig, mesh: Triangles, device: torch.device) -> None:
    needed = needed_bytes(len(mesh.faces), len(mesh.vertices), config)
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    if needed <= MEMORY_SHARE * free:
        return
    count = len(mesh.faces) * config.gaussians_per_triangle
    fits = int(len(mesh.faces) * MEMORY_SHARE * free / needed)
    raise InputError(
        f"{count:,} Gaussians ({config.gaussians_per_triangle} on each of {len(mesh.faces):,} triangles) need about "
        f"{needed / 2**30:.1f} GiB and {device} has {free / 2**30:.1f} free: decimate the mesh to {fits:,} triangles "
        "(--triangles of `fieldwatch mesh extract`), or lower --gaussians-per-triangle or --degree"
    )


def _checkpoint_selector(checkpoint: str) -> CheckpointSelector:
    if checkpoint == "last" or checkpoint == "best":  # noqa: PLR1714  the type checker narrows this one
        return checkpoint
    return int(checkpoint)


def _not_visible_message(config: RefineConfig, mesh: Triangles, scene: Scene) -> str:
    low, high = (", ".join(f"{x:.3g}" for x in corner) for corner in (mesh.vertices.min(0), mesh.vertices.max(0)))
    positions = torch.stack([scene.photos.cameras[i].position for i in scene.photos.train])
    middle = ", ".join(f"{x:.3g}" for x in positions.mean(0).tolist())
    return (
        f"{config.mesh} is visible in none of the {len(scene.photos.train)} training photos: it has the bounding box "
        f"from ({low}) to ({high}), and the cameras are around ({middle}) with an extent of {scene.extent:.3g}; use a "
        f"mesh in the units and axes of {config.run}, such as one from `fieldwatch mesh extract`"
    )


def _notes(mesh: Triangles, stored: StoredRun, visible: Bool[np.ndarray, "m"]) -> tuple[str, ...]:
    notes = list(stored.scene.photos.notes)
    if not visible.all():
        notes.append(
            f"{1 - visible.mean():.0%} of the {len(visible):,} triangles are in no training photo and are not refined"
        )
    if stored.config.mip:
        notes.append("the run was trained with --mip: bound Gaussians are rendered without its 3D filter")
    if stored.model.exposures is not None:
        notes.append("the color transforms that the run learned for its photos are kept unchanged")
    if not mesh.consistently_wound:
        notes.append(
            "faces are not wound consistently: normal consistency folds oppositely wound neighbors instead of "
            "flattening them"
        )
    return tuple(notes)
