"""Translation of the flags of the original SuGaR scripts: names, switches with a value, flags of other commands."""

from collections.abc import Callable, Sequence
from dataclasses import fields

from fieldwatch.cli.kit import BadInput, dashed, renamed
from fieldwatch.recon.pipelines.splats import SplatsConfig, SurfaceOptions

ORIGINAL_FLAGS = {
    "-s": "--data",
    "--scene-path": "--data",
    "--source-path": "--data",
    "-c": "--checkpoint-path",
    "-i": "--iteration-to-load",
    "-r": "--regularization",
    "--regularization-type": "--regularization",
    "-e": "--density-weight",
    "--estimation-factor": "--density-weight",
    "-n": "--better-normal-weight",
    "--normal-factor": "--better-normal-weight",
    "-o": "--out",
    "--output-dir": "--out",
}
"""Flags of `fieldwatch train splats` by flag of the original scripts."""

_EXTRACT, _REFINE, _TEXTURE = (f"`fieldwatch mesh {command} RUN`" for command in ("extract", "refine", "texture"))
_MESH = {
    **dict.fromkeys(("-l", "--surface-level", "-v", "--n-vertices-in-mesh", "-b", "--bboxmin", "-B"), _EXTRACT),
    **dict.fromkeys(("--bboxmax", "--center-bbox", "--project-mesh-on-surface-points"), _EXTRACT),
    **dict.fromkeys(("-g", "--gaussians-per-triangle", "-f", "--refinement-iterations", "--refinement-time"), _REFINE),
    "--normal-consistency-factor": f"{_REFINE} (--normal-consistency-weight)",
    **dict.fromkeys(("-t", "--export-uv-textured-mesh", "--export-obj", "--square-size"), _TEXTURE),
    "--n-vertices-in-fg": f"{_EXTRACT} (--vertices)",
    "--low-poly": f"{_EXTRACT} --vertices 200000, then {_REFINE} --gaussians-per-triangle 6",
    "--high-poly": f"{_EXTRACT} --vertices 1000000, then {_REFINE} --gaussians-per-triangle 1",
    "--mesh-extraction-resolution-factor": f"{_EXTRACT} (--resolution)",
    "--postprocess-mesh": f"{_EXTRACT} (--trim, --least-piece)",
    "--postprocess-density-threshold": f"{_EXTRACT} (--trim)",
    "--postprocess-iterations": f"{_EXTRACT} (--trim)",
    "--use-poisson-center": f"{_EXTRACT} (--method)",
    "--use-marching-cubes": f"{_EXTRACT} --method density",
    "--skip-training": f"{_EXTRACT}, which takes any trained run",
}
"""Flags of the later stages, from Gaussians to a mesh, and the command that takes them."""

# Flags without a counterpart in any command, and what to do instead.
_ELSEWHERE = {
    "--resume-checkpoint": "a run is resumed automatically: give the same command with the same --out again, or "
    "`fieldwatch resume RUN`",
    "--experiment-name": "name the run by its folder: --out runs/NAME",
    "--gradient-checkpointing": "there is no such switch: to need less memory, lower --longer-side or --growth-cap",
    "--use-gradient-checkpointing": "there is no such switch: to need less memory, lower --longer-side or --growth-cap",
    "--export-ply": "leave it out: the Gaussians are always written as PLY, into products/ of the run folder",
    "--delete-first": "nothing is ever deleted: choose another folder with --out, or remove the old one yourself",
    "--enable-lpips": "LPIPS is measured whenever its weights are on the disk: $FIELDWATCH_LPIPS names their folder",
    "--eval-split": "use --held-out N (every N-th photo by name; 0 for none)",
    "--gs-output-dir": "give the folder of the 3DGS model with -c, or leave it out to train one from the photos",
    "--full-res-normals": "leave it out: normals are always compared at the resolution of the photos (--longer-side)",
}
_YES = ("true", "1", "yes", "y", "on")
_NO = ("false", "0", "no", "n", "off")
HELD_OUT = "8"
"""``--eval True`` holds out one of this many photos."""


def translate_flags(arguments: Sequence[str]) -> list[str]:
    """Translate the flags of the original scripts; other words stay unchanged.

    Raises:
        BadInput: a flag belongs to a later stage or has no counterpart; the message says what to use instead.
    """
    words: list[str] = []
    rest = renamed(arguments, ORIGINAL_FLAGS)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        name = dashed(flag)
        _refuse_elsewhere(name, flag)
        if name not in _SWITCHES:
            words.append(flag + equals + value)
            continue
        # A switch may stand alone; the next word is its value only if it is no flag.
        spelled = value if equals else (rest.pop(0) if rest and not rest[0].startswith("-") else None)
        # In front, so that fieldwatch's flag for the same setting comes later and wins.
        words[:0] = _SWITCHES[name](flag, spelled)
    return words


def _refuse_elsewhere(name: str, flag: str) -> None:
    if name in _MESH:
        raise BadInput(
            f"{flag} belongs to the mesh stages: leave it out here, and run {_MESH[name]} after this training"
        )
    if name in _ELSEWHERE:
        raise BadInput(f"{flag} of the original scripts has no counterpart: {_ELSEWHERE[name]}")


def _truth(flag: str, value: str | None) -> bool:
    """Return the value of a switch, which the original writes as a word; without a value it is true."""
    if value is None or value.lower() in _YES:
        return True
    if value.lower() in _NO:
        return False
    raise BadInput(f"{flag} must be True, False, or the flag alone for True, got {value!r}")


def _eval(flag: str, value: str | None) -> list[str]:
    return ["--held-out", HELD_OUT if _truth(flag, value) else "0"]


def _white_background(flag: str, value: str | None) -> list[str]:
    return ["--background", "white" if _truth(flag, value) else "black"]


def _gpu(flag: str, value: str | None) -> list[str]:
    """Translate the number of the GPU; CUDA_VISIBLE_DEVICES selects among several."""
    if value == "0":
        return ["--device", "cuda"]
    number = value if value is not None and value.isdecimal() else "N"
    raise BadInput(
        f"{flag} {value or ''}: among several GPUs, CUDA_VISIBLE_DEVICES selects one: "
        f"CUDA_VISIBLE_DEVICES={number} fieldwatch train splats --device cuda ..."
    )


def _switch(flag: str, value: str | None) -> list[str]:
    name = dashed(flag)
    return [name if _truth(flag, value) else f"--no-{name[2:]}"]


_OUR_SWITCHES = {
    f"--{each.name.replace('_', '-')}"
    for options in (SplatsConfig, SurfaceOptions)
    for each in fields(options)
    if each.type is bool
}
"""Our switches, which also accept the original's True and False."""
_SWITCHES: dict[str, Callable[[str, str | None], list[str]]] = {
    "--eval": _eval,
    "--white-background": _white_background,
    "--gpu": _gpu,
    **dict.fromkeys(sorted(_OUR_SWITCHES), _switch),
}
