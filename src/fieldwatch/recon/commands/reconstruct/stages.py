"""Stages of a reconstruction: the command of each, given the outcomes of the earlier ones."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from fieldwatch.cli.kit import BadInput
from fieldwatch.files import output_path
from fieldwatch.recon.commands.normals.recognize import is_normal_maps
from fieldwatch.recon.commands.reconstruct.flags import Goal, ReconstructFlags
from fieldwatch.recon.commands.splats.recognize import is_photos

Kind = Literal["capture", "photos", "normals"]
"""Kind of input: a film or photos without cameras, photos with cameras, or normal maps."""
Outcomes = Mapping[str, Mapping[str, Any]]
"""What the finished stages printed as JSON, by stage."""

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
        BadInput: the path does not exist.
    """
    if not path.exists():
        raise BadInput(f"{path} does not exist: expected a film, a folder of photos, or a folder of normal maps")
    if is_normal_maps(path):
        return "normals"
    return "photos" if is_photos(path) else "capture"


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


def stages_of(chosen: ReconstructFlags, kind: Kind, *, on_gpu: bool) -> list[Stage]:
    """Return the stages in order.

    Raises:
        BadInput: the input cannot give what is wanted.
    """
    goal = goal_of(chosen, kind)
    if goal == "normals":
        return [_train_normals(chosen, on_gpu=on_gpu), _export_surface(chosen), _view(chosen, _exported_mesh)]
    cameras = [_cameras(chosen)] if kind == "capture" else []
    training = [*cameras, _train_splats(chosen, kind, on_gpu=on_gpu)]
    if goal == "splats":
        return training
    return [*training, _extract(chosen, on_gpu=on_gpu), _texture(chosen), _view(chosen, _textured_mesh)]


def run_folder(chosen: ReconstructFlags) -> Path:
    """Return the folder of the training."""
    return output_path(chosen.out, "run")


def _cameras(chosen: ReconstructFlags) -> Stage:
    frames = [] if chosen.frames is None else ["--frames", str(chosen.frames)]
    scene = output_path(chosen.out, "scene")
    words = ["data", "photos", str(chosen.data), "--out", str(scene), *frames, "--json"]
    return Stage(name="cameras", title="find the cameras", words=lambda _: words)


def _training_words(chosen: ReconstructFlags, pipeline: str, data: Path, *, on_gpu: bool) -> list[str]:
    side = [] if chosen.longer_side is None else ["--longer-side", str(chosen.longer_side)]
    words = ["train", pipeline, "--data", str(data), "--preset", "default" if on_gpu else "cpu"]
    machine = ["--device", "cuda" if on_gpu else "cpu", "--seed", str(chosen.seed)]
    return [*words, "--out", str(run_folder(chosen)), *side, *machine, "--json"]


def _train_splats(chosen: ReconstructFlags, kind: Kind, *, on_gpu: bool) -> Stage:
    data = output_path(chosen.out, "scene") if kind == "capture" else chosen.data
    words = _training_words(chosen, "splats", data, on_gpu=on_gpu)
    return Stage(name="train", title="train Gaussians", words=lambda _: words, may_find=True)


def _train_normals(chosen: ReconstructFlags, *, on_gpu: bool) -> Stage:
    words = _training_words(chosen, "normals", chosen.data, on_gpu=on_gpu)
    return Stage(name="train", title="train the surface", words=lambda _: words, may_find=True)


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
        return ["mesh", "view", mesh_of(outcomes), *flags, "--json"]

    return Stage(name="view", title="render the turntable", words=words)
