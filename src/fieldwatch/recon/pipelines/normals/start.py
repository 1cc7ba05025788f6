"""Start of a normals run: prepares the scene, and opens the run with its metrics, rules and checkpoint policy."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from jaxtyping import Float64

from fieldwatch import TOOLKIT, ConfigMismatch, Declared, InputError, Outputs, Ranks, Retention, Run, Saving
from fieldwatch.pipeline import RunChoices, choose_device, holds_run, read_manifest, run_options
from fieldwatch.recon.data import (
    NormalSet,
    NormalView,
    SolidUnion,
    integrate_normals,
    open_normal_maps,
    scaled_normal_view,
    synthetic_normal_maps,
)
from fieldwatch.recon.mesh import Triangles, implicit_surface, read_mesh
from fieldwatch.recon.pipelines.normals.batches import patches_of_graphs
from fieldwatch.recon.pipelines.normals.config import NormalsConfig
from fieldwatch.recon.pipelines.normals.layout import NORMALS_LAYOUT
from fieldwatch.recon.pipelines.normals.poses import ring_radius_of, starting_poses
from fieldwatch.recon.pipelines.normals.ray_budget import RayBudget
from fieldwatch.recon.pipelines.normals.rules import NORMALS_RULES
from fieldwatch.recon.pipelines.normals.scene import NormalsScene
from fieldwatch.recon.pipelines.normals.schedule import NormalsSchedule
from fieldwatch.recon.pipelines.normals.tags import NORMALS_METRICS
from fieldwatch.recon.render import native_note
from fieldwatch.recon.render.sdf_gpu import MOST_FEATURES, MOST_POINTS, sdf_kernels_problem

TRUTH_CELLS = 128
"""Cells along each edge of the box for the built-in object's ground-truth mesh; its vertices are on the surface."""
SHORT = 1e-4
"""Half the distance of the finite differences for its normals."""
NEED_DEPTH = ("depth", "point_cloud", "surface")
"""Terms that need integrated depth."""


def prepare_scene(config: NormalsConfig) -> NormalsScene:
    """Read maps and cameras, check them, and initialize the poses.

    Raises:
        ValueError, OSError: the input is invalid; the message says what was expected, what was found, and what to do.
    """
    device = choose_device(config.device)
    plan = NormalsSchedule(config=config)
    maps = _maps(config)
    train, test = _split(len(maps), config.held_out)
    refuse_unknown_poses(config, maps)
    # Before normals are integrated, which takes a while.
    refuse_few_rays(config, len(train), Ranks.of_process())
    maps, notes = _with_depth(maps, plan)
    return NormalsScene(
        maps=maps,
        train=train,
        test=test,
        device=device,
        schedule=plan,
        starting_poses=starting_poses(maps.views, config.poses, config.seed),
        read_truth=_truth(config, maps),
        notes=(
            *maps.notes,
            *notes,
            *_pose_notes(config, maps),
            *_schedule_notes(config),
            *_device_notes(config, device),
        ),
    )


def refuse_unknown_poses(config: NormalsConfig, maps: NormalSet) -> None:
    """Check that maps without poses are not trained with those of the data.

    Raises:
        InputError: the data has no poses, and the poses are to start from them.
    """
    if not maps.posed and config.poses.pose_start != "ring":
        raise InputError(
            f"{config.data} has maps and intrinsics but no poses: expected poses, or a ring to start from; use "
            "--preset poses --pose-start ring (views in order around the object), or add cameras_sphere.npz, "
            "transforms.json or "
            "COLMAP's sparse/0"
        )


def refuse_few_rays(config: NormalsConfig, views: int, ranks: Ranks) -> None:
    """Check that every autograd graph has a patch of rays for every process.

    Args:
        config: settings of the run.
        views: number of training views.
        ranks: ranks that share the rays.

    Raises:
        InputError: some processes would have no rays.
    """
    options = config.rays
    patch = config.rendering.patch
    most = options.warm_up_rays if options.warm_up_rays_until else None
    least = min(patches_of_graphs(options, views, patch, RayBudget(options).rays, most))
    if least < ranks.world:
        unit = f"patches of {patch} x {patch} rays" if patch > 1 else "rays"
        raise InputError(
            f"{ranks.world} processes cannot share an autograd graph of {least} {unit}: raise --rays (or "
            f"--rays-per-view, --warm-up-rays) {ranks.world / least:.2g}-fold or --views-per-graph, or use "
            f"--nproc-per-node {least}"
        )


def start_run(config: NormalsConfig, scene: NormalsScene, folder: Path, **how: Unpack[RunChoices]) -> Run:
    """Open the run with its metrics, rules, windows, phases and checkpoint policy.

    Raises:
        ConfigMismatch: the folder holds a run with another config or on other maps.
    """
    digest_at_start = read_manifest(folder).about.get("digest") if holds_run(folder) else None
    # The config contains only the path of the data, whose files may have changed since.
    if digest_at_start is not None and digest_at_start != scene.digest:
        raise ConfigMismatch(
            f"{folder} was trained on other maps than those of {scene.maps.source or config.name}: normals, masks or "
            "cameras have changed since. Restore the original maps, or train in another folder with --out"
        )
    plan = scene.schedule
    every = config.checkpoint_interval
    options = run_options(
        how,
        saving=Saving(
            every=max(plan.step_of(every), 1) if every else None,
            keep=Retention(last=config.keep_last, best=config.keep_best, metric="mae", better="lower", name="ckpt"),
        ),
        declared=Declared(
            windows=plan.windows,
            phases=plan.phases,
            metrics=TOOLKIT + NORMALS_METRICS,
            layout=NORMALS_LAYOUT,
            about=about(config, scene),
        ),
        outputs=Outputs(rules=NORMALS_RULES),
    )
    return Run(folder, config=config, **options)


def about(config: NormalsConfig, scene: NormalsScene) -> Mapping[str, Any]:
    """Return the description of the scene for `run.json`."""
    names = scene.maps.names
    return {
        "pipeline": "normals",
        "scene": config.name,
        "views": len(scene.maps),
        "train": [names[i] for i in scene.train],
        "test": [names[i] for i in scene.test],
        "sizes": sorted({f"{width}x{height}" for height, width in scene.maps.sizes}),
        "world_from_unit": scene.maps.world_from_unit.tolist(),
        "digest": scene.digest,
        "notes": list(scene.notes),
    }


def _maps(config: NormalsConfig) -> NormalSet:
    if config.data is None:
        return synthetic_normal_maps(views=config.views, size=config.size, depth="none")
    maps = open_normal_maps(
        config.data,
        axes=config.axes,
        space=config.space,
        channels=config.channels,
        pixel_center=config.pixel_center,
        normals=config.normals,
        masks=config.masks,
        depth=config.depth,
        exclude=config.exclude,
        fill_holes=config.fill_holes,
    )
    if config.noise is not None:
        maps = replace(maps, noise=config.noise)
    if config.longer_side is None:
        return maps
    return replace(maps, views=tuple(_within(view, config.longer_side) for view in maps.views))


def _within(view: NormalView, longer_side: int) -> NormalView:
    factor = longer_side / max(view.size)
    return view if factor >= 1 else scaled_normal_view(view, factor)


def _with_depth(maps: NormalSet, plan: NormalsSchedule) -> tuple[NormalSet, list[str]]:
    """Integrate the normals of views without depth, if a term needs it."""
    # Integration is slow, so it is skipped if no term reads depth.
    lacking = [view.name for view in maps.views if view.depth is None]
    if not lacking or not any(term in plan.windows for term in NEED_DEPTH):
        return maps, []
    views = tuple(_integrated(view) if view.depth is None else view for view in maps.views)
    note = f"integrated the depth of {len(lacking)} of {len(maps)} views, which had none, from their normals"
    return replace(maps, views=views), [note]


def _integrated(view: NormalView) -> NormalView:
    depth = integrate_normals(view.normals.double(), view.valid, view.camera)
    return replace(view, depth=depth.float())


def _split(views: int, held_out: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the training and held-out views; every ``held_out``-th from the first on is held out (SuperNormal)."""
    test = tuple(range(0, views, held_out)) if held_out else ()
    train = tuple(number for number in range(views) if number not in test)
    if not train:
        raise InputError(
            f"--held-out {held_out} leaves none of {views} views for training: raise it, or use 0 to hold out none"
        )
    return train, test


def _truth(config: NormalsConfig, maps: NormalSet) -> Any:
    if config.data is None:
        return built_in_truth
    return None if maps.mesh is None else partial(_true_mesh, maps)


@cache
def built_in_truth() -> Triangles:
    """Return the surface of the built-in object as a mesh, the same for all runs of the process."""
    solid = SolidUnion()

    def distance(points: Float64[np.ndarray, "n 3"]) -> Float64[np.ndarray, "n"]:
        return solid.distance(torch.from_numpy(points)).numpy()

    # Marching cubes interpolates linearly; the Newton steps below move vertices onto the exact surface.
    mesh = implicit_surface(distance, np.full(3, -1.0), np.full(3, 1.0), resolution=TRUTH_CELLS)
    points = mesh.vertices
    for _ in range(2):  # Newton steps onto the surface
        offsets = SHORT * np.eye(3)
        slopes = [distance(points + offset) - distance(points - offset) for offset in offsets]
        normals = np.stack(slopes, -1) / (2 * SHORT)
        lengths = np.square(normals).sum(-1, keepdims=True).clip(min=0.25)  # short in creases between solids
        points = points - distance(points)[:, None] * normals / lengths
    return replace(mesh, vertices=points)


def _true_mesh(maps: NormalSet) -> Triangles:
    assert maps.mesh is not None  # noqa: S101  called only if there is one
    mesh = read_mesh(maps.mesh)
    # The inverse of the transform from the unit sphere to the world, which scales and shifts only.
    matrix = maps.world_from_unit.double().numpy()
    return replace(mesh, vertices=(mesh.vertices - matrix[:3, 3]) / matrix[0, 0])


def _pose_notes(config: NormalsConfig, maps: NormalSet) -> list[str]:
    if config.poses.pose_start != "ring" or config.poses.ring_radius is not None:
        return []
    radius = ring_radius_of(maps.views)
    return [f"radius of the ring: {radius:.2f}, from the masks and the lenses; --ring-radius overrules"]


def _schedule_notes(config: NormalsConfig) -> list[str]:
    if config.steps == config.nominal:
        return []
    return [f"the schedule of {config.nominal:,} iterations is rescaled to {config.steps:,} steps (--steps)"]


def _device_notes(config: NormalsConfig, device: torch.device) -> list[str]:
    """Return a note if training is slower than it could be on the device."""
    if device.type == "cuda":
        reason = _without_kernels(config) or sdf_kernels_problem()
        if reason is None:
            return []
        return [f"the GPU kernels are not used ({reason}): torch's own operations render, and the host waits for them"]
    note = native_note() if device.type == "cpu" else None
    return [] if note is None else [note]


def _without_kernels(config: NormalsConfig) -> str | None:
    """Return which setting the GPU kernels do not support, if there is one."""
    features = config.sdf.levels * config.sdf.features_per_level
    if config.rendering.gradient_method != "ad":
        return f"--gradient-method {config.rendering.gradient_method}"
    if config.sdf.layers > 1:
        return f"--layers {config.sdf.layers}"
    if features > MOST_FEATURES:
        return f"{features} features per point (--levels times --features-per-level), more than {MOST_FEATURES}"
    if not Ranks.of_process().alone:
        return "several processes share the rays"
    # Sections in strides of one: each may have two ends of its own.
    ends = 2 * RayBudget(config.rays).max_samples + config.rays.rays * (config.rendering.empty_samples + 1)
    return None if ends <= MOST_POINTS else f"up to {ends} ends of samples, more than {MOST_POINTS}"
