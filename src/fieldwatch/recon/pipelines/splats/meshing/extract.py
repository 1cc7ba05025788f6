"""From trained Gaussians to a mesh, in the order of SuGaR's section 4.2: points, surface, trim, decimation, snap."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from fieldwatch.recon.geometry import Camera
from fieldwatch.recon.mesh import (
    DepthView,
    OrientedPoints,
    Triangles,
    cleaned,
    decimated,
    facing_outward,
    fuse_depths,
    snapped,
    without_small_pieces,
)
from fieldwatch.recon.pipelines.splats.hull import VisualHull, mask_of_photo
from fieldwatch.recon.pipelines.splats.meshing.boxes import Box, background_box, foreground_box
from fieldwatch.recon.pipelines.splats.meshing.budget import Budget
from fieldwatch.recon.pipelines.splats.meshing.density import density_surface
from fieldwatch.recon.pipelines.splats.meshing.options import ExtractOptions
from fieldwatch.recon.pipelines.splats.meshing.regions import Part, Progress, poisson_part, refuse_empty
from fieldwatch.recon.pipelines.splats.meshing.surface import OpaqueGaussians, Seen, surface_points
from fieldwatch.recon.pipelines.splats.model import SplatModel
from fieldwatch.recon.pipelines.splats.scene import Scene
from fieldwatch.recon.render import View

# cells along the longest side, where none was asked for
_COARSEST = 96
_FINEST = 384
_CELLS_PER_PIXEL = 1.5
_SNAP = 2.0  # cells: farther than this no vertex is moved
_FUSED = 0.6  # of the memory that is left


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """What came of it.

    Attributes:
        meshes: by name: `level0.3`, or the method where it has no levels.
        notes: what a user should know.
        facts: how it came to be: counts, box, seconds.
    """

    meshes: Mapping[str, Triangles]
    notes: tuple[str, ...]
    facts: Mapping[str, Any]


def extract_mesh(
    model: SplatModel,
    scene: Scene,
    options: ExtractOptions,
    *,
    bands: int = 1,
    on_progress: Progress = lambda _, __: None,
) -> Extraction:
    """Make meshes of trained Gaussians, on the CPU.

    Args:
        model: the Gaussians.
        scene: whose training cameras look at them.
        options: how.
        bands: number of bands in which pictures are drawn.
        on_progress: told what is being done, and what share of it is done.

    Raises:
        ValueError: no Gaussian is opaque, or the memory does not suffice.
        MeshError: neither foreground nor background has a surface, or the memory does not suffice for the grid.
    """
    began = time.perf_counter()
    budget = Budget(options.memory)
    hull = VisualHull.of(scene.photos)
    gaussians = OpaqueGaussians.of(model, hull, bands=bands)
    views = tuple(map(_on_cpu, scene.training_views))
    cameras = tuple(scene.photos.cameras[i] for i in scene.photos.train)
    foreground = foreground_box(cameras, options.bbox, centred=options.centred)
    seen = surface_points(
        gaussians,
        views,
        options.surface_level,
        count=options.points,
        budget=budget,
        mask_of=partial(mask_of_photo, scene.photos),
        hull=hull,
        seed=options.seed,
        on_view=lambda done: on_progress("surface points", done / len(views)),
    )
    work = _Work(options, budget, gaussians, cameras, views, seen, foreground, on_progress)
    meshes: dict[str, Triangles] = {}
    notes = [_carved(gaussians.carved, len(hull))] if gaussians.carved else []
    for level, points in zip(options.surface_level, seen.levels, strict=True):
        if options.method == "tsdf" and meshes:
            continue  # it knows no levels
        name = "tsdf" if options.method == "tsdf" else f"level{level:g}"
        inside = foreground.holds(points.points)
        far = background_box(cameras, foreground).holds(points.points) & ~inside
        parts = work.parts(level, points.chosen(inside), points.chosen(far))
        notes += [f"{name}: {note}" for part in parts for note in part.notes]
        meshes[name] = work.finished(parts, points)
    facts = {
        "method": options.method,
        "opaque_gaussians": len(gaussians.ellipsoids.means),
        "carved_gaussians": gaussians.carved,
        "views": len(views),
        "foreground": [foreground.low.tolist(), foreground.high.tolist()],
        "points": {f"level{level:g}": len(p) for level, p in zip(options.surface_level, seen.levels, strict=True)},
        "meshes": {
            name: {"vertices": len(mesh.vertices), "triangles": len(mesh.faces)} for name, mesh in meshes.items()
        },
        "seconds": round(time.perf_counter() - began, 2),
    }
    return Extraction(meshes=meshes, notes=tuple(dict.fromkeys(notes)), facts=facts)


def _carved(gaussians: int, photos: int) -> str:
    return f"{gaussians} opaque Gaussians lie where the {photos} transparent photos show background and are left out"


@dataclass(frozen=True)
class _Work:
    """What every level's mesh is made with."""

    options: ExtractOptions
    budget: Budget
    gaussians: OpaqueGaussians
    cameras: tuple[Camera, ...]
    views: tuple[View, ...]
    seen: Seen
    foreground: Box
    on_progress: Progress

    def parts(self, level: float, near: OrientedPoints, far: OrientedPoints) -> list[Part]:
        """Return foreground and, if wanted, background."""
        parts = [self._foreground(level, near)]
        if self.options.background:
            parts.append(self._poisson("background", far))
        refuse_empty(parts)
        return parts

    def _poisson(self, name: str, points: OrientedPoints) -> Part:
        return poisson_part(
            name,
            points,
            self.options,
            resolution=self.resolution(points),
            budget=self.budget,
            empty=self.seen.depths.emptiness,
            on_progress=self.on_progress,
        )

    def _foreground(self, level: float, points: OrientedPoints) -> Part:
        if self.options.method in {"poisson", "open3d"} or not len(points):
            return self._poisson("foreground", points)
        box = self._around(points)
        resolution = self.resolution(points)
        if self.options.method == "density":
            mesh = density_surface(
                self.gaussians, level, box, resolution, lambda done, of: self.on_progress("density", done / of)
            )
        else:
            mesh = self._fused(box, resolution)
        self.budget.check_faces(len(mesh.faces), resolution)
        mesh = without_small_pieces(mesh, least_share=self.options.least_piece)
        mesh = cleaned(replace(mesh))  # replaced: without what has been worked out about it, which takes its place
        return Part(name="foreground", mesh=replace(mesh) if len(mesh.faces) else None)

    def _fused(self, box: Box, resolution: int) -> Triangles:
        """Fuse what the cameras see of the foreground into a volume."""
        return fuse_depths(
            _Drawn(self.gaussians, self.cameras, self.views),
            low=box.low,
            high=box.high,
            resolution=resolution,
            memory=self.budget.share(_FUSED) if self.budget.limited else None,
            close=self.options.unseen == "close",
            on_view=self._fused_views,
        )

    def _fused_views(self, done: int) -> None:
        """Tell how far the fusion is; where memory is bounded it goes through the views several times."""
        turn, number = divmod(done - 1, len(self.views))
        self.on_progress(f"fusion, part {turn + 1}" if turn else "fusion", (number + 1) / len(self.views))

    def _around(self, points: OrientedPoints) -> Box:
        """The points' box with some cells to spare."""
        low = points.points.min(0)
        high = points.points.max(0)
        margin = 4 * float((high - low).max()) / self.resolution(points)
        return Box(low=low - margin, high=high + margin)

    def resolution(self, points: OrientedPoints) -> int:
        """Cells along the longest side: as asked for, or as fine as the photos resolve it."""
        if self.options.resolution is not None or not len(points):
            return self.options.resolution or _COARSEST
        middle = torch.from_numpy(np.median(points.points, axis=0)).float()
        pixels = [float((view.position - middle).norm()) / view.fx for view in self.views]
        longest = float(np.ptp(points.points, axis=0).max())
        return int(np.clip(_CELLS_PER_PIXEL * longest / np.median(pixels), _COARSEST, _FINEST))

    def finished(self, parts: list[Part], points: OrientedPoints) -> Triangles:
        """Join, decimate and snap; SuGaR's order."""
        self.on_progress("finishing", 0.0)
        meshes = [part.mesh for part in parts if part.mesh is not None]
        mesh = joined(meshes)
        self.budget.give_back()
        if self.options.limit is not None:
            mesh = cleaned(decimated(mesh, **self.options.limit))
            self.budget.give_back()
        if self.options.snap and self.options.method in {"poisson", "open3d"}:
            near = points.chosen(self.foreground.holds(points.points)) if parts[0].mesh is not None else points
            cell = float(np.ptp(near.points, axis=0).max()) / self.resolution(near)
            mesh = snapped(mesh, points, farthest=_SNAP * cell)
            mesh = cleaned(mesh)  # one after the other: what was worked out about the former is let go before
            self.budget.give_back()
        self.on_progress("finishing", 1.0)
        return facing_outward(mesh, points)


def joined(meshes: list[Triangles]) -> Triangles:
    """Return several meshes as one; they keep to themselves. Colours stay where all have them."""
    starts = np.cumsum([0, *(len(mesh.vertices) for mesh in meshes)])
    colours = [mesh.colours for mesh in meshes if mesh.colours is not None]
    return Triangles(
        vertices=np.concatenate([mesh.vertices for mesh in meshes]),
        faces=np.concatenate([mesh.faces + start for mesh, start in zip(meshes, starts, strict=False)]),
        colours=np.concatenate(colours) if len(colours) == len(meshes) else None,
    )


@dataclass(frozen=True)
class _Drawn:
    """Depths of all views, drawn anew each time that they are gone through: none is held in memory."""

    gaussians: OpaqueGaussians
    cameras: tuple[Camera, ...]
    views: tuple[View, ...]

    def __iter__(self) -> Iterator[DepthView]:
        return (_depth_view(self.gaussians, *pair) for pair in zip(self.cameras, self.views, strict=True))


def _depth_view(gaussians: OpaqueGaussians, camera: Camera, view: View) -> DepthView:
    drawn = gaussians.render(view)
    if drawn.median_depth is None:
        raise AssertionError("no depth was drawn, though it was asked for: a fault of the renderer")
    colours = drawn.features.clamp(0, 1).mul(255).round().to(torch.uint8).numpy()
    return DepthView(camera=camera, depth=drawn.median_depth.numpy(), colours=colours)


def _on_cpu(view: View) -> View:
    return replace(view, camera_from_world=view.camera_from_world.cpu())
