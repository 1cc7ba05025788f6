"""Trainings of the resume matrix: the smallest one of each pipeline that covers all of its stages."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from PIL import Image

from fieldwatch.recon.data import read_clip, solid_photos, synthetic_normal_maps, write_normal_maps
from fieldwatch.recon.data.colmap import write_colmap
from fieldwatch.recon.pipelines import normals, splats, video
from fieldwatch.recon.pipelines.normals.batches import RaySource
from fieldwatch.recon.pipelines.normals.config import (
    FieldOptions,
    PoseOptions,
    RayOptions,
    RecoveryOptions,
    RenderOptions,
)
from fieldwatch.recon.pipelines.normals.learning import NormalsOptimizers
from torture.resume import Case, Part

SETTING = "a setting: a resumed run has it from its config"
EVERY_STEP = "set at every step, from the schedule"
NO_TROUBLE = "does not occur in these runs, so it is as in a new object; other tests cover it"
SEEDED = "set from --seed by every start, and nothing here draws from it; the part `states` draws from it"
HARMLESS = {
    "loop_checks/*": "health rules read what is measured with it, no loss does; rows of stops compare the records",
    "random_state/python*": SEEDED,
    "random_state/numpy*": SEEDED,
    "random_state/generators*": "no named generators here: those of rays and order are separate parts",
    "random_state/cuda*": "no GPU here",
    "*/param_groups/*/lr": EVERY_STEP,
    "*/param_groups*": SETTING,
    "order/shape*": SETTING,
    "micro_batches/*": NO_TROUBLE,
    "evaluation_batches/*": NO_TROUBLE,
    "validation/*": NO_TROUBLE,
}
UNDRAWN = {"random_state/torch": "only initial weights are drawn from it: order and rays have other generators"}
QUICK = ("changes: pulls", "optimizer: exp_avg_sq", "order: cursor", "neighbors: indices")
"""Controls of the fast tests: one for densification, one for an optimizer, one for the order, one for a search."""


def every_case(folder: Path) -> Iterator[Case]:
    """Return all cases of the matrix, one after the other."""
    yield video_case(folder, amp=False, streams=False)
    yield video_case(folder, amp=True, streams=False)
    yield video_case(folder, amp=False, streams=True)
    yield splats_case(folder, streams=False)
    yield splats_case(folder, streams=True)
    yield normals_case(folder)
    yield disturbed_case(folder)


def parts_of(item: str, names: str, at: str) -> list[Part]:
    """Return one part for each value of an item."""
    return [Part(name=f"{item}: {name}", leaves=(f"{item}/{name}",), at=at) for name in names.split()]


def optimizer(item: str, at: str) -> list[Part]:
    """Return one part for each kind of value that Adam keeps."""
    names = ("exp_avg", "exp_avg_sq", "step")
    return [Part(name=f"{item}: {name}", leaves=(f"{item}/state/*/{name}",), at=at) for name in names]


def draw_frames(folder: Path) -> Path:
    """Write sixteen small frames."""
    folder.mkdir(parents=True, exist_ok=True)
    y, x = np.mgrid[0:16, 0:32] / 16
    for i in range(16):
        waves = np.stack([np.sin(6 * x + i / 3), np.cos(5 * y - i / 4), np.sin(4 * (x + y) + i / 5)], axis=-1)
        Image.fromarray(np.round(127.5 + 110 * waves).astype(np.uint8)).save(folder / f"{i:04d}.png")
    return folder


def video_case(folder: Path, *, amp: bool, streams: bool) -> Case:
    """Train with eight steps per epoch; the semantic term begins in the third epoch."""
    narrow = {
        "grid_cells": (4, 2),
        "grid_widths": (8, 8),
        "grid_channels": (4, 2),
        "grid_periods": (1, 2),
        "grid_static": (4, 0),
        "grid_blocks": (1, 1),
        "grid_kernel": 3,
    }
    config = video.VideoConfig(
        data=draw_frames(folder / "frames"),
        options=replace(video.VideoConfig().options, **narrow),
        rows=1,
        columns=2,
        batch=4,
        data_split="7_7_8",
        teacher="descriptor",
        between_weight=0.5,
        epochs=6,
        eval_freq=6,
        pixel_loss_warmup_epochs=2,
        checkpoint_epochs=100,
        lr=5e-3,
        amp=amp,
        device="cpu",
        cache=folder / "cache",
    )
    scene = video.prepare_scene(config)
    if streams:
        scene = replace(scene, clip=read_clip(folder / "frames", memory_budget=0), resident=None)
    each = video.total_steps(config, scene) // config.epochs
    middle = "in the middle of an epoch"
    parts = [
        Part(name="weights", leaves=("model/*",), at=middle),
        *optimizer("optimizer", middle),
        *parts_of("order", "order cursor epoch generator", "in the middle of another epoch"),
        *parts_of("means", "sums", middle),
    ]
    return Case(
        name=f"video {'AMP' if amp else 'fp32'}, {'one thread decodes' if streams else 'in memory'}",
        train=lambda at: video.train_video(config, scene, at, sinks=()),
        stops={
            middle: each // 2,
            "at the end of an epoch": each,
            "where a term begins": 2 * each,
            "in the middle of another epoch": 4 * each + 3,
        },
        parts=[] if amp or streams else parts,
        harmless=HARMLESS | UNDRAWN,
    )


def splats_case(folder: Path, *, streams: bool) -> Case:
    """Train with densification after steps 19, 39 and 59, entropy from 70, prune and density from 90, search at 100."""
    data = folder / "photos"
    if not data.exists():
        write_colmap(data, solid_photos(views=8, size=24, points=80, samples=1))
    config = splats.SplatsConfig(
        data=data,
        held_out=4,
        memory_gb=1e-9 if streams else 1.0,
        regularization="dn_consistency",
        coarse_iterations=12_000,
        schedule_scale=0.01,
        test_iterations=(),
        checkpoint_interval=0,
        checkpoint_milestones=(),
        turntable=0,
        exposure=True,
        mip=True,
        degree=1,
        stats_every=7,
        device="cpu",
        growth_options=splats.DensificationOptions(growth_pull=4e-4, split_size=0.2),
        surface=splats.SurfaceOptions(beta="learnable", prune_below=0.05),
    )
    scene = splats.prepare_scene(config)
    first = "in the middle of an epoch"
    early = "while growth collects"
    grown = "right after growth"
    late = "while neighbors are searched"
    parts = [
        *parts_of("gaussians", "means log_scales quaternions opacity_logits constant", first),
        *parts_of("gaussians", "rest", early),
        *parts_of("mip", "widths", early),
        *parts_of("exposures", "raw", early),
        *parts_of("beta", "log_beta", late),
        *optimizer("optimizer", early),
        *optimizer("exposure_optimizer", early),
        *optimizer("beta_optimizer", late),
        *parts_of("changes", "pulls sightings", early),
        *parts_of("changes", "radii", "right before growth"),
        *parts_of("order", "order cursor epoch generator", grown),
        *parts_of("neighbors", "indices points due", late),
        *parts_of("instruments", "since", "at the end of an epoch"),
        Part(name="random state: torch", leaves=("random_state/torch*",), at=early),
    ]
    return Case(
        name=f"splats fp32, {'one thread decodes' if streams else 'in memory'}",
        train=lambda at: splats.train_splats(config, scene, at, sinks=()),
        stops={
            first: 4,
            early: 33,
            "right before growth": 39,
            grown: 40,
            "at the end of an epoch": 48,
            "while growth collects again": 52,
            "while the entropy term acts": 75,
            "where Gaussians are pruned": 90,
            late: 103,
        },
        parts=[] if streams else parts,
        harmless=HARMLESS
        | {
            "neighbors/squared": "no term of these runs reads the distances, only the indices of the neighbors",
            "instruments/steps": "here, every Gaussian is in every photo; another test covers other scenes",
            "instruments/now": "set at every step, before it is read",
        },
    )


def normals_config(data: Path) -> normals.NormalsConfig:
    """Train with learned poses and sharpness, added levels of the encoding, and a varying number of rays."""
    if not data.exists():
        write_normal_maps(synthetic_normal_maps(views=3, size=24), data)
    return normals.NormalsConfig(
        data=data,
        steps=48,
        nominal=480,
        stages=(
            "shape@0 mask=1 eikonal=0.1",
            "all@200+100 normal=1 mask=1 eikonal=0.1 depth=0.1 point_cloud=0.01 consistency=0.01",
        ),
        sdf=FieldOptions(
            levels=3, first_levels=1, levels_by=400, base_resolution=4, finest_resolution=12, table_bits=10, hidden=16
        ),
        rendering=RenderOptions(
            grid_resolution=12, grid_every=8, grid_warmup=8, first_step=0.05, last_step=0.03, empty_samples=8
        ),
        rays=RayOptions(rays=128, views_per_step=2, sample_budget=800),
        poses=PoseOptions(
            pose_start="noisy",
            rotation_noise=1,
            translation_noise=0.02,
            learn_rotation=True,
            learn_translation=True,
            poses_from=50,
        ),
        recovery=RecoveryOptions(collapse_patience=4, good_every=200),
        mesh_resolution=8,
        mesh_at=0,
        evaluate_at=0,
        poses_at=0,
        turntable=0,
        checkpoint_interval=100_000,
        device="cpu",
    )


def normals_case(folder: Path) -> Case:
    """Return the case of an undisturbed run."""
    config = normals_config(folder / "maps")
    scene = normals.prepare_scene(config)
    middle = "right after an update of the occupancy"
    ramp = "where weights ramp"
    network = Part(name="model: network", leaves=("model/sdf.hidden*", "model/sdf.last*"), at=middle)
    return Case(
        name="normals fp32",
        train=lambda at: normals.train_normals(config, scene, at, sinks=()),
        stops={"before an update of the occupancy": 15, middle: 17, ramp: 26, "late": 40},
        parts=[
            network,
            *parts_of("model", "sdf.encoding.table deviation.parameter poses.rotations poses.translations", middle),
            *parts_of("model", "grid.values grid.occupied grid.updates", middle),
            *optimizer("field_optimizer", middle),
            *optimizer("pose_optimizer", middle),
            *parts_of("rays", "generator", middle),
            *parts_of("budget", "budget/per_ray", middle),
            *parts_of("view_terms", "scales/values", ramp),
            Part(name="recovery: usual losses", leaves=("recovery/losses/usual*",), at=middle),
            *parts_of("recovery", "counts/calm", middle),
            *parts_of("recovery", "counts/since", ramp),
        ],
        harmless=HARMLESS
        | UNDRAWN
        | {
            "model/poses.start": "built again from the same data",
            "model/sdf.encoding.active_levels": EVERY_STEP,
            "recovery/*": "in the disturbed run",
        },
    )


def disturbed_case(folder: Path) -> Case:
    """Train with six non-finite batches in a row: updates are refused, and the run rolls back."""
    config = normals_config(folder / "maps")
    scene = normals.prepare_scene(config)
    before = "while updates are refused"
    after = "after going back"

    def train(at: Path) -> object:
        with spoilt(range(24, 30)):
            return normals.train_normals(config, scene, at, sinks=())

    refused = "judged and answered in groups of five: an older count changes nothing"
    reread = "read again at the next update of the grid"
    return Case(
        name="normals fp32, disturbed",
        train=train,
        stops={before: 28, after: 31},
        parts=[
            Part(name="recovery: what was not judged yet", leaves=("recovery/losses/pending",), at=before),
            Part(name="recovery: last good state", leaves=("recovery/good/*",), at=before),
            Part(name="recovery: step of that state", leaves=("recovery/counts/good_step",), at=before),
            Part(name="recovery: factor of the rates", leaves=("recovery/factor",), at=after),
            Part(name="recovery: times gone back since", leaves=("recovery/tries/rollbacks",), at=after),
            Part(name="recovery: times gone back", leaves=("recovery/total/rollbacks",), at=after),
        ],
        harmless=HARMLESS
        | {
            "recovery/losses/refused": refused,
            "recovery/losses/high": NO_TROUBLE,
            "recovery/losses/worst": NO_TROUBLE,
            "recovery/starved/*": NO_TROUBLE,
            "recovery/flags/told": NO_TROUBLE,
            "recovery/flags/served": "restored together with the number of calm steps, which is a separate part",
            "recovery/grid/*": reread,
            "recovery/t*/rebuilds": NO_TROUBLE,
            "*": "in the undisturbed run",
        },
    )


@contextmanager
def spoilt(steps: range) -> Iterator[None]:
    """Put NaN into the normals at some steps."""
    now = [-1]
    prepare = NormalsOptimizers.prepare
    draw = RaySource.draw

    def prepared(learning: NormalsOptimizers, step: int) -> None:
        now[0] = step
        prepare(learning, step)

    def drawn(source: RaySource, *counts: Any) -> list[Any]:
        batches = draw(source, *counts)
        return [replace(one, normals=one.normals * np.nan) for one in batches] if now[0] in steps else batches

    with patch.object(NormalsOptimizers, "prepare", prepared), patch.object(RaySource, "draw", drawn):
        yield
