"""Start of a splats run: load photos and Gaussians, and open the run with its metrics, rules and schedule."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor

from fieldwatch import (
    TOOLKIT,
    ConfigMismatch,
    Declared,
    Guard,
    InputError,
    Outputs,
    Ranks,
    Retention,
    Rollback,
    Run,
    Saving,
)
from fieldwatch.pipeline import RunChoices, choose_device, holds_run, read_manifest, run_options
from fieldwatch.recon.data import (
    PhotoOptions,
    PhotoSet,
    SolidScene,
    SplatFolder,
    open_splat_folder,
    read_colmap,
    read_splat_photos,
    read_transforms,
    solid_photos,
)
from fieldwatch.recon.data.exports import is_camera_export, read_camera_export, unread_export
from fieldwatch.recon.geometry import far_cameras
from fieldwatch.recon.pipelines.splats.backdrop import plain_backdrop
from fieldwatch.recon.pipelines.splats.config import SURFACE_TERMS, SplatsConfig
from fieldwatch.recon.pipelines.splats.layout import SPLATS_LAYOUT
from fieldwatch.recon.pipelines.splats.model import view_of
from fieldwatch.recon.pipelines.splats.rules import SPLATS_RULES
from fieldwatch.recon.pipelines.splats.scene import Distance, Scene
from fieldwatch.recon.pipelines.splats.schedule import COARSE_START, make_plan
from fieldwatch.recon.pipelines.splats.tags import SPLATS_METRICS
from fieldwatch.recon.render import depth_normals_problem, native_note
from fieldwatch.recon.render.splats import gsplat_problem, sample_kernels_problem, splat_kernels_problem

BUILT_IN = "built-in"
"""Value of `fieldwatch_scene` in the `cfg_args` of runs on the built-in scene."""
BUILT_IN_SIZE = 128
"""Width and height of the built-in scene's photos, pixels."""
_GIBIBYTE = 1 << 30
ROLLBACK = Rollback()
"""Rollback policy of splats runs; healthy runs of the presets stay far below its thresholds."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Source:
    """Photos, and the signed distance to the true surface if it is known."""

    photos: PhotoSet
    distance: Distance | None = None


def prepare_scene(config: SplatsConfig, left_out: Sequence[str] | None = None) -> Scene:
    """Read photos, cameras and Gaussians, plan the steps, and validate all input.

    Args:
        config: settings of the run.
        left_out: names of the photos that the run left out when it started (`photos_left_out_by`), to resume it without
            them; None decides from the config.

    Raises:
        ValueError, OSError: The input is invalid; the message names what was expected and what to do.
    """
    # Cheap checks first: a wrong device or schedule is reported before photos are read, which can take minutes.
    Ranks.of_process().refuse_small(config.views_per_step, "--views-per-step")
    device = choose_device(config.device)
    folder = None if config.checkpoint_path is None else open_splat_folder(config.checkpoint_path)
    loaded = None if folder is None else _iteration(config, folder)
    plan = make_plan(config, loaded)
    cloud = None if folder is None else folder.gaussians(loaded)
    source = _source(config, folder, left_out)
    photos = source.photos
    _refuse_single_position(photos)
    backdrop = plain_backdrop(photos) if config.background == "auto" else None
    # Otherwise black or white, the two backgrounds of 3DGS.
    background = torch.full((3,), float(config.background == "white")) if backdrop is None else backdrop
    input_notes = (*photos.notes, *_far_notes(photos), *(cloud.notes if cloud else ()), *plan.notes)
    return Scene(
        photos=photos,
        views=tuple(view_of(camera, device) for camera in photos.cameras),
        device=device,
        background=background.to(device),
        backdrop=backdrop,
        plan=plan,
        extent=photos.extent,
        cloud=cloud,
        loaded=loaded,
        distance=source.distance,
        notes=(
            *input_notes,
            *_backdrop_notes(backdrop),
            *_iteration_notes(config, folder),
            *_antialiasing_notes(config, folder),
            *_device_notes(config, device),
        ),
    )


def start_run(config: SplatsConfig, scene: Scene, folder: Path, **how: Unpack[RunChoices]) -> Run:
    """Open the run with its metrics, rules, windows, phases and checkpoint policy.

    Raises:
        ConfigMismatch: The folder contains a run with another config or other photos.
    """
    _refuse_other_photos(folder, scene)
    plan = scene.plan
    options = run_options(
        how,
        saving=Saving(
            every=plan.checkpoint_every,
            # Milestones stay: they were asked for by number, to go back to or to compare.
            keep=Retention(last=config.keep_last, best=config.keep_best, steps=plan.saves, metric="psnr"),
        ),
        guard=Guard(rollback=ROLLBACK),
        declared=Declared(
            windows=plan.windows,
            phases=plan.phases,
            metrics=TOOLKIT + SPLATS_METRICS,
            layout=SPLATS_LAYOUT,
            about=about(config, scene),
        ),
        outputs=Outputs(rules=SPLATS_RULES),
    )
    return Run(folder, config=config, **options)


def photos_left_out_by(folder: Path) -> tuple[str, ...] | None:
    """Return the names of the photos that the run in a folder left out at its start; None if it records none.

    Raises:
        NotARun: The folder's content cannot be read as a run.
    """
    names = read_manifest(folder).about.get("left_out") if holds_run(folder) else None
    # Runs of older versions do not record these names.
    return None if names is None else tuple(str(name) for name in names)


def scene_of_run(config: SplatsConfig, scene: Scene, folder: Path) -> Scene:
    """Return the scene with the photos that the run in a folder started with.

    A photo that was missing at the start and exists now, or vice versa, would change the scene of a resumed run.

    Raises:
        ValueError, OSError: As in `prepare_scene`.
    """
    left_out = photos_left_out_by(folder)
    # Nothing is read again in the usual case, in which the same photos are available.
    same = left_out is None or set(left_out) == set(scene.photos.left_out)
    return scene if same else prepare_scene(config, left_out)


def _refuse_single_position(photos: PhotoSet) -> None:
    """Reject cameras that all share one position: without parallax, neither scale nor depth is determined."""
    if photos.extent > 0:
        return
    count = len(photos.train)
    held_out = len(photos.test)
    remedy = "use --held-out 0, or add" if count == 1 and held_out else "add"
    fault = f"all {count} cameras have the same position"
    if count == 1:
        fault = f"only 1 photo remains for training ({held_out} held out)"
    raise InputError(f"{fault}, so that depth cannot be determined; {remedy} photos taken from different positions")


def _far_notes(photos: PhotoSet) -> list[str]:
    """Return a note that names the cameras whose pose is probably wrong."""
    far = far_cameras(photos.cameras)
    if not far:
        return []
    names = ", ".join(photos.names[i] for i in far)
    note = (
        f"warning: the cameras of {names} are over 20 times as far away as the others, so their poses are probably "
        "wrong; remove these photos from the reconstruction; they are ignored in the scale of the scene"
    )
    return [note]


def _backdrop_notes(backdrop: Tensor | None) -> list[str]:
    if backdrop is None:
        return []
    red, green, blue = (round(255 * value) for value in backdrop.tolist())
    note = (
        f"a plain backdrop surrounds the object in the photos: its color, RGB ({red}, {green}, {blue}), is the "
        "background (--background black or white uses another one)"
    )
    return [note]


def _refuse_other_photos(folder: Path, scene: Scene) -> None:
    """Reject photos, cameras, points or a split that differ from those the run in the folder started with."""
    digest = read_manifest(folder).about.get("digest") if holds_run(folder) else None
    if digest is not None and digest != scene.photos.digest:
        raise ConfigMismatch(
            f"{folder} was trained on other photos than those of {scene.photos.source} (names, cameras, points or "
            "split have changed): restore the original data, or train in another folder with --out"
        )


def about(config: SplatsConfig, scene: Scene) -> Mapping[str, Any]:
    """Return the entries of `run.json` that describe the scene."""
    photos = scene.photos
    first = scene.photos.cameras[0]
    return {
        "pipeline": "splats",
        "scene": config.name,
        "photos": len(photos),
        "train": [photos.names[i] for i in photos.train],
        "test": [photos.names[i] for i in photos.test],
        "left_out": list(photos.left_out),
        "size": [first.width, first.height],
        "digest": photos.digest,
        "loaded": scene.loaded,
        "scale": scene.plan.scale,
        "notes": list(scene.notes),
    }


def _iteration(config: SplatsConfig, folder: SplatFolder) -> int:
    """Return the iteration to load."""
    iteration = config.iteration_to_load
    if iteration is None:
        # SuGaR's scripts load iteration 7000 of 3DGS; a file without an iteration counts as that.
        known = folder.iterations and COARSE_START not in folder.iterations
        return folder.iterations[-1] if known else COARSE_START
    folder.check(iteration)
    return iteration


def _iteration_notes(config: SplatsConfig, folder: SplatFolder | None) -> list[str]:
    if folder is None or folder.iterations or config.iteration_to_load is not None:
        return []
    note = (
        f"{folder.path} names no iteration: it counts as iteration {COARSE_START}, at which the coarse stage begins "
        "(--iteration-to-load sets another one)"
    )
    return [note]


def _source(config: SplatsConfig, folder: SplatFolder | None, left_out: Sequence[str] | None) -> _Source:
    options = PhotoOptions(
        longer_side=config.longer_side,
        held_out=config.held_out,
        background=(255, 255, 255) if config.background == "white" else (0, 0, 0),
        memory_budget=round(config.memory_gb * _GIBIBYTE),
        skip_unreadable=config.skip_unreadable,
        leave_out=None if left_out is None else tuple(left_out),
    )
    # In order of precedence: the given scene, the built-in scene, the given photos with the model's cameras, and the
    # scene that the model names.
    if config.data is not None:
        return _Source(photos=_read(config, config.data, options))
    if folder is None:
        return _built_in(config.views, BUILT_IN_SIZE, 0, config)
    if folder.settings.get("fieldwatch_scene") == BUILT_IN:
        _refuse_folders(config, folder)
        # The built-in scene is generated again from the parameters that the model's `cfg_args` contain.
        views, size, seed = (int(folder.settings[name]) for name in ("views", "size", "seed"))
        return _built_in(views, size, seed, config)
    if config.images is not None:
        return _Source(photos=read_splat_photos(folder, config.images, options, masks=config.masks))
    # 3DGS records the scene's folder in `cfg_args`; a model copied from another machine names a path that is missing.
    source_path = folder.settings.get("source_path")
    if not source_path or not Path(str(source_path)).is_dir():
        fault = f"trained on {source_path}, which does not exist" if source_path else "trained on an unnamed scene"
        raise InputError(
            f"{folder.path} was {fault}: give the folder of the scene with -s, or the folder of its photos with "
            "--images"
        )
    return _Source(photos=_read(config, Path(str(source_path)), options))


def _refuse_folders(config: SplatsConfig, folder: SplatFolder) -> None:
    """Reject folders of photos and masks for a model of the built-in scene, whose photos are rendered."""
    for name in ("images", "masks"):
        path = getattr(config, name)
        if path is not None:
            raise InputError(
                f"--{name} {path} cannot be used with {folder.folder}, which was trained on the built-in scene: leave "
                "it out, or give a scene with -s FOLDER"
            )


def _read(config: SplatsConfig, data: Path, options: PhotoOptions) -> PhotoSet:
    """Read a scene from its COLMAP model, its transforms*.json, or the export of another program, in this order."""
    # COLMAP's model wins if several exist: transforms.json is often derived from it.
    sparse = (data / "sparse").is_dir() or any((data / f"cameras.{ending}").is_file() for ending in ("bin", "txt"))
    if not sparse and (data.suffix == ".json" or any(data.glob("transforms*.json"))):
        for name in ("images", "masks"):
            if getattr(config, name) is not None:
                raise InputError(
                    f"--{name} cannot be used with {data}: its transforms*.json contains the paths of its photos"
                )
        return read_transforms(data, options)
    folders = {"images": _absolute(config.images), "masks": _absolute(config.masks)}
    if not sparse and is_camera_export(data):
        return read_camera_export(data, options, **folders)
    if not sparse and (named := unread_export(data)):
        raise InputError(named)
    return read_colmap(data, options, **folders)


def _absolute(path: Path | None) -> Path | None:
    """Return an existing folder as an absolute path; other paths are resolved within the scene later."""
    return path.absolute() if path is not None and path.is_dir() else path


def _built_in(views: int, size: int, seed: int, config: SplatsConfig) -> _Source:
    solid = SolidScene(seed)
    photos = solid_photos(solid, views=views, size=size, held_out=config.held_out, seed=seed)
    return _Source(photos=photos.having(memory_budget=round(config.memory_gb * _GIBIBYTE)), distance=solid.distance)


def _antialiasing_notes(config: SplatsConfig, folder: SplatFolder | None) -> list[str]:
    """Return a note if the loaded Gaussians were trained with another filter; models without the setting had none."""
    # A file without settings does not say how it was trained.
    if folder is None or (folder.file is not None and not folder.settings):
        return []
    antialiased = bool(folder.settings.get("antialiased", False))
    if antialiased == config.antialiased:
        return []
    flags = ("--antialiased", "--no-antialiased") if antialiased else ("--no-antialiased", "--antialiased")
    return [f"{folder.path} was trained with {flags[0]}, this run renders with {flags[1]} and has to adapt first"]


def _device_notes(config: SplatsConfig, device: torch.device) -> list[str]:
    """Return a note if rendering is slower than it could be on the device."""
    if device.type == "cuda":
        # Asked before the first step: kernels are compiled, and may turn out not to work.
        ours = splat_kernels_problem()
        if ours is None:
            return _terms_without_kernels(config)
        slower = f"rendering uses torch's own operations on the GPU, many times slower than our kernels ({ours})"
        if torch.are_deterministic_algorithms_enabled():
            return [f"{slower}; gsplat's gradients do not repeat to the bit (--deterministic)"]
        problem = gsplat_problem()
        if problem is None:
            return [f"gsplat renders on the GPU, because our own kernels do not work: {ours}"]
        return [f"{slower}: {problem}; pip install 'fieldwatch[gpu]', with nvcc of torch's CUDA version"]
    note = native_note() if device.type == "cpu" else None
    return [] if note is None else [note]


def _terms_without_kernels(config: SplatsConfig) -> list[str]:
    """Return notes on the surface terms that torch's operations compute on a GPU; the first call compiles kernels."""
    notes: list[str] = []
    terms = {name for name, term in SURFACE_TERMS.items() if config.regularization in term.regularizations}
    if "depth_normal_consistency" in terms and not config.surface.literal:
        problem = depth_normals_problem()
        notes += [] if problem is None else [f"torch's own operations compare normals with depth ({problem})"]
    if any(SURFACE_TERMS[name].compares_neighbors for name in terms):
        beta = config.surface.beta
        unsupported = None if beta == "average" else f"our kernels know --beta average only, got {beta}"
        problem = unsupported or sample_kernels_problem()
        notes += [] if problem is None else [f"torch's own operations compare samples with the surface ({problem})"]
    return notes
