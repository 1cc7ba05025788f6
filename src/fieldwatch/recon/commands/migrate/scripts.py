"""Table of the original scripts: the corresponding command, translation of flags, and flags without counterpart."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from fieldwatch.cli.kit import renamed
from fieldwatch.recon.commands.migrate import pmni_flags, sugar
from fieldwatch.recon.commands.migrate.gaussian_splatting import translate_splatting
from fieldwatch.recon.commands.migrate.mesh import translate_extract, translate_refine
from fieldwatch.recon.commands.migrate.video import ORIGINAL_FLAGS as VIDEO_FLAGS

_PHOTOS = "the run knows its photos and its model"
_MODEL = "RUN takes its place: the folder of a run of `fieldwatch train splats`"


@dataclass(frozen=True, kw_only=True)
class Script:
    """An original script.

    Attributes:
        command: corresponding fieldwatch command.
        start: default flags, inserted after the positional arguments.
        translate: function that translates one flag with its values; raises `BadInput` with the reason if it cannot.
        remarks: function that returns remarks about one flag with its values.
        places: placeholders of the command's positional arguments.
        fills: placeholders by the script's flag that fills them.
        needed: placeholders of flags that the command needs and the script lacks, by flag.
        dropped: reasons by flag that is left out.
    """

    command: str
    start: tuple[str, ...] = ()
    translate: Callable[[Sequence[str]], list[str]] = list
    remarks: Callable[[Sequence[str]], Sequence[str]] = lambda _: ()
    places: tuple[str, ...] = ()
    fills: Mapping[str, str] = field(default_factory=dict[str, str])
    needed: Mapping[str, str] = field(default_factory=dict[str, str])
    dropped: Mapping[str, str] = field(default_factory=dict[str, str])


def _sugar_words(words: Sequence[str]) -> list[str]:
    return list(sugar.translate(words).arguments)


def _sugar_notes(words: Sequence[str]) -> Sequence[str]:
    return sugar.translate(words).notes


def _sugar(*start: str) -> Script:
    """Return a training script of SuGaR with some default flags."""
    return Script(command="train splats", start=start, translate=_sugar_words, remarks=_sugar_notes)


def _rename(names: Mapping[str, str]) -> Callable[[Sequence[str]], list[str]]:
    return lambda words: renamed(words, names)


_RUN_ONLY = {"-s": _PHOTOS, "--scene-path": _PHOTOS, "-c": _PHOTOS, "--checkpoint-path": _PHOTOS, "--gpu": _PHOTOS}
_NO_MODEL = dict.fromkeys(("-m", "--coarse-model-path", "--refined-model-path"), _MODEL)
_EVALUATE = Script(command="eval", places=("RUN",))
VANILLA = Script(
    command="train splats", start=("--regularization", "none", "--preset", "full"), translate=translate_splatting
)
"""``train.py`` of 3DGS."""
PMNI = Script(command="train normals", translate=pmni_flags.translate_flags)
"""``exp_runner.py`` of PMNI."""
_SCRIPTS: Mapping[str, Script] = {
    "train.py": _sugar(),
    "train_coarse_density.py": _sugar("--regularization", "density"),
    "train_coarse_sdf.py": _sugar("--regularization", "sdf"),
    "train_full_pipeline.py": _sugar(),
    "extract_mesh.py": Script(
        command="mesh extract",
        translate=translate_extract,
        places=("RUN",),
        dropped={**_RUN_ONLY, **_NO_MODEL, "--eval": _PHOTOS},
    ),
    "train_refined.py": Script(
        command="mesh refine",
        translate=translate_refine,
        places=("RUN", "MESH"),
        fills={"-m": "MESH", "--mesh-path": "MESH"},
        dropped={**_RUN_ONLY, "--eval": _PHOTOS},
    ),
    "extract_refined_mesh_with_texture.py": Script(
        command="mesh texture", places=("RUN", "MESH"), dropped={**_RUN_ONLY, **_NO_MODEL, "--eval": _PHOTOS}
    ),
    "mesh_quality.py": Script(command="mesh quality", places=("MESH",), fills={"--mesh": "MESH"}),
    "metrics.py": Script(command="eval", places=("RUN",), dropped={"--scene-config": "call it once for each run"}),
    "exp_runner.py": PMNI,
    "evaluate_mesh.py": Script(
        command="mesh evaluate", places=("MESH",), fills={"--mesh": "MESH"}, needed={"--gt": "TRUE"}
    ),
    "inference.py": Script(
        command="infer normals",
        places=("RUN",),
        remarks=lambda words: ("takes a normal map, not a photo",) if words[0].startswith("--image") else (),
        needed={"--like": "VIEW"},
        dropped={"--checkpoint": "RUN takes its place: a run folder; --checkpoint STEP chooses one of its checkpoints"},
    ),
    "train_dual_head.py": Script(command="train video", start=("--preset", "dual"), translate=_rename(VIDEO_FLAGS)),
    "search_patches_by_text.py": Script(
        command="infer video", translate=_rename({"--query": "--text"}), places=("RUN",)
    ),
    **dict.fromkeys(
        (
            "eval_all_patches.py",
            "eval_fractional_patches.py",
            "verify_clip_embeddings.py",
            "visualize_embedding_space.py",
        ),
        _EVALUATE,
    ),
}
SCRIPT_NAMES = tuple(_SCRIPTS)


def script_of(path: str, words: Sequence[str]) -> Script | None:
    """Return the script that a command line calls; None if it is not known.

    Args:
        path: path of the script.
        words: words after it. ``train.py`` is SuGaR's if it names a model (-c) or a regularization, else 3DGS's,
            where ``-r`` is the resolution.
    """
    name = PurePath(path).name
    if name != "train.py":
        return _SCRIPTS.get(name)
    # Both projects call their script train.py: only the flags tell them apart.
    flags = {word.partition("=")[0].replace("_", "-") for word in words}
    values = {word.rpartition("=")[2] for word in words}
    ours = {"density", "sdf", "dn_consistency"}
    is_sugar = {"-c", "--checkpoint-path", "--regularization-type", "--regularization"} & flags or ours & values
    return _SCRIPTS[name] if is_sugar else VANILLA
