"""Mesh extraction in the order of SuGaR's section 4.2: surface points, surface, trim, decimation, snap."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64

from fieldwatch.recon.geometry import Camera, seen_from_all_sides, target_ball
from fieldwatch.recon.mesh import (
    MeshError,
    OrientedPoints,
    Triangles,
    cleaned,
    decimated,
    facing_outward,
    fuse_depths,
    snapped,
    without_small_pieces,
)
from fieldwatch.recon.pipelines.splats.meshing.boxes import Box, Foreground, background_box, find_foreground
from fieldwatch.recon.pipelines.splats.meshing.budget import MemoryBudget
from fieldwatch.recon.pipelines.splats.meshing.density import density_surface
from fieldwatch.recon.pipelines.splats.meshing.depths import DepthMaps
from fieldwatch.recon.pipelines.splats.meshing.options import ExtractOptions
from fieldwatch.recon.pipelines.splats.meshing.photo_background import PhotoBackground
from fieldwatch.recon.pipelines.splats.meshing.regions import MeshRegion, Progress, poisson_region, refuse_empty
from fieldwatch.recon.pipelines.splats.meshing.rendered_depths import RenderedDepths
from fieldwatch.recon.pipelines.splats.meshing.surface import OpaqueGaussians, VisibleSurface, surface_points
from fieldwatch.recon.pipelines.splats.model import SplatModel
from fieldwatch.recon.pipelines.splats.scene import Scene
from fieldwatch.recon.render import View

# Bounds of the automatic resolution, cells along the longest side.
_MIN_RESOLUTION = 96
_MAX_RESOLUTION = 384
_CELLS_PER_PIXEL = 1.5
_CELLS_PER_PIXEL_FUSED = 0.5  # a depth map has one value per pixel; smaller cells would show its noise
_MAX_SNAP = 2.0  # maximum displacement of a vertex, cells
_SEEN_CELLS = 3.0  # difference between the depths of a face and of a photo's rendered surface, cells
_SEEN_SIDES = 0.25  # the same, in longest sides of the face
_FACES_AT_ONCE = 1 << 15
_DEPTHS_SHARE = 0.15  # fraction of the remaining memory for the depth maps
_FUSION_SHARE = 0.6  # fraction of the remaining memory


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """Result of an extraction.

    Attributes:
        meshes: meshes by name: `level0.3`, or the method's name if it has no levels.
        notes: messages for the user.
        facts: counts, foreground box, duration in seconds, and whether the surface should be closed.
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
    """Extract meshes from trained Gaussians, on the CPU.

    Args:
        model: model with the Gaussians.
        scene: scene with the training cameras.
        options: options of the extraction.
        bands: number of bands in which images are rendered.
        on_progress: function called with the name of the current stage and its progress from 0 to 1.

    Raises:
        ValueError: No Gaussian is opaque, or there is not enough memory.
        MeshError: Neither foreground nor background has a surface, or there is not enough memory for the grid.
    """
    start = time.perf_counter()
    budget = MemoryBudget(options.memory)
    # Training photos only: held-out ones must not shape the mesh.
    cameras = tuple(scene.photos.cameras[i] for i in scene.photos.train)
    views = tuple(map(_on_cpu, scene.training_views))
    # With --background, what surrounds the object is wanted.
    ball = None if options.background or options.surroundings == "keep" else target_ball(cameras)
    background = PhotoBackground.of(scene.photos, model, ball)
    hull = background.hull
    # Gaussians that float in the background of photos would become surface.
    gaussians = OpaqueGaussians.of(model, hull, bands=bands)
    rendered = RenderedDepths.of(model, hull, cameras, views, mask_of=background.mask_of, bands=bands)
    fused = rendered if options.method == "tsdf" else None
    visible = surface_points(
        gaussians,
        views,
        options.surface_level,
        count=options.sampled_points,
        budget=budget,
        mask_of=background.mask_of,
        hull=hull,
        seed=options.seed,
        on_view=lambda done: on_progress("surface points", done / len(views)),
    )
    if fused is not None:
        visible = replace(visible, depths=fused.maps(budget.share(_DEPTHS_SHARE)))  # what the photos show was fused
    every = OrientedPoints.joined(*visible.levels).points
    foreground = find_foreground(cameras, every, options.bbox, centered=options.centered)
    mesher = _RegionMesher(options, budget, gaussians, fused, cameras, views, visible, foreground.box, on_progress)
    meshes: dict[str, Triangles] = {}
    notes = background.notes(gaussians.carved) + foreground_notes(foreground, every, background=options.background)
    for level, points in zip(options.surface_level, visible.levels, strict=True):
        if options.method == "tsdf" and meshes:
            continue  # fusion has no levels and gives a single mesh
        name = "tsdf" if options.method == "tsdf" else f"level{level:g}"
        # Foreground and background are meshed separately, with different cell sizes.
        inside = foreground.box.contains(points.points)
        far = background_box(cameras, foreground.box).contains(points.points) & ~inside
        regions = mesher.regions(level, points.chosen(inside), points.chosen(far))
        notes += [f"{name}: {note}" for region in regions for note in region.notes]
        meshes[name], removed = mesher.finished(regions, points)
        notes += [f"{name}: {note}" for note in removed]
    should_close = options.unseen == "close" or _closes(foreground, cameras)
    facts = {
        "method": options.method,
        "opaque_gaussians": len(gaussians.ellipsoids.means),
        "carved_gaussians": gaussians.carved,
        "views": len(views),
        "foreground": [foreground.box.low.tolist(), foreground.box.high.tolist()],
        "foreground_kind": foreground.kind,
        "should_close": should_close,
        "points": {f"level{level:g}": len(p) for level, p in zip(options.surface_level, visible.levels, strict=True)},
        "meshes": {
            name: {"vertices": len(mesh.vertices), "triangles": len(mesh.faces)} for name, mesh in meshes.items()
        },
        "seconds": round(time.perf_counter() - start, 2),
    }
    # Regions of several levels may give the same note: remove duplicates, keep the order.
    return Extraction(meshes=meshes, notes=tuple(dict.fromkeys(notes)), facts=facts)


def _closes(foreground: Foreground, cameras: Sequence[Camera]) -> bool:
    """Return whether the surface should be closed: it is neither a scene, nor an object with a hidden side."""
    center = torch.from_numpy(foreground.box.middle)
    return foreground.kind != "seen" and seen_from_all_sides(cameras, center)


@dataclass(frozen=True)
class _RegionMesher:
    """Meshing of the foreground and background of a level."""

    options: ExtractOptions
    budget: MemoryBudget
    gaussians: OpaqueGaussians
    fused: RenderedDepths | None
    cameras: tuple[Camera, ...]
    views: tuple[View, ...]
    visible: VisibleSurface
    foreground: Box
    on_progress: Progress

    def regions(self, level: float, near: OrientedPoints, far: OrientedPoints) -> list[MeshRegion]:
        """Return the foreground and, if enabled, the background."""
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
            empty=self.visible.depths.emptiness,
            on_progress=self.on_progress,
        )

    def _foreground(self, level: float, points: OrientedPoints) -> MeshRegion:
        if self.options.method == "poisson" or not len(points):
            return self._poisson("foreground", points)
        box = self._padded_box(points)
        resolution = self.resolution(points)
        if self.fused is not None:
            mesh = self._fused(self.fused, box, resolution)
        else:
            mesh = density_surface(
                self.gaussians, level, box, resolution, lambda done, of: self.on_progress("density", done / of)
            )
        self.budget.check_faces(len(mesh.faces), resolution)
        mesh = without_small_pieces(mesh, least_share=self.options.least_piece)
        mesh = cleaned(replace(mesh))  # a copy without cached properties, to free their memory
        return MeshRegion(name="foreground", mesh=replace(mesh) if len(mesh.faces) else None)

    def _fused(self, depths: RenderedDepths, box: Box, resolution: int) -> Triangles:
        """Fuse the rendered depths of the foreground into a volume."""
        return fuse_depths(
            depths,
            low=box.low,
            high=box.high,
            resolution=resolution,
            memory=self.budget.share(_FUSION_SHARE) if self.budget.limited else None,
            close=self.options.unseen == "close",
            on_view=self._report_fusion,
        )

    def _report_fusion(self, done: int) -> None:
        """Report the progress of the fusion, which makes several passes over the views if memory is limited."""
        pass_number, number = divmod(done - 1, len(self.views))
        stage = f"fusion, part {pass_number + 1}" if pass_number else "fusion"
        self.on_progress(stage, (number + 1) / len(self.views))

    def _padded_box(self, points: OrientedPoints) -> Box:
        """Return the bounding box of the points with a margin of four cells."""
        low = points.points.min(0)
        high = points.points.max(0)
        margin = 4 * float((high - low).max()) / self.resolution(points)
        return Box(low=low - margin, high=high + margin)

    def resolution(self, points: OrientedPoints) -> int:
        """Return the number of cells along the longest side: as configured, or derived from the photos' resolution."""
        if self.options.resolution is not None or not len(points):
            return self.options.resolution or _MIN_RESOLUTION
        # The median is robust against outlying points.
        middle = torch.from_numpy(np.median(points.points, axis=0)).float()
        # Size of a pixel of each photo at the points, world units.
        pixels = [float((view.position - middle).norm()) / view.fx for view in self.views]
        longest = float(np.ptp(points.points, axis=0).max())
        cells = _CELLS_PER_PIXEL if self.fused is None else _CELLS_PER_PIXEL_FUSED
        return int(np.clip(cells * longest / np.median(pixels), _MIN_RESOLUTION, _MAX_RESOLUTION))

    def finished(self, regions: list[MeshRegion], points: OrientedPoints) -> tuple[Triangles, list[str]]:
        """Join, decimate and snap the meshes of the regions, in SuGaR's order, and remove what no photo shows.

        Returns:
            The mesh, and notes about what was removed.
        """
        self.on_progress("finishing", 0.0)
        meshes = [region.mesh for region in regions if region.mesh is not None]
        # Joined first, because the limit of the decimation is for foreground and background together.
        mesh, notes = self._seen(joined(meshes), points)
        del meshes
        self.budget.release_freed()
        # After the cut, so that the mesh has as many triangles as were asked for.
        if self.options.limit is not None:
            mesh = cleaned(decimated(mesh, **self.options.limit))
            self.budget.release_freed()
        elif notes:
            mesh = cleaned(mesh)
            self.budget.release_freed()
        # The vertices of the other methods are already on the level set or the fused depth.
        if self.options.snap and self.options.method == "poisson":
            # The foreground sets the cell size if there is one: the background's cells are much larger.
            near = points.chosen(self.foreground.contains(points.points)) if regions[0].mesh is not None else points
            mesh = snapped(mesh, points, farthest=_MAX_SNAP * self._cell(near))
            mesh = cleaned(mesh)  # a separate statement, so that the previous mesh and its cached properties are freed
            self.budget.release_freed()
        mesh = facing_outward(mesh, points)
        self.on_progress("finishing", 1.0)
        return mesh, notes

    def _cell(self, points: OrientedPoints) -> float:
        """Return the size of the cells of a region with these points, world units."""
        return float(np.ptp(points.points, axis=0).max()) / self.resolution(points) if len(points) else 0.0

    def _tolerance(self, mesh: Triangles, points: OrientedPoints) -> Float64[np.ndarray, " m"]:
        """Return the difference of depth within which a photo shows a face, by its region's cells and its own size."""
        inside = self.foreground.contains(points.points)
        near, far = (_SEEN_CELLS * self._cell(points.chosen(part)) for part in (inside, ~inside))
        found: list[Float64[np.ndarray, " m"]] = []
        for corners in _corners(mesh):
            cells = np.where(self.foreground.contains(corners.mean(1)), near, max(near, far))
            sides = np.linalg.norm(np.roll(corners, -1, axis=1) - corners, axis=2)
            # The center of a large face may lie beside the surface.
            found.append(np.maximum(cells, _SEEN_SIDES * sides.max(1)))
        return np.concatenate(found)

    def _seen(self, mesh: Triangles, points: OrientedPoints) -> tuple[Triangles, list[str]]:
        """Remove surface that too few photos show, and all but the largest pieces; say how much that is."""
        notes: list[str] = []
        kept = mesh
        if self.options.least_views and self.options.unseen == "trim":
            least = self.options.least_views
            unseen = "no training photo shows it" if least == 1 else f"fewer than {least} training photos show it"
            kept = seen_surface(mesh, self.visible.depths, least, self._tolerance(mesh, points))
            if not len(kept.faces):
                raise MeshError(f"no surface was found and nothing was written: {unseen}; lower --least-views")
            if kept is not mesh:
                kept = without_small_pieces(kept, least_share=self.options.least_piece)
            notes += _removed_note(mesh, kept, unseen, "--least-views 0")
        if self.options.pieces:
            largest = largest_pieces(kept, self.options.pieces)
            notes += _removed_note(
                kept, largest, f"it is not part of the {self.options.pieces} largest pieces", "--pieces 0"
            )
            kept = largest
        return kept, notes


def foreground_notes(foreground: Foreground, points: Float64[np.ndarray, "n 3"], *, background: bool) -> list[str]:
    """Return notes on the foreground: what it is if it was found, and what is left out.

    Args:
        foreground: the foreground.
        points: all surface points.
        background: whether the scene outside is meshed, too.
    """
    if not len(points):
        return []
    found = {
        "object": f"the object is what at least half of the cameras have in their image: {foreground.box}",
        "seen": f"the cameras do not go around an object, so all that they see is meshed: {foreground.box}",
    }
    outside = 1 - float(foreground.box.contains(points).mean())
    left_out = f"{outside:.1%} of the surface points are outside of the foreground and left out: use --background to "
    left_out += "mesh them, too, as for `mesh refine`"
    notes = [found[foreground.kind]] if foreground.kind in found else []
    return [*notes, left_out] if outside and not background else notes


def seen_surface(mesh: Triangles, depths: DepthMaps, least: int, tolerance: Float64[np.ndarray, " m"]) -> Triangles:
    """Return the faces that enough views see, with their neighbors, so that the edge is not ragged.

    Args:
        mesh: mesh to cut.
        depths: depth maps of the views.
        least: number of views that must see a face.
        tolerance: for each face, the difference between its depth and that in the view, world units.
    """
    centers = np.concatenate([corners.mean(1) for corners in _corners(mesh)])
    counts = depths.sightings(centers, tolerance, least)
    touched = np.zeros(len(mesh.vertices), bool)
    touched[mesh.faces[counts >= least]] = True
    keep = np.asarray(touched[mesh.faces].any(1), np.bool_)
    return mesh if keep.all() else mesh.chosen(keep)


def largest_pieces(mesh: Triangles, count: int) -> Triangles:
    """Return the largest connected components by area."""
    areas = np.bincount(mesh.pieces, mesh.areas)
    keep = np.isin(mesh.pieces, np.argsort(-areas, kind="stable")[:count])
    return mesh if keep.all() else mesh.chosen(keep)


def _removed_note(before: Triangles, after: Triangles, why: str, remedy: str) -> list[str]:
    removed = len(before.faces) - len(after.faces)
    if removed <= 0:
        return []
    share = 1 - _area(after) / _area(before)
    count = f"{removed:,} of {len(before.faces):,} triangles ({share:.1%} of the area)"
    return [f"{count} are removed: {why}; {remedy} keeps them"]


def _area(mesh: Triangles) -> float:
    spans = (np.diff(corners, axis=1) for corners in _corners(mesh))
    return sum(float(np.linalg.norm(np.cross(each[:, 0], each[:, 1]), axis=1).sum()) for each in spans) / 2


def _corners(mesh: Triangles) -> Iterator[Float64[np.ndarray, "m 3 3"]]:
    """Yield the corners of the faces in parts, because what a mesh computes for all of them it also keeps in memory."""
    for start in range(0, len(mesh.faces), _FACES_AT_ONCE):
        yield mesh.vertices[mesh.faces[start : start + _FACES_AT_ONCE]]


def joined(meshes: list[Triangles]) -> Triangles:
    """Concatenate meshes without connecting them. Colors are kept if all meshes have them."""
    starts = np.cumsum([0, *(len(mesh.vertices) for mesh in meshes)])
    colors = [mesh.colors for mesh in meshes if mesh.colors is not None]
    return Triangles(
        vertices=np.concatenate([mesh.vertices for mesh in meshes]),
        faces=np.concatenate([mesh.faces + start for mesh, start in zip(meshes, starts, strict=False)]),
        colors=np.concatenate(colors) if len(colors) == len(meshes) else None,
    )


def _on_cpu(view: View) -> View:
    return replace(view, camera_from_world=view.camera_from_world.cpu())
