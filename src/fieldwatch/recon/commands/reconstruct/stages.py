"""Stages of a reconstruction: the command of each, given the outcomes of the earlier ones."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from fieldwatch.cli.kit import BadInput
from fieldwatch.files import output_path
from fieldwatch.recon.commands.normals.recognize import is_normal_maps
from fieldwatch.recon.commands.reconstruct.flags import Goal, ReconstructFlags
from fieldwatch.recon.commands.reconstruct.record import RUN
from fieldwatch.recon.commands.splats.recognize import has_cameras
from fieldwatch.recon.data.exports import unread_export

Kind = Literal["capture", "photos", "normals"]
"""Kind of input: a film or photos without cameras, photos with cameras, or normal maps."""
Outcomes = Mapping[str, Mapping[str, Any]]
"""What the finished stages printed as JSON, by stage."""

LEAST_FRAMES: Final = 3
"""Smallest number of frames from which cameras can be found."""
# Smaller than the defaults of `mesh extract`, which suit a GPU's number of Gaussians: two minutes instead of ten.
_CPU_MESH: Final = ("--points", "300000", "--triangles", "60000")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One command of a reconstruction.

    Attributes:
        name: name of the stage, a word.
        title: what it does, in a few words.
        words: function of the outcomes of the earlier stages that returns the words after ``fieldwatch``.
        may_find: whether exit code 1 means that the stage finished and has findings.
    """

    name: str
    title: str
    words: Callable[[Outcomes], Sequence[str]]
    may_find: bool = False


def kind_of_input(path: Path) -> Kind:
    """Return the kind of input.

    Raises:
        BadInput: the path does not exist, or belongs to a program whose files are not read.
    """
    if not path.exists():
        raise BadInput(f"{path} does not exist: expected a film, a folder of photos, or a folder of normal maps")
    if is_normal_maps(path):
        return "normals"
    if has_cameras(path):
        return "photos"
    if path.is_file() and (named := unread_export(path)):
        raise BadInput(named)
    return "capture"


def goal_of(chosen: ReconstructFlags, kind: Kind) -> Goal:
    """Return what to make.

    Raises:
        BadInput: the input cannot give what is wanted.
    """
    goal = chosen.goal or ("normals" if kind == "normals" else "mesh")
    if (goal == "normals") != (kind == "normals"):
        got = "normal maps" if kind == "normals" else "photos or a film"
        wanted = "leave --for out" if kind == "normals" else "use --for mesh or --for splats"
        raise BadInput(f"--for {goal} does not fit {chosen.data}, which holds {got}: {wanted}")
    return goal


def stages_of(chosen: ReconstructFlags, kind: Kind, training: Sequence[str], *, on_gpu: bool) -> list[Stage]:
    """Return the stages in order.

    Args:
        chosen: flags.
        kind: kind of the input.
        training: further flags of the training.
        on_gpu: whether the training uses a GPU.

    Raises:
        BadInput: the input cannot give what is wanted, ``--frames`` is out of bounds, or ``--masks`` does not apply.
    """
    goal = goal_of(chosen, kind)
    if chosen.masks and kind != "capture":
        raise BadInput(
            f"--masks makes masks for photos whose cameras are found, and {chosen.data} holds "
            f"{'normal maps' if kind == 'normals' else 'photos with cameras'}: put masks into {chosen.data / 'masks'}, "
            "where the training finds them, or name their folder with `-- --masks FOLDER`"
        )
    machine = ["--preset", "default", "--device", "cuda"] if on_gpu else ["--preset", "cpu", "--device", "cpu"]
    flags = [*machine, *training]
    if goal == "normals":
        surface = _train(chosen, "normals", "train the surface", chosen.data, flags)
        return [surface, _export_surface(chosen), _view(chosen, _exported_mesh)]
    cameras = [_cameras(chosen)] if kind == "capture" else []
    cameras += [_masks(chosen)] if chosen.masks else []
    scene = output_path(chosen.out, "scene") if kind == "capture" else chosen.data
    gaussians = [*cameras, _train(chosen, "splats", "train Gaussians", scene, flags)]
    if goal == "splats":
        return gaussians
    return [*gaussians, _extract(chosen, on_gpu=on_gpu), _texture(chosen), _view(chosen, _textured_mesh)]


def run_folder(chosen: ReconstructFlags) -> Path:
    """Return the folder of the training."""
    return output_path(chosen.out, RUN)


def _cameras(chosen: ReconstructFlags) -> Stage:
    if chosen.frames is not None and chosen.frames < LEAST_FRAMES:
        raise BadInput(f"--frames {chosen.frames}: expected at least {LEAST_FRAMES}, as in 80")
    frames = [] if chosen.frames is None else ["--frames", str(chosen.frames)]
    scene = output_path(chosen.out, "scene")
    words = ["data", "photos", str(chosen.data), "--out", str(scene), *frames, "--json"]
    return Stage(name="cameras", title="find the cameras", words=lambda _: words)


def _masks(chosen: ReconstructFlags) -> Stage:
    """Return the stage that adds masks to the scene.

    It is the command of the cameras with one more flag: their stages are complete and not repeated. If no masks can be
    made, the cameras are kept.
    """
    cameras = _cameras(chosen).words({})
    words = [*cameras[:-1], "--masks", cameras[-1]]
    return Stage(name="masks", title="make foreground masks", words=lambda _: words)


def _train(chosen: ReconstructFlags, pipeline: str, title: str, data: Path, flags: Sequence[str]) -> Stage:
    words = ["train", pipeline, "--data", str(data), "--out", str(run_folder(chosen)), "--seed", str(chosen.seed)]
    return Stage(name="train", title=title, words=lambda _: [*words, *flags, "--json"], may_find=True)


def _extract(chosen: ReconstructFlags, *, on_gpu: bool) -> Stage:
    words = ["mesh", "extract", str(run_folder(chosen)), "--out", str(output_path(chosen.out, "mesh"))]
    words += [*(() if on_gpu else _CPU_MESH), "--seed", str(chosen.seed), "--json"]
    return Stage(name="mesh", title="extract the mesh", words=lambda _: words)


def _texture(chosen: ReconstructFlags) -> Stage:
    def words(outcomes: Outcomes) -> list[str]:
        level = next(iter(outcomes["mesh"]["quality"]))
        mesh = outcomes["mesh"]["files"][level]
        folder = output_path(chosen.out, "textured")
        return ["mesh", "texture", str(run_folder(chosen)), mesh, "--out", str(folder), "--json"]

    return Stage(name="texture", title="bake the texture", words=words)


def _export_surface(chosen: ReconstructFlags) -> Stage:
    mesh = output_path(chosen.out, "mesh", "surface.glb")
    words = ["export", str(run_folder(chosen)), "--to", "glb", "--out", str(mesh), "--json"]
    return Stage(name="mesh", title="extract the mesh", words=lambda _: words)


def _textured_mesh(outcomes: Outcomes) -> str:
    return outcomes["texture"]["files"]["glb"]


def _exported_mesh(outcomes: Outcomes) -> str:
    return outcomes["mesh"]["file"]


def _view(chosen: ReconstructFlags, mesh_of: Callable[[Outcomes], str]) -> Stage:
    def words(outcomes: Outcomes) -> list[str]:
        files = {"--out": "mesh.html", "--still": "mesh.png", "--film": "turntable.mp4"}
        flags = [word for flag, name in files.items() for word in (flag, str(output_path(chosen.out, name)))]
        # The extraction knows whether photos show the object from all sides.
        is_open = ["--open"] if outcomes["mesh"].get("should_close") is False else []
        return ["mesh", "view", mesh_of(outcomes), *flags, *is_open, "--json"]

    return Stage(name="view", title="render the turntable", words=words)
