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
from fieldwatch.recon.pipelines.splats.meshing.budget import MemoryBudget
from fieldwatch.recon.pipelines.splats.meshing.density import density_surface
from fieldwatch.recon.pipelines.splats.meshing.options import ExtractOptions
from fieldwatch.recon.pipelines.splats.meshing.regions import MeshRegion, Progress, poisson_region, refuse_empty
from fieldwatch.recon.pipelines.splats.meshing.surface import OpaqueGaussians, VisibleSurface, surface_points
from fieldwatch.recon.pipelines.splats.model import SplatModel
from fieldwatch.recon.pipelines.splats.scene import Scene
from fieldwatch.recon.render import View

# Cells along the longest side, where the options do not say how many.
_MIN_RESOLUTION = 96
_MAX_RESOLUTION = 384
_CELLS_PER_PIXEL = 1.5
_MAX_SNAP = 2.0  # cells that a vertex is moved at most
_FUSION_SHARE = 0.6  # of the memory that is left


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """The result of an extraction.

    Attributes:
        meshes: by name: `level0.3`, or the method where it has no levels.
        notes: what a user should know.
        facts: counts, box, seconds.
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
        bands: number of bands in which images are rendered.
        on_progress: called with what is being done, and what share of it is done.

    Raises:
        ValueError: no Gaussian is opaque, or the memory does not suffice.
        MeshError: neither foreground nor background has a surface, or the memory does not suffice for the grid.
    """
    began = time.perf_counter()
    budget = MemoryBudget(options.memory)
    # Training photos only: held-out ones must not shape the mesh.
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
    mesher = _RegionMesher(options, budget, gaussians, cameras, views, seen, foreground, on_progress)
    meshes: dict[str, Triangles] = {}
    notes = [_carved_note(gaussians.carved, len(hull))] if gaussians.carved else []
    for level, points in zip(options.surface_level, seen.levels, strict=True):
        if options.method == "tsdf" and meshes:
            continue  # fusion has no levels: one mesh
        name = "tsdf" if options.method == "tsdf" else f"level{level:g}"
        inside = foreground.contains(points.points)
        far = background_box(cameras, foreground).contains(points.points) & ~inside
        regions = mesher.regions(level, points.chosen(inside), points.chosen(far))
        notes += [f"{name}: {note}" for region in regions for note in region.notes]
        meshes[name] = mesher.finished(regions, points)
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


def _carved_note(gaussians: int, photos: int) -> str:
    return f"{gaussians} opaque Gaussians lie where the {photos} transparent photos show background and are left out"


@dataclass(frozen=True)
class _RegionMesher:
    """Makes the mesh of a level, region by region."""

    options: ExtractOptions
    budget: MemoryBudget
    gaussians: OpaqueGaussians
    cameras: tuple[Camera, ...]
    views: tuple[View, ...]
    seen: VisibleSurface
    foreground: Box
    on_progress: Progress

    def regions(self, level: float, near: OrientedPoints, far: OrientedPoints) -> list[MeshRegion]:
        """Return foreground and, if wanted, background."""
        regions = [self._foreground(level, near)]
        if self.options.background:
            regions.append(self._poisson("background", far))
        refuse_empty(regions)
        return regions

    def _poisson(self, name: str, points: OrientedPoints) -> MeshRegion:
        return poisson_region(
            name,
            points,
            self.options,
            resolution=self.resolution(points),
            budget=self.budget,
            empty=self.seen.depths.emptiness,
            on_progress=self.on_progress,
        )

    def _foreground(self, level: float, points: OrientedPoints) -> MeshRegion:
        if self.options.method == "poisson" or not len(points):
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
        mesh = cleaned(replace(mesh))  # a copy without the cached properties, which take memory
        return MeshRegion(name="foreground", mesh=replace(mesh) if len(mesh.faces) else None)

    def _fused(self, box: Box, resolution: int) -> Triangles:
        """Fuse the depths that the cameras see of the foreground into a volume."""
        return fuse_depths(
            _RenderedDepths(self.gaussians, self.cameras, self.views),
            low=box.low,
            high=box.high,
            resolution=resolution,
            memory=self.budget.share(_FUSION_SHARE) if self.budget.limited else None,
            close=self.options.unseen == "close",
            on_view=self._report_fusion,
        )

    def _report_fusion(self, done: int) -> None:
        """Report the progress of the fusion; where memory is bounded it goes through the views several times."""
        pass_number, number = divmod(done - 1, len(self.views))
        stage = f"fusion, part {pass_number + 1}" if pass_number else "fusion"
        self.on_progress(stage, (number + 1) / len(self.views))

    def _around(self, points: OrientedPoints) -> Box:
        """The points' box with some cells to spare."""
        low = points.points.min(0)
        high = points.points.max(0)
        margin = 4 * float((high - low).max()) / self.resolution(points)
        return Box(low=low - margin, high=high + margin)

    def resolution(self, points: OrientedPoints) -> int:
        """Cells along the longest side: as asked for, or as fine as the photos resolve it."""
        if self.options.resolution is not None or not len(points):
            return self.options.resolution or _MIN_RESOLUTION
        middle = torch.from_numpy(np.median(points.points, axis=0)).float()
        # World units that a pixel of each photo covers at the points.
        pixels = [float((view.position - middle).norm()) / view.fx for view in self.views]
        longest = float(np.ptp(points.points, axis=0).max())
        return int(np.clip(_CELLS_PER_PIXEL * longest / np.median(pixels), _MIN_RESOLUTION, _MAX_RESOLUTION))

    def finished(self, regions: list[MeshRegion], points: OrientedPoints) -> Triangles:
        """Join, decimate and snap; SuGaR's order."""
        self.on_progress("finishing", 0.0)
        meshes = [region.mesh for region in regions if region.mesh is not None]
        # Joined first: the limit of the decimation is one for foreground and background together.
        mesh = joined(meshes)
        self.budget.release_freed()
        if self.options.limit is not None:
            mesh = cleaned(decimated(mesh, **self.options.limit))
            self.budget.release_freed()
        # The other methods have their vertices on the level or on the fused depth already.
        if self.options.snap and self.options.method == "poisson":
            near = points.chosen(self.foreground.contains(points.points)) if regions[0].mesh is not None else points
            cell = float(np.ptp(near.points, axis=0).max()) / self.resolution(near)
            mesh = snapped(mesh, points, farthest=_MAX_SNAP * cell)
            mesh = cleaned(mesh)  # a statement of its own: the mesh before it is freed with its cached properties
            self.budget.release_freed()
        self.on_progress("finishing", 1.0)
        return facing_outward(mesh, points)


def joined(meshes: list[Triangles]) -> Triangles:
    """Return several meshes as one, without connecting them. Colours stay where all have them."""
    starts = np.cumsum([0, *(len(mesh.vertices) for mesh in meshes)])
    colours = [mesh.colours for mesh in meshes if mesh.colours is not None]
    return Triangles(
        vertices=np.concatenate([mesh.vertices for mesh in meshes]),
        faces=np.concatenate([mesh.faces + start for mesh, start in zip(meshes, starts, strict=False)]),
        colours=np.concatenate(colours) if len(colours) == len(meshes) else None,
    )


@dataclass(frozen=True)
class _RenderedDepths:
    """Depths of all views, rendered anew in each iteration: none stays in memory."""

    gaussians: OpaqueGaussians
    cameras: tuple[Camera, ...]
    views: tuple[View, ...]

    def __iter__(self) -> Iterator[DepthView]:
        return (_depth_view(self.gaussians, *pair) for pair in zip(self.cameras, self.views, strict=True))


def _depth_view(gaussians: OpaqueGaussians, camera: Camera, view: View) -> DepthView:
    output = gaussians.render(view)
    if output.median_depth is None:
        raise AssertionError("the renderer returned no median depth, though it was asked for it")
    colours = output.features.clamp(0, 1).mul(255).round().to(torch.uint8).numpy()
    return DepthView(camera=camera, depth=output.median_depth.numpy(), colours=colours)


def _on_cpu(view: View) -> View:
    return replace(view, camera_from_world=view.camera_from_world.cpu())
