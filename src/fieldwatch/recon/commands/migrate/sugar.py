"""Translation of the flags of the original SuGaR scripts: names, switches with a value, flags of other commands."""

from collections.abc import Callable, Sequence
from dataclasses import fields

from fieldwatch.cli.kit import BadInput, dashed, renamed
from fieldwatch.pipeline import CommandLine
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

_EXTRACT = "`fieldwatch mesh extract RUN`"
_REFINE = "`fieldwatch mesh refine RUN MESH`"
_TEXTURE = "`fieldwatch mesh texture RUN MESH`"
_LOW_POLY, _HIGH_POLY = (
    f"`fieldwatch mesh extract RUN --background --vertices {vertices}`, then "
    f"`fieldwatch mesh refine RUN MESH --gaussians-per-triangle {gaussians}`"
    for vertices, gaussians in ((200_000, 6), (1_000_000, 1))
)
_MESH = {
    **dict.fromkeys(("-l", "--surface-level", "-v", "--n-vertices-in-mesh", "-b", "--bboxmin", "-B"), _EXTRACT),
    "--bboxmax": _EXTRACT,
    **dict.fromkeys(("-g", "--gaussians-per-triangle", "-f", "--refinement-iterations", "--refinement-time"), _REFINE),
    "--normal-consistency-factor": f"{_REFINE} (--normal-consistency-weight)",
    "--square-size": _TEXTURE,
    "--n-vertices-in-fg": f"{_EXTRACT} (--vertices)",
    "--mesh-extraction-resolution-factor": f"{_EXTRACT} (--resolution)",
    "--postprocess-density-threshold": f"{_EXTRACT} (--trim)",
    "--postprocess-iterations": f"{_EXTRACT} (--trim)",
}
"""Flags of the later stages, from Gaussians to a mesh, and the command that takes them."""
_MESH_SWITCHES = {
    "--low-poly": (_LOW_POLY, _HIGH_POLY),
    "--high-poly": (_HIGH_POLY, _LOW_POLY),
    "--use-marching-cubes": ("`fieldwatch mesh extract RUN --method density`", f"{_EXTRACT} (--method)"),
    "--use-poisson-center": (f"{_EXTRACT} (--method)", f"{_EXTRACT} (--method)"),
    "--postprocess-mesh": (f"{_EXTRACT} (--trim, --least-piece)", f"{_EXTRACT} (--trim, --least-piece)"),
    "--skip-training": (f"{_EXTRACT}, which takes any trained run", f"{_EXTRACT}, which takes any trained run"),
    **dict.fromkeys(("--center-bbox", "--project-mesh-on-surface-points"), (_EXTRACT, _EXTRACT)),
    **dict.fromkeys(("-t", "--export-uv-textured-mesh", "--export-obj"), (_TEXTURE, _TEXTURE)),
}
"""Switches of the later stages, and the commands that do what they choose: for True, and for False."""

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


def translate(arguments: Sequence[str]) -> CommandLine:
    """Translate the flags of the original scripts; other words stay unchanged.

    A switch of a later stage that is False changes nothing in the training: it is left out, with a note.

    Raises:
        BadInput: a flag belongs to a later stage or has no counterpart; the message says what to use instead.
    """
    words: list[str] = []
    notes: list[str] = []
    rest = renamed(arguments, ORIGINAL_FLAGS)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        name = dashed(flag)
        _refuse_elsewhere(name, flag)
        if name not in _SWITCHES and name not in _MESH_SWITCHES:
            words.append(flag + equals + value)
            continue
        # A switch may stand alone; the next word is its value only if it is no flag.
        spelled = value if equals else (rest.pop(0) if rest and not rest[0].startswith("-") else None)
        if name in _MESH_SWITCHES:
            notes.append(_note_if_off(name, flag, spelled))
        else:
            # In front, so that fieldwatch's flag for the same setting comes later and wins.
            words[:0] = _SWITCHES[name](flag, spelled)
    return CommandLine(arguments=words, notes=notes)


def _refuse_elsewhere(name: str, flag: str) -> None:
    if name in _MESH:
        raise _belongs_to_mesh(flag, _MESH[name])
    if name in _ELSEWHERE:
        raise BadInput(f"{flag} of the original scripts has no counterpart: {_ELSEWHERE[name]}")


def _belongs_to_mesh(flag: str, commands: str) -> BadInput:
    return BadInput(f"{flag} belongs to the mesh stages: leave it out here, and run {commands} after this training")


def _note_if_off(name: str, flag: str, value: str | None) -> str:
    """Return the note about a switch of a later stage that is False.

    Raises:
        BadInput: it is True.
    """
    if_true, if_false = _MESH_SWITCHES[name]
    if _truth(flag, value):
        raise _belongs_to_mesh(flag, if_true)
    return f"{flag} {value} changes nothing in this training; it belongs to the mesh stages, after it: {if_false}"


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
